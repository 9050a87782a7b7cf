"""The shards of a token store of which a node fetches only those that a training run reads, ahead of time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.data.token_store import MISSING, SENTENCES, Int32s, Shard, TokenStore, map_shard, read_manifest, shard_names
from pipeline.storage.file_cache import FileCache
from pipeline.storage.object_store import place_of
from pipeline.utils.errors import StorageError

AHEAD = 16
"""Steps whose shards are fetched while the steps before them are trained."""
_CHECKED = 10_000


class FetchedShards(Sequence[Shard]):
    """The shards of a store on a storage, mapped when they are used.

    With a limit only the shards of one batch are mapped, while it is made: a removed file takes space as long as it is mapped.

    Args:
        shared: the store's name for `pipeline.storage.object_store.found`.
        limit: as in `FileCache`.

    Raises:
        StorageError: the storage does not have the store, or cannot be reached.
    """

    def __init__(self, shared: str, limit: int | None) -> None:
        storage, place, digest = place_of(shared)
        self.directory = storage.local(digest, without=f"{SENTENCES}/") if digest else Path(shared)
        self._manifest = read_manifest(self.directory)
        self._sums = [self._manifest["sha256"][name] for name in shard_names(self._manifest)]
        names = {self._manifest["sha256"][name]: place + name for name in shard_names(self._manifest)}
        entries = storage.entries(place + SENTENCES)
        # Fetching says which one is missing.
        sizes = {key: entries[name].bytes if name in entries else 0 for key, name in names.items()}

        def fetch(key: str, to: Path) -> None:
            if digest:
                # Of a run that takes weeks, `gausscse gc` must not remove the store.
                storage.use(Path(place).parent.as_posix())
            storage.fetch(names[key], to, key)

        self._cache = FileCache(fetch, sizes, limit)
        self.check, self._limited = self._cache.check, limit is not None
        self.fits = limit is None or sum(sizes.values()) <= limit
        """Whether the limit has room for all of them."""
        self._mapped: dict[int, Shard] = {}
        self._held = ExitStack()
        self._pool = ThreadPoolExecutor(1)
        self._ahead: Future[None] | None = None

    def __len__(self) -> int:
        return len(self._sums)

    def __getitem__(self, number: Any) -> Any:
        """A shard. One that is not mapped is fetched, and takes the place of those that are."""
        if number not in self._mapped:
            self._map([number])
        return self._mapped[number]

    def store(self) -> TokenStore:
        """The store with these shards."""
        kept = self._manifest
        return TokenStore(self, kept["shard_sentences"], int(kept["pad_id"]), self.directory, kept["sentences"])

    def plan(self, sentences: Callable[[int], Int32s], epoch: int) -> None:
        """Say which sentences a step reads, and how many steps an epoch has.

        Raises:
            RunError: the shards of a step have no room, of 10,000 or fewer that are spread over the first epoch.
        """

        def needed(step: int) -> list[int]:
            numbers = sentences(step)
            return np.unique(numbers[numbers != MISSING] // self._manifest["shard_sentences"]).tolist()

        self._needed, self._epoch = lru_cache(2 * AHEAD)(needed), epoch
        # Half a millisecond each. `at` checks the others when they come.
        for step in range(0, 0 if self.fits else epoch, -(-epoch // _CHECKED)):
            self._cache.check_room(self._names(needed(step)))

    @contextmanager
    def at(self, step: int) -> Iterator[None]:
        """Have the shards of a step while the block runs, and fetch those of the steps after it in the background."""
        self._map(self._needed(step))
        if self._ahead is None or self._ahead.done():
            # If the storage fails for good, the step that needs the shard says so.
            if self._ahead is not None and not isinstance(error := self._ahead.exception(), StorageError | None):
                raise error
            # The order of another epoch would take as much memory as that of this one.
            last = (step // self._epoch + 1) * self._epoch
            self._ahead = self._pool.submit(self._bring, range(step + 1, min(step + 1 + AHEAD, last)))
        try:
            yield
        finally:
            self.drop()

    def drop(self) -> None:
        """Let shards be removed to make room."""
        if self._limited:
            self._mapped.clear()
        self._held.close()

    def close(self) -> None:
        """End what runs in the background."""
        self.drop()
        self._pool.shutdown(cancel_futures=True)

    def _bring(self, steps: Sequence[int]) -> None:
        names = {step: self._names(self._needed(step)) for step in steps}
        soon = {name: step for step in reversed(steps) for name in names[step]}
        all(self._cache.bring(names[step], soon) for step in steps)

    def _map(self, numbers: Sequence[int]) -> None:
        self.drop()
        missing = [number for number in numbers if number not in self._mapped]
        self._cache.hold(self._held, self._names(missing))
        self._mapped |= {number: map_shard(self._cache.folder / self._sums[number]) for number in missing}

    def _names(self, numbers: Sequence[int]) -> list[str]:
        return [self._sums[number] for number in numbers]
