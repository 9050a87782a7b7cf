"""Files of a storage that this node needs now or soon, within a limit. All processes of a user on the node share them.

A file is named by its SHA-256. Two locks (flock), which the kernel releases when a process ends: who reads files holds `.reading`
together with others, and who removes some holds it alone; one process at a time fetches files, and holds `.fetching`.
"""

from __future__ import annotations

import fcntl
import math
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from pipeline.storage.object_store import at_once, private_folder
from pipeline.utils.atomic_io import replacing, sha256_file
from pipeline.utils.errors import RunError

FOLDER = "files"
"""The folder of these files in `private_folder`."""


class FileCache:
    """Files by their SHA-256.

    Args:
        fetch: downloads the file with this sum to a path, and checks the sum.
        sizes: bytes of each file.
        limit: bytes that all such files on this node may have, those of other runs included; None: no limit.
    """

    def __init__(self, fetch: Callable[[str, Path], None], sizes: Mapping[str, int], limit: int | None) -> None:
        self._fetch, self._sizes, self.limit = fetch, sizes, limit
        self.folder = private_folder() / FOLDER
        self.folder.mkdir(exist_ok=True)
        # Of each file that was read: its inode, size and time.
        self._read: dict[str, tuple[int, int, int]] = {}

    def check_room(self, names: Collection[str]) -> None:
        """Check that these files have room together.

        Raises:
            RunError: they have not.
        """
        needed = sum(self._sizes[name] for name in names)
        if self.limit is not None and needed > self.limit:
            limit, least = f"{self.limit / 1e9:g}", f"{math.ceil(needed / 1e6) / 1e3:g} GB"
            raise RunError(
                f"execution.yaml: cluster.shard_cache_gb: got {limit}, but the shards that one batch reads have {least}; raise "
                "it to that, or have batches read fewer (train.block_rows in params.yaml)"
            )

    def hold(self, stack: ExitStack, names: Collection[str]) -> None:
        """Fetch the files that are missing. All of them stay until the stack ends, which must not wait for another process.

        Raises:
            RunError: they have no room, or one was changed after it was fetched.
            StorageError: one cannot be fetched.
        """
        self.check_room(names)
        stack.enter_context(self._locked(".reading", fcntl.LOCK_SH))
        if not all((self.folder / name).exists() for name in names):
            stack.close()
            with self._locked(".fetching"):
                self._bring(names, dict.fromkeys(names, 0))
                # Before another process may make room for its own files.
                stack.enter_context(self._locked(".reading", fcntl.LOCK_SH))
        for name in names:
            self._check(name)
            os.utime(self.folder / name, ns=(time.time_ns(), self._read[name][2]))

    def bring(self, names: Collection[str], soon: Mapping[str, int]) -> bool:
        """Fetch files ahead of time, as far as they have room.

        Args:
            soon: file → when it is needed. Those that are needed before these, or with them, make no room.
        """
        with self._locked(".fetching"):
            return self._bring(names, soon)

    def check(self, *, whole: bool = False) -> None:
        """Check that no file has changed since it was fetched, as `pipeline.data.token_store.Reading` does."""
        for name in list(self._read):
            with suppress(FileNotFoundError):
                self._check(name, whole=whole)

    def _check(self, name: str, *, whole: bool = False) -> None:
        file = self.folder / name
        found = file.stat()
        stamp = found.st_ino, found.st_size, found.st_mtime_ns
        # Another stamp says little: another process may have removed the file and fetched it again.
        if (whole or stamp != self._read.get(name)) and sha256_file(file) != name:
            raise RunError(f"{file}: has changed while it was read, so no result counts; remove it and run again")
        self._read[name] = stamp

    def _bring(self, names: Collection[str], soon: Mapping[str, int]) -> bool:
        missing = [name for name in names if not (self.folder / name).exists()]
        if self.limit is not None and missing:
            when = max(soon[name] for name in missing)
            # Of a process that was killed while it fetched.
            for part in self.folder.glob(".*.tmp"):
                part.unlink()
            files = {path: (soon.get(path.name, math.inf), path.stat()) for path in self.folder.glob("[!.]*")}
            room = self.limit - sum(found.st_size for _, found in files.values()) - sum(self._sizes[name] for name in missing)
            for path, (turn, found) in sorted(files.items(), key=lambda item: (-item[1][0], item[1][1].st_atime_ns)):
                if room >= 0 or turn <= when:
                    break
                with self._locked(".reading"):
                    path.unlink()
                room += found.st_size
            if room < 0:
                return False
        at_once(self._bring_one, missing)
        return True

    def _bring_one(self, name: str) -> None:
        with replacing(self.folder / name) as new:
            self._fetch(name, new)

    @contextmanager
    def _locked(self, name: str, how: int = fcntl.LOCK_EX) -> Iterator[None]:
        with (self.folder / name).open("a") as file:
            fcntl.flock(file, how)
            yield
