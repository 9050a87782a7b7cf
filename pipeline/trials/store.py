"""The trial store: one folder per trial, local or mirrored from a remote storage, and the paths of the training data."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pipeline.config.paths import DEV_TOKENS, TRAIN_TOKENS, TRIALS
from pipeline.storage.object_store import Storage, storage_here
from pipeline.storage.sync import mirror_of
from pipeline.trials.trial import FAILURE, OUTCOME, STOPPED, EarlyStopping, Trial, TrialResult
from pipeline.trials.trial_folder import TrialFolder

RESULTS = (OUTCOME, STOPPED, FAILURE)
"""The files of a trial that say how it ended. Without them, it counts as one that was never finished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialStore:
    """The token stores and the storage that holds a folder for each trial."""

    train_tokens: Path
    dev_tokens: Path
    storage: Path
    """The storage itself if it is a folder that all processes see; otherwise a folder of this process with the same layout."""
    remote: str | None = None
    """cluster.storage if it is remote, else None."""

    @staticmethod
    @contextmanager
    def of_project(root: Path, storage: str) -> Iterator[TrialStore]:
        """The store of the project in folder `root` while the block runs; `storage` is its cluster.storage."""
        with storage_here(storage, root) as (folder, remote):
            yield TrialStore(train_tokens=root / TRAIN_TOKENS, dev_tokens=root / DEV_TOKENS, storage=folder, remote=remote)

    def folder(self, trial: Trial) -> TrialFolder:
        """The trial's folder."""
        return folder_of(trial, self.storage, self.remote)

    def use(self, name: str, note: str = "") -> None:
        """Stamp a thing of the storage as used (`Storage.use`)."""
        _opened(self).use(name, note)

    def result(self, trial: Trial, rule: EarlyStopping | None) -> TrialResult:
        """How a trial ended, after a download of what others have written. A stop under another rule does not count."""
        self.use(f"{TRIALS}/{trial.digest}")
        folder = self.folder(trial)
        folder.refresh()
        outcome, failure = folder.outcome(), folder.failure()
        stopped = folder.stop(rule) if outcome is None and failure is None else None
        failure = None if outcome or stopped else failure or "did not finish"
        return TrialResult(trial=trial, outcome=outcome, failure=failure, stopped=stopped)


@cache
def _opened(store: TrialStore) -> Storage:
    return Storage.open(store.remote or str(store.storage))


def folder_of(trial: Trial, storage: Path, remote: str | None) -> TrialFolder:
    """The folder of a trial; `storage` and `remote` are what `storage_here` returns."""
    return TrialFolder(trial, mirror_of(storage / TRIALS / trial.digest, remote, f"{TRIALS}/{trial.digest}"))


def pause(folders: Iterable[TrialFolder], search: str, patience: float) -> int:
    """Ask the trials of a search that are in training to write a checkpoint and exit, and wait at most `patience` seconds for
    them. Trials that another pipeline on the same storage is training are left alone.

    Returns:
        how many are still running after that.
    """
    left = [folder for folder in folders if folder.trained_for(search)]
    for folder in left:
        folder.ask_to_pause(search)
    deadline = time.monotonic() + patience
    while left and time.monotonic() < deadline:
        left = [folder for folder in left if folder.trained_for(search)]
        time.sleep(0.1)
    return len(left)


def weights_of(storage: Storage, name: str) -> str | None:
    """The content digest of a finished trial's model; None if the trial is not finished or its outcome cannot be read."""
    try:
        return str(json.loads(storage.read(f"{name}/{OUTCOME}") or "")["outcome"]["weights"])
    except (ValueError, KeyError, TypeError):
        return None
