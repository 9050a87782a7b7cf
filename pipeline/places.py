"""Where a run reads and writes: token stores, and the storage with a folder for each trial, on this machine or mirrored there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from pipeline.mirror import Mirror
from pipeline.progress import LOG, RECORDS
from pipeline.project import DEV_TOKENS, TRAIN_TOKENS, home
from pipeline.storage import Storage, private_folder
from pipeline.trial import BEST, FAILURE, LATEST, OUTCOME, PREVIOUS, STOPPED, Trial, weights_named

TRIALS = "trials"
_SMALL = (OUTCOME, FAILURE, STOPPED, RECORDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where a run reads and writes: token stores, and the storage."""

    train_tokens: Path
    dev_tokens: Path
    storage: Path
    """The storage itself where it is a folder, which all processes see; else this process's own folder, kept like it."""
    remote: str | None = None
    """cluster.storage where it is no folder."""

    @staticmethod
    @contextmanager
    def of_project(root: Path, storage: str) -> Iterator[Places]:
        """The places of the project in a folder, for as long as the block runs; `storage` is its cluster.storage."""
        with storage_here(storage, root) as (folder, remote):
            yield Places(train_tokens=root / TRAIN_TOKENS, dev_tokens=root / DEV_TOKENS, storage=folder, remote=remote)

    def folder(self, trial: Trial) -> Path:
        """The trial's folder in the ledger."""
        return self.storage / TRIALS / trial.digest

    def mirror(self, trial: Trial) -> Mirror:
        """The trial's folder and its copy in the storage."""
        return mirror_of(self.folder(trial), self.remote)

    def look(self, trials: Iterable[Trial]) -> None:
        """See what others have written in the folders of trials."""
        for trial in trials:
            look(self.mirror(trial))


@contextmanager
def storage_here(storage: str, root: Path) -> Iterator[tuple[Path, str | None]]:
    """The folder in which this process has the storage, and the storage's name where that is another thing."""
    opened = Storage.open(storage, home(root))
    if opened.folder is not None:
        yield opened.folder, None
    else:
        with TemporaryDirectory(prefix="storage-", dir=private_folder()) as own:
            yield Path(own), storage


@cache
def mirror_of(folder: Path, remote: str | None) -> Mirror:
    """The mirror of a folder of the storage (a trial's, or that of the scores), which is made if need be."""
    if remote is None:
        return Mirror(folder)
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{folder.parent.name}/{folder.name}" if folder.parent.name == TRIALS else folder.name
    return Mirror(folder, Storage.open(remote), name)


def look(mirror: Mirror) -> None:
    """Fetch what others have written of a trial; once it is finished, the model that its outcome names too."""
    mirror.pull(*_SMALL)
    if (weights := weights_named(mirror.folder)) is not None:
        mirror.pull(BEST, version=weights)


def show(mirror: Mirror) -> None:
    """Show a finished trial to others: send the model before the outcome that names it, then remove the checkpoints."""
    if (weights := weights_named(mirror.folder)) is not None:
        mirror.push(BEST, version=weights)
    mirror.push(RECORDS, LOG, OUTCOME, PREVIOUS, LATEST)
