"""A folder of the storage that is named by everything its files depend on: the scores of a model, or a fitted relation head."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.identity.digests import library_versions, other_versions
from pipeline.storage.sync import Mirror, mirror_of
from pipeline.trials.store import TrialStore
from pipeline.utils.atomic_io import check_sums, read_json, sha256_json, write_directory, write_json, write_sums
from pipeline.utils.errors import UserError

# The versions of the libraries that computed the files.
_VERSIONS = "versions.json"


@dataclass(frozen=True, slots=True)
class Kept:
    """The folder; if the storage is remote, this machine's copy of it."""

    folder: Path
    mirror: Mirror

    @staticmethod
    def of(where: str, what: Mapping[str, Any], trials: TrialStore, note: str) -> Kept:
        """The folder for `what` below the folder `where` of the storage; `note` is kept for `gausscse gc`."""
        key = sha256_json(what)
        trials.use(f"{where}/{key}", note=note)
        mirror = mirror_of(trials.storage / where, trials.remote, where)
        mirror.pull(key)
        return Kept(trials.storage / where / key, mirror)

    @property
    def complete(self) -> bool:
        """Whether its files exist, and none is damaged."""
        try:
            check_sums(self.folder)
        except UserError:
            return False
        return True

    @property
    def other_versions(self) -> str:
        """The libraries whose versions differ from those that computed the files, in words; empty if there are none."""
        return other_versions([read_json(self.folder / _VERSIONS)])

    def write(self, files: Callable[[Path], object]) -> None:
        """Fill the folder, here and in the storage; `files` writes into a folder."""
        try:
            with write_directory(self.folder) as folder:
                files(folder)
                write_json(folder / _VERSIONS, library_versions())
                write_sums(folder)
        except OSError:
            # Another pipeline on this storage may have computed the same at the same time; its files are just as good.
            if not self.complete:
                raise
        self.mirror.push(self.folder.name)
