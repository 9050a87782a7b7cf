"""Checkpoints are written while training goes on: what is in them, and what happens if the write is slow or fails."""

from __future__ import annotations

import os
import re
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pipeline.training import checkpoint
from pipeline.training.trainer import Paused, Progress
from pipeline.utils.atomic_io import check_sums, read_json
from pipeline.utils.errors import StorageError
from tests.gates import wait_for
from tests.outcomes import finished
from tests.store import random_stores
from tests.training.runs import Killed, dies_at, make_trial, run, same_files


class Writer:
    """Stops the thread that writes checkpoints before it writes the first file of one of them."""

    def __init__(self, patch: pytest.MonkeyPatch, number: int, held: Callable[[], None]) -> None:
        self.ended: list[int] = []
        publish, begun = checkpoint.Checkpoints._publish, iter(range(1, 100))

        def held_publish(*args: Any) -> None:
            this = next(begun)
            try:
                if this == number:
                    held()
                publish(*args)
            finally:
                self.ended.append(this)

        patch.setattr(checkpoint.Checkpoints, "_publish", held_publish)


@pytest.fixture
def stores(tmp_path: Path) -> tuple[Path, Path]:
    return random_stores(tmp_path)


def content(folder: Path) -> dict[str, Any]:
    """A checkpoint's files, without the time that it took and the sums, which depend on it."""
    check_sums(folder)
    files = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    del files["SHA256SUMS"]
    return {**files, "state.json": {**read_json(folder / "state.json"), "seconds": 0}}


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """No file of this process may grow larger: its disk is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_steps_taken_while_a_checkpoint_is_written_do_not_change_it(
    tiny_backbone: Path, stores: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = make_trial(tiny_backbone, stores, epochs=4)
    with pytest.raises(Paused):
        # It ends once it is written, so nothing happens meanwhile.
        run(trial, stores, tmp_path / "paused", pause=lambda steps: steps == 3)
    later = threading.Event()

    def go_on(steps: int) -> bool:
        if steps == 7:
            later.set()
        return False

    # Held for three steps, which change weights, moments, random state and history.
    Writer(monkeypatch, 1, lambda: pytest.fail("training waits") if not later.wait(60) else None)
    with pytest.raises(Killed):
        run(trial, stores, tmp_path / "held", dies_at(8), go_on)
    written = content(tmp_path / "held/latest")
    assert written == content(tmp_path / "paused/latest")
    assert (written["state.json"]["step"], written["state.json"]["best_step"]) == (4, 4)
    assert "best/model.safetensors" in written


def test_the_next_checkpoint_waits_for_the_one_that_is_being_written(
    tiny_backbone: Path, stores: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = make_trial(tiny_backbone, stores, epochs=4)
    with pytest.raises(Paused):
        run(trial, stores, tmp_path / "paused", pause=lambda steps: steps == 3)
    went_on, passed = threading.Event(), []

    def go_on(steps: int) -> bool:
        if steps == 8:
            went_on.set()
        return False

    # Training that did not wait would take the ninth step in much less than two seconds.
    Writer(monkeypatch, 1, lambda: passed.append(went_on.wait(2)))
    with pytest.raises(Killed):
        run(trial, stores, tmp_path / "held", dies_at(12), go_on)
    assert passed == [False]
    assert [read_json(tmp_path / "held" / name / "state.json")["step"] for name in ("latest", "previous")] == [8, 4]
    assert content(tmp_path / "held/previous") == content(tmp_path / "paused/latest")


@pytest.mark.parametrize("full_at", [8, 20], ids=["at the next step", "at the end"])
def test_a_full_disk_during_a_write_ends_the_run_in_one_line(
    tiny_backbone: Path, stores: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full_at: int
) -> None:
    trial = make_trial(tiny_backbone, stores, epochs=4)
    whole = run(trial, stores, tmp_path / "whole")
    folder, reached = tmp_path / "full", [0]
    writer = Writer(monkeypatch, 0, lambda: None)

    def go_on(steps: int) -> bool:
        reached.append(steps)
        if steps > full_at:
            wait_for(lambda: full_at // 4 in writer.ended, 60, "the write ends")
        return False

    full: list[Any] = []

    def report(progress: Progress) -> None:
        if progress.step == full_at:
            full.append(files_of_at_most(20_000))
            full[0].__enter__()

    why = rf"^{folder}/latest: cannot be written \(File too large\); nothing was changed, make room and run again$"
    try:
        with pytest.raises(StorageError, match=why):
            run(trial, stores, folder, report, go_on)
    finally:
        full[0].__exit__(None, None, None)
    # Long before the next checkpoint, which would also raise it.
    assert reached[-1] <= full_at + 2
    assert finished(folder, trial) is None
    assert sorted(file.name for file in folder.iterdir()) == ["latest", "previous"][: full_at // 4 - 1]
    check_sums(folder / "latest")
    assert read_json(folder / "latest/state.json")["step"] == full_at - 4
    assert run(trial, stores, folder) == whole
    assert same_files("best/model.safetensors", folder, tmp_path / "whole")


def test_a_failed_write_does_not_hide_an_error_of_training(
    tiny_backbone: Path, stores: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = make_trial(tiny_backbone, stores, epochs=4)
    ended = threading.Event()

    def fails() -> None:
        ended.wait(60)
        raise StorageError("the second write fails")

    writer = Writer(monkeypatch, 2, fails)

    def go_on(steps: int) -> bool:
        if steps == 9:
            ended.set()
            raise Killed
        return False

    with pytest.raises(Killed):
        run(trial, stores, tmp_path / "t", pause=go_on)
    assert writer.ended == [1, 2]
    assert read_json(tmp_path / "t/latest/state.json")["step"] == 4


def test_a_checkpoint_has_reached_the_disk_before_it_is_the_latest(
    tiny_backbone: Path, stores: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[tuple[str, bool]] = []
    real, folder = os.fsync, tmp_path / "t"

    def fsync(descriptor: int) -> None:
        flushed.append((str(Path(f"/proc/self/fd/{descriptor}").readlink()), (folder / "latest").exists()))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(Paused):
        run(make_trial(tiny_backbone, stores, epochs=4), stores, folder, pause=lambda steps: steps == 3)
    new = re.compile(re.escape(f"{folder}/.latest.") + r"[0-9a-f]{32}\.tmp")
    before = {new.sub("", path) for path, published in flushed if not published}
    assert before >= {str(path).removeprefix(f"{folder}/latest") for path in (folder / "latest", *(folder / "latest").rglob("*"))}
    assert flushed[-1] == (str(folder), True)
