"""Reads the corpus that a model has encoded, when the model becomes champion or later."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from pipeline.inference.corpus import NotEncoded
from pipeline.registry.following import VERSION, retry_pause
from pipeline.serving.corpora import Searchable
from pipeline.serving.served import Served
from pipeline.utils.errors import UserError, last_line
from pipeline.utils.logs import log

# Seconds between two looks for a corpus that the model has encoded.
_POLL = 10.0
# Seconds that a champion waits for its corpus. Searches need it; all other requests, least of all after a rollback, do not.
_PATIENCE = 30.0


class CorpusReader:
    """Reads corpora, one at a time, because each takes much memory. Its attributes belong to the event loop."""

    def __init__(self, folders: Sequence[str], answering: Callable[[], Served | None]) -> None:
        """Args:
        folders: where corpora are, with `VERSION` in place of the version's number.
        answering: gives the version that answers now.
        """
        self.folders = folders
        self._answering = answering
        self._readers = ThreadPoolExecutor(1, "corpus")
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
        served.corpus_at = math.inf
        try:
            served.corpus = await asyncio.get_running_loop().run_in_executor(self._readers, _corpus_of, served)
            served.corpus_at = 0.0
        except NotEncoded as error:
            served.no_corpus, served.corpus_at = str(error), 0.0
        except Exception as error:
            # Also if there is too little memory: whatever happens, the model can answer all other requests. To read a corpus in
            # vain is expensive, so it is done less and less often.
            served.corpus_failures += 1
            served.corpus_at = time.monotonic() + retry_pause(served.corpus_failures)
            served.no_corpus = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {last_line(error)}"
        else:
            if served.corpus is None:
                served.no_corpus = f"it encoded none of the corpora ({', '.join(self.of_version(served.number))})"
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


def _corpus_of(served: Served) -> Searchable | None:
    # Its turn may come only after another model has taken its place.
    return None if served.ended else served.find_corpus()
