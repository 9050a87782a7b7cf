"""Search in corpora that `gausscse encode` wrote; each is read when the model that encoded it becomes champion, or later."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import torch

from pipeline.inference.corpus import NotEncoded, model_of
from pipeline.inference.entailment_index import Searchable
from pipeline.models.relation_head import Relation, ScoreKind
from pipeline.registry.following import VERSION
from pipeline.utils.errors import UserError, last_line
from pipeline.utils.logs import log

if TYPE_CHECKING:
    from pipeline.serving.served import Served

# Seconds between two looks for a corpus that the model has encoded, and after a corpus could not be read, which is expensive.
_POLL, _RETRY = 10.0, 300.0
# Seconds that a champion waits for its corpus. Searches need it; all other requests, least of all after a rollback, do not.
_PATIENCE = 30.0


def searchable(folders: Sequence[str], digest: str, kind: ScoreKind, relation: Relation | None) -> Searchable | None:
    """The first corpus that the model with this `embeddings_digest` encoded; None if it encoded none of them.

    Raises:
        NotEncoded: it encoded none, and a folder has no complete corpus.
        UserError: it encoded none, and a corpus is damaged or cannot be read.
    """
    problem: UserError | None = None
    for folder in folders:
        try:
            if model_of(folder) == digest:
                return Searchable.read(folder, kind, relation)
        except UserError as error:
            # One that is damaged says more than one that is still missing.
            problem = error if problem is None or isinstance(problem, NotEncoded) else problem
    if problem is not None:
        raise problem
    return None


class CorpusReader:
    """Reads corpora, one at a time, because each takes much memory. Its attributes belong to the event loop."""

    def __init__(self, folders: Sequence[str], answering: Callable[[], Served | None]) -> None:
        """Args:
        folders: where corpora are, with `VERSION` in place of the version's number.
        answering: gives the version that answers now.
        """
        self.folders = folders
        self._answering = answering
        self._readers = ThreadPoolExecutor(1, "corpus", torch.set_num_threads, (torch.get_num_threads(),))
        self._reading: set[asyncio.Task[None]] = set()

    def of_version(self, number: int) -> list[str]:
        """The folders of a version."""
        return [folder.replace(VERSION, str(number)) for folder in self.folders]

    async def begin(self, served: Served) -> None:
        """Begin to read the corpus of a version that does not answer yet. Returns when it is read, or after `_PATIENCE`."""
        # The event loop itself keeps no task alive.
        task = asyncio.create_task(self.read(served))
        self._reading.add(task)
        task.add_done_callback(self._reading.discard)
        await asyncio.wait({task}, timeout=_PATIENCE)

    async def look(self) -> None:
        """Look for the corpus of the version that answers, again and again: it may be encoded later."""
        while True:
            await asyncio.sleep(_POLL)
            served = self._answering()
            if served is not None and served.corpus is None and self.folders and time.monotonic() >= served.corpus_at:
                await self.read(served)

    async def read(self, served: Served) -> None:
        """Read the corpus of a version, or note why it has none; nothing is raised."""
        if not self.folders:
            served.no_corpus = "the server was started without --corpus"
            return
        before = served.no_corpus = served.no_corpus or "its corpus is being read"
        # Nobody else reads it meanwhile.
        served.corpus_at, pause = math.inf, 0.0
        try:
            # Its turn may come only after another model has taken its place.
            served.corpus = await asyncio.get_running_loop().run_in_executor(
                self._readers, lambda: None if served.ended else served.find_corpus()
            )
            served.no_corpus = f"with this engine it encoded none of {', '.join(self.of_version(served.number))}"
        except Exception as error:
            # Also if there is too little memory: whatever happens, the model can answer all other requests.
            served.no_corpus = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {last_line(error)}"
            pause = 0.0 if isinstance(error, NotEncoded) else _RETRY
        served.corpus_at = time.monotonic() + pause
        # Of a version that does not answer yet, the follower says it.
        if served is self._answering():
            if served.corpus is not None:
                log.info(f"serve: {served.model} searches now; it has encoded a corpus")
            elif served.no_corpus != before:
                log.warning(f"serve: {served.model} does not search: {served.no_corpus}")

    def close(self) -> None:
        """Wait for no corpus any more. A thread that reads one goes on to its end."""
        for task in self._reading:
            task.cancel()
        self._readers.shutdown(wait=False, cancel_futures=True)
