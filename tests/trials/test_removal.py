"""A trial is removed as a whole: under its locks. If the removal is killed, a half-removed trial does not count."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from gates import wait_for
from outcomes import CPU, assert_together, rising_trial
from store import random_stores

from pipeline.storage.inventory import Inventory, Thing
from pipeline.storage.object_store import Storage, storage_here
from pipeline.storage.sync import Mirror
from pipeline.training.trainer import train
from pipeline.trials import locks
from pipeline.trials.removal import busy, remove_trial, strangers, weights_of
from pipeline.trials.store import folder_of
from pipeline.trials.trial import BEST, LATEST, OUTCOME, Outcome, Trial

pytestmark = pytest.mark.slow
# Importing torch takes longer than everything else here.
FORKS = multiprocessing.get_context("fork")
Stores = tuple[Path, Path]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    """Threads do not survive a fork, and their number changes the numbers."""
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Stores:
    return random_stores(tmp_path_factory.mktemp("stores"))


@pytest.fixture(scope="module")
def trial(tiny_backbone: Path, stores: Stores) -> Trial:
    return rising_trial(tiny_backbone, stores)


def trained(trial: Trial, stores: Stores, storage: str) -> Outcome:
    """What a run makes of the trial in this storage: what is finished is taken, and a checkpoint is gone on from."""
    with storage_here(storage, Path("/")) as (folder, remote):
        mine = folder_of(trial, folder, remote)
        mine.refresh()
        if (done := mine.outcome()) is not None:
            return done
        with mine.written("a", 10.0):
            mine.open_checkpoint()
            outcome = train(*stores, mine, mine.log, CPU)
        assert_together(mine.path, trial, stores[1])
        return outcome


def thing_of(storage: Storage, trial: Trial) -> Thing:
    return Inventory.of(storage).things[f"trials/{trial.digest}"]


@pytest.fixture(scope="module")
def whole(trial: Trial, stores: Stores, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome]:
    """A storage with the finished trial, which also has a checkpoint that its end would have removed."""
    storage = tmp_path_factory.mktemp("whole") / "kept"
    outcome = trained(trial, stores, str(storage))
    shutil.copytree(storage / "trials" / trial.digest / BEST, storage / "trials" / trial.digest / LATEST)
    return storage, outcome


def removed_until(change: int, log: Path, storage: Path, digest: str) -> None:
    """Remove a trial, and be killed before the change with this number; -1: live, and log the changes."""
    seen: list[str] = []

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event not in ("os.rename", "os.remove", "os.rmdir"):
            return
        if len(seen) == change:
            os.kill(os.getpid(), signal.SIGKILL)
        seen.append(f"{event} {args[0]}")

    place = Storage.open(str(storage))
    thing = Inventory.of(place).things[f"trials/{digest}"]
    sys.addaudithook(hook)
    assert remove_trial(place, thing)
    if change < 0:
        log.write_text("\n".join(seen), encoding="utf-8")


def test_a_removal_that_is_killed_leaves_a_whole_trial_or_none(whole: tuple[Path, Outcome], trial: Trial, tmp_path: Path) -> None:
    finished, outcome = whole

    def removed(change: int) -> tuple[int | None, Path]:
        storage = Path(shutil.copytree(finished, tmp_path / f"killed-{change}"))
        process = FORKS.Process(target=removed_until, args=(change, tmp_path / "log", storage, trial.digest))
        process.start()
        process.join(60)
        return process.exitcode, storage

    assert removed(-1) == (0, tmp_path / "killed--1")
    assert not any((tmp_path / "killed--1/trials").iterdir())
    changes = (tmp_path / "log").read_text(encoding="utf-8").splitlines()
    assert [change.split()[0] for change in changes].count("os.rename") == 1
    for number, change in enumerate(changes):
        code, storage = removed(number)
        assert code == -signal.SIGKILL, change
        left = folder_of(trial, storage, None)
        # Before the rename it is whole, after it there is nothing under its name. What is left is listed as a leftover, until
        # only empty folders are left.
        if number == 0:
            assert left.outcome() == outcome
        else:
            assert not left.path.exists()
            kinds = {thing.kind for thing in Inventory.of(Storage.open(str(storage))).things.values()}
            assert kinds == ({"leftovers"} if any(file.is_file() for file in storage.rglob("*")) else set())


@pytest.mark.faults
def test_a_removal_on_s3_that_ends_at_any_request_leaves_no_half_trial(
    whole: tuple[Path, Outcome], trial: Trial, stores: Stores, s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, undisturbed = whole
    name = s3.replace("/gausscse?", f"/{tmp_path.name}?")
    storage = Storage.open(name)
    real = Storage.remove
    allowed, number = [0], 0

    def remove(self: Storage, file: str) -> None:
        if allowed[0] == 0:
            raise KeyboardInterrupt
        allowed[0] -= 1
        real(self, file)

    while True:
        assert trained(trial, stores, name) == undisturbed
        # As if it had been stopped early in an earlier attempt; the note counts only with its records.
        storage.write(f"trials/{trial.digest}/stopped.json", "{}")
        thing = thing_of(storage, trial)
        with monkeypatch.context() as patch:
            patch.setattr(Storage, "remove", remove)
            allowed[0] = number
            try:
                assert remove_trial(storage, thing)
            except KeyboardInterrupt:
                left = {file.rpartition("/")[2] for file in storage.entries(f"trials/{trial.digest}")}
                assert (OUTCOME in left) == (number == 0)
                # The verdicts go before anything that they are about.
                assert number >= 2 or left >= {"progress.jsonl", "progress.log"}
                number += 1
                continue
        break
    assert number == len(thing.files) >= 4
    assert storage.entries(f"trials/{trial.digest}") == {}
    assert trained(trial, stores, name) == undisturbed


def test_a_process_that_waits_for_a_removed_trial_begins_it_again(
    whole: tuple[Path, Outcome], trial: Trial, stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = Storage.open(str(shutil.copytree(whole[0], tmp_path / "kept")))
    assert storage.folder is not None
    folder = storage.folder / "trials" / trial.digest
    waiting, over = threading.Event(), threading.Event()
    claimed: list[bool] = []
    real = locks._try

    def attempt(descriptor: int, file: Path) -> bool:
        mine = real(descriptor, file)
        if not mine and threading.current_thread() is not threading.main_thread():
            waiting.set()
        return mine

    monkeypatch.setattr(locks, "_try", attempt)

    def begin() -> None:
        claimed.append(locks.claim(Mirror(folder), None, 60.0))
        with locks.driven(folder, "a"):
            claimed.append((folder / locks.DRIVER_LOCK).read_text(encoding="utf-8") == "a")
            over.wait(60)

    thread = threading.Thread(target=begin)
    # A process takes the lock while gc removes the trial: it waits for the old lock file, or makes a new folder.
    with locks.held(folder / locks.DRIVER_LOCK):
        thread.start()
        assert waiting.wait(60)
        shutil.rmtree(folder)
    wait_for(lambda: len(claimed) == 2, 60, "the trial begins")
    assert claimed == [True, True]
    # Others see its lock.
    assert busy(storage, f"trials/{trial.digest}")
    assert not remove_trial(storage, thing_of(storage, trial))
    over.set()
    thread.join()
    assert trained(trial, stores, str(storage.folder)) == whole[1]


def test_what_gc_reads_of_a_trial(whole: tuple[Path, Outcome], trial: Trial, tmp_path: Path) -> None:
    storage = Storage.open(str(shutil.copytree(whole[0], tmp_path / "kept")))
    name = f"trials/{trial.digest}"
    assert weights_of(storage, name) == whole[1].weights
    before = storage.entries()
    for lock in (locks.DRIVER_LOCK, locks.WRITER_LOCK):
        assert storage.folder is not None
        assert not busy(storage, name)
        with locks.held(storage.folder / name / lock):
            assert busy(storage, name)
            assert not remove_trial(storage, thing_of(storage, trial))
    assert {file: entry.bytes for file, entry in storage.entries().items() if not file.endswith(".lock")} == {
        file: entry.bytes for file, entry in before.items() if not file.endswith(".lock")
    }
    for known in ("crash-3.log", ".latest.77.tmp/state.json", "latest.ref", f"best-{'a' * 64}.ref", "pause", "writer"):
        storage.write(f"{name}/{known}", "x")
    assert strangers(thing_of(storage, trial)) == []
    storage.write(f"{name}/best.ref.bak", "x")
    assert strangers(thing_of(storage, trial)) == ["best.ref.bak"]
    storage.write(f"{name}/{OUTCOME}", "{")
    assert weights_of(storage, name) is None
