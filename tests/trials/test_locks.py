"""What a kill may leave in a trial's folder, and who may write there."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pipeline.trials.locks import DRIVER_LOCK, WRITER_LOCK, held, tidy
from pipeline.trials.progress_log import RECORDS
from pipeline.trials.store import pause
from pipeline.trials.trial import FAILURE, LATEST, OUTCOME, PREVIOUS
from pipeline.trials.trial_folder import TrialFolder
from pipeline.utils.atomic_io import write_sums
from pipeline.utils.errors import TransientStorageError, UserError
from tests.trial_of import folder_at, plain_trial


def trial_in(folder: Path) -> TrialFolder:
    return folder_at(plain_trial(), folder)


def test_what_a_kill_leaves_of_a_write_is_put_in_order(tmp_path: Path) -> None:
    for name in (".latest.7.old", ".best.7.old", ".best.8.tmp", "best"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "state.json").write_text(name, encoding="utf-8")
    (tmp_path / ".trial.json.7.tmp").write_text("{", encoding="utf-8")
    tidy(tmp_path)
    assert sorted(p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*.json")) == [
        "best/state.json",
        "latest/state.json",
    ]
    assert (tmp_path / LATEST / "state.json").read_text(encoding="utf-8") == ".latest.7.old"
    assert not list(tmp_path.glob(".*"))
    # An outcome that is not sound: the trial starts anew.
    (tmp_path / OUTCOME).write_text("{}", encoding="utf-8")
    tidy(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["best"]


def checkpoint(folder: Path, content: str, *, damaged: bool = False) -> None:
    folder.mkdir(parents=True)
    (folder / "state.json").write_text(content, encoding="utf-8")
    write_sums(folder)
    if damaged:
        (folder / "state.json").write_text(content[:-1], encoding="utf-8")


def contents(folder: Path) -> dict[str, str]:
    return {p.parent.name: p.read_text(encoding="utf-8") for p in sorted(folder.glob("*/state.json"))}


def test_a_damaged_or_lost_checkpoint_gives_way_to_a_sound_one_before_it(tmp_path: Path) -> None:
    sound, damaged, lost, both = (tmp_path / name for name in ("sound", "damaged", "lost", "both"))
    for folder in (sound, damaged, both):
        checkpoint(folder / LATEST, "{2}", damaged=folder != sound)
    for folder in (sound, damaged, lost, both):
        checkpoint(folder / PREVIOUS, "{1}", damaged=folder == both)
    assert tidy(sound) is None
    assert contents(sound) == {LATEST: "{2}", PREVIOUS: "{1}"}
    assert tidy(damaged) == f"{damaged}/latest/state.json: differs from its SHA-256 sum; the file is damaged or was changed"
    # Killed between the two renames of a write, nothing is wrong.
    assert tidy(lost) is None
    assert contents(damaged) == contents(lost) == {LATEST: "{1}"}
    # Nothing sound to fall back on: left for whoever resumes, who says what is wrong.
    assert tidy(both) is None
    assert contents(both) == {LATEST: "{2", PREVIOUS: "{1"}


def test_records_of_lost_steps_go_and_those_of_a_checkpoint_stay(tmp_path: Path) -> None:
    for name, checkpoint in (("lost", None), ("kept", LATEST), ("before", PREVIOUS)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / RECORDS).write_text('{"step": 10}\n', encoding="utf-8")
        if checkpoint is not None:
            (folder / checkpoint).mkdir()
        assert trial_in(folder).claim(None, 1.0)
        assert (folder / RECORDS).exists() == (checkpoint is not None)


def test_a_pause_waits_for_the_workers_of_its_own_search_only(tmp_path: Path) -> None:
    ours, others, done, new = (tmp_path / name for name in ("ours", "others", "done", "new"))
    for folder, search in ((ours, "a"), (others, "b"), (done, "a")):
        folder.mkdir()
        with trial_in(folder).driven(search):
            pass
    folders = [trial_in(folder) for folder in (ours, others, done, new)]
    for obeys in (True, False):
        held_now, over = threading.Semaphore(0), threading.Event()

        def work(folder: Path, obeys: bool = obeys, held_now: Any = held_now, over: threading.Event = over) -> None:
            """Let go of the lock on a pause, as a worker that has written its checkpoint, or at the end."""
            with held(folder / WRITER_LOCK):
                held_now.release()
                while not (over.is_set() or (obeys and (folder / "pause").exists())):
                    time.sleep(0.01)

        with ThreadPoolExecutor(2) as pool:
            pool.map(work, (ours, others))
            assert held_now.acquire(timeout=30) and held_now.acquire(timeout=30)
            assert pause(folders, "a", 30.0 if obeys else 0.3) == (not obeys)
            over.set()
        assert [folder.asked_to_pause("a") for folder in folders] == [True, False, False, False]
        assert not trial_in(ours).asked_to_pause("b")
        assert not new.exists()
        assert trial_in(ours).claim(None, 1.0)
        assert not trial_in(ours).asked_to_pause("a")


@pytest.mark.parametrize(("number", "kind"), [(errno.ESTALE, TransientStorageError), (errno.ENOLCK, UserError)])
def test_a_file_server_that_is_away_is_not_a_file_system_without_locks(
    number: int, kind: type[UserError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", fail)
    with pytest.raises(UserError) as raised, held(tmp_path / DRIVER_LOCK):
        pass
    assert type(raised.value) is kind
    assert os.strerror(number) in str(raised.value)


def test_a_trial_that_another_driver_holds_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / FAILURE).write_text('{"reason": "it broke"}', encoding="utf-8")
    with held(tmp_path / DRIVER_LOCK):
        assert not trial_in(tmp_path).claim(None, 0.3)
        assert (tmp_path / FAILURE).exists()
    assert trial_in(tmp_path).claim(None, 5.0)
    assert not (tmp_path / FAILURE).exists()
