"""A trial is removed as a whole. If the removal is killed, a half-removed trial does not count."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.storage.inventory import Item, items_of, remove
from pipeline.storage.object_store import Storage, storage_here
from pipeline.training.trainer import train
from pipeline.trials.store import RESULTS, folder_of
from pipeline.trials.trial import OUTCOME, Outcome, Trial
from tests.outcomes import CPU, rising_trial
from tests.store import random_stores

pytestmark = pytest.mark.slow
# Importing torch takes longer than everything else here.
FORKS = multiprocessing.get_context("fork")


@pytest.fixture(params=["folder", "s3"])
def whole(request: pytest.FixtureRequest, tiny_backbone: Path, s3: str, tmp_path: Path) -> tuple[Storage, Trial, Outcome]:
    """A storage with a finished trial."""
    # Threads do not survive a fork.
    torch.set_num_threads(1)
    name = str(tmp_path / "kept") if request.param == "folder" else s3.replace("/gausscse?", f"/{tmp_path.name}?")
    trial = rising_trial(tiny_backbone, stores := random_stores(tmp_path / "stores"))
    with storage_here(name, Path("/")) as (folder, remote):
        mine = folder_of(trial, folder, remote)
        with mine.written("a", 10.0):
            mine.open_checkpoint()
            return Storage.open(name), trial, train(*stores, mine, mine.log, CPU)


def item_of(storage: Storage, trial: Trial) -> Item:
    return next(item for item in items_of(storage) if item.name == f"trials/{trial.digest}")


def outcome_of(storage: Storage, trial: Trial, home: Path) -> Outcome | None:
    """What a run finds."""
    mine = folder_of(trial, storage.folder or home, None if storage.folder else storage.name)
    mine.refresh()
    return mine.outcome()


def remove_until(change: int, storage: Storage, trial: Trial) -> None:
    """Remove the trial, and be killed before the change with this number."""
    seen = itertools.count()

    def hook(event: str, _: tuple[Any, ...]) -> None:
        if event in ("os.rename", "os.remove", "os.rmdir") and next(seen) == change:
            os.kill(os.getpid(), signal.SIGKILL)

    item = item_of(storage, trial)
    sys.addaudithook(hook)
    remove(storage, item, RESULTS)


@pytest.mark.parametrize("whole", ["folder"], indirect=True)
def test_a_removal_that_is_killed_leaves_a_whole_trial_or_none(whole: tuple[Storage, Trial, Outcome], tmp_path: Path) -> None:
    storage, trial, outcome = whole
    number, place = 0, storage
    for number in range(1000):
        place = Storage.open(str(shutil.copytree(str(storage.folder), tmp_path / f"killed-{number}")))
        process = FORKS.Process(target=remove_until, args=(number, place, trial))
        process.start()
        process.join(60)
        # Before the rename it is whole, and after it there is nothing under its name.
        assert outcome_of(place, trial, tmp_path) == (outcome if number == 0 else None)
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
        assert {item.kind for item in items_of(place)} <= ({"trials"} if number == 0 else {"leftovers"})
    assert number >= 5
    assert not place.entries()


@pytest.mark.faults
@pytest.mark.parametrize("whole", ["s3"], indirect=True)
def test_a_removal_on_s3_that_ends_at_any_request_leaves_no_half_trial(
    whole: tuple[Storage, Trial, Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, trial, outcome = whole
    # As if it had been stopped early in an earlier attempt; the note counts only with its records.
    storage.write(f"trials/{trial.digest}/stopped.json", "{}")
    item = item_of(storage, trial)
    texts = {file: storage.read(file) or "" for file in item.files}
    real = Storage.remove
    for allowed in range(len(texts) + 1):
        for file, text in texts.items():
            storage.write(file, text)
        assert outcome_of(storage, trial, tmp_path / f"before-{allowed}") == outcome
        requests = itertools.count()

        def remove_some(self: Storage, file: str, requests: Any = requests, allowed: int = allowed) -> None:
            if next(requests) == allowed:
                raise KeyboardInterrupt
            real(self, file)

        with monkeypatch.context() as patch:
            patch.setattr(Storage, "remove", remove_some)
            if allowed == len(texts):
                remove(storage, item, RESULTS)
            else:
                with pytest.raises(KeyboardInterrupt):
                    remove(storage, item, RESULTS)
        left = {file.rpartition("/")[2] for file in storage.entries(item.name)}
        assert (OUTCOME in left) == (allowed == 0)
        # The verdicts go before anything that they are about.
        assert allowed >= 2 or left >= {"progress.jsonl", "progress.log"}
    assert not storage.entries(item.name)
