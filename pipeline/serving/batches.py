"""Sends the requests of one model to its replicas, many requests in one call."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import numpy as np

from pipeline.gaussian.distribution import Gaussian
from pipeline.serving.limits import Refusal
from pipeline.serving.model import Answered, Job
from pipeline.serving.runtime import CALLS, ReplicaDied, Send

# Sentences in a call of small requests, at most; and requests that are worth a call of their own while another one is computed.
BATCH, _ENOUGH = 256, 8
PIECE = 8
"""Sentences in a piece of a larger request. After a small request, they are sent one by one, so that the next one waits for one
piece at most, and else as many as a batch has."""
# Characters for each sentence of a piece: longer ones take longer. Seconds after which no small request is expected.
_CHARACTERS, _QUIET = 512, 10.0
# How often requests are sent, alone and together, and seconds before they are sent again, which double.
_ATTEMPTS, _TOGETHER, _PAUSE = 6, 2, 0.05


_Entry = tuple[Job, asyncio.Future[Answered]]


class Batches:
    """Requests that wait for a model. A batch is what gathered while the replicas were busy; an idle model waits for nothing.

    Ray Serve's own batches (`serve.batch`) gather in the replica and close after a fixed time, although the model still computes
    the batch before. With a request every few milliseconds, each became a batch; and each cost a call of its own.
    """

    def __init__(self, send: Send, on_resend: Callable[[], None], seconds: float | None = None, replicas: int = 1) -> None:
        """Args:
        send: sends a batch to a replica.
        on_resend: called whenever a batch, or a request of it, is sent again after a failure.
        seconds: after which nobody waits for an answer any more, so a call that takes longer is given up.
        replicas: how many run at the start.
        """
        self.replicas = replicas
        """Replicas that run; each gets `CALLS` calls at once."""
        self.seconds = seconds
        self._send, self._on_resend = send, on_resend
        self._waiting: deque[_Entry] = deque()
        # The pieces of each larger request. A replica has at most one of their calls, so that the other one is free.
        self._large: deque[deque[_Entry]] = deque()
        self._last_small = -math.inf
        self._large_calls: set[asyncio.Task[None]] = set()
        # Each call, and its requests.
        self._calls: dict[asyncio.Task[None], int] = {}

    async def answer(self, job: Job) -> Answered:
        """The answer to one request.

        Raises:
            Refusal: several replicas in a row died with it.
        """
        loop = asyncio.get_running_loop()
        entries: deque[_Entry] = deque((piece, loop.create_future()) for piece in _pieces(job))
        answers = [answer for _, answer in entries]
        if len(entries) > 1:
            self._large.append(entries)
        else:
            self._waiting += entries
            self._last_small = loop.time()
        self._go()
        try:
            return _merged(await asyncio.gather(*answers))
        except BaseException:
            # Given up, or a piece failed. Replicas that hang take no batch, in which the rest would be left out.
            for answer in answers:
                answer.cancel()
            entries.clear()
            self._waiting = deque(entry for entry in self._waiting if not entry[1].done())
            raise

    def _go(self) -> None:
        while len(self._calls) < CALLS * self.replicas and (batch := (pieces := self._next_pieces()) or self._next()):
            call = asyncio.create_task(self._call(batch))
            # What is written takes so long that nothing waits for its end.
            self._calls[call] = 0 if batch[0][0].write else len(batch)
            if pieces:
                self._large_calls.add(call)
            call.add_done_callback(self._done)

    def _done(self, call: asyncio.Task[None]) -> None:
        del self._calls[call]
        self._large_calls.discard(call)
        self._go()

    def _next_pieces(self) -> list[_Entry]:
        """Pieces of the larger requests, which take turns."""
        batch: list[_Entry] = []
        quiet = asyncio.get_running_loop().time() - self._last_small > _QUIET
        while self._large and len(self._large_calls) < self.replicas and len(batch) < (BATCH // PIECE if quiet else 1):
            pieces = self._large[0]
            if batch and pieces and pieces[0][0].write != batch[0][0].write:
                # Its turn comes with the next call.
                break
            self._large.popleft()
            if pieces:
                self._large.append(pieces)
                batch.append(pieces.popleft())
        return batch

    def _next(self) -> list[_Entry]:
        """The oldest requests that fit into a batch. Requests that were given up are left out.

        While a call is computed, a few requests wait for its end or for others: otherwise one client, whose request is always the
        only one, would get call after call.
        """
        batch: list[_Entry] = []
        size, free = 0, CALLS * self.replicas - len(self._calls)
        small = [number for call, number in self._calls.items() if call not in self._large_calls]
        if small and len(self._calls) >= self.replicas and len(self._waiting) < min(_ENOUGH, max(small)):
            return batch
        # The rest is for the other calls.
        most = max(_ENOUGH, math.ceil(len(self._waiting) / free))
        while self._waiting and len(batch) < most:
            job, answer = self._waiting[0]
            if not answer.cancelled():
                size += len(job.first) + len(job.second)
                # Writing takes far longer than all else, so other requests do not wait for it in the same call.
                if batch and (size > BATCH or job.write != batch[0][0].write):
                    break
                batch.append((job, answer))
            self._waiting.popleft()
        return batch

    async def _call(self, batch: list[_Entry]) -> None:
        try:
            answers = await self._answers([job for job, _ in batch])
        except BaseException as error:
            # After the time limit nobody waits any more.
            if len(batch) > 1 and isinstance(error, Exception) and not isinstance(error, TimeoutError):
                # One request may be what the replicas die of. Each is sent alone, so that only this one gets no answer.
                for entry in batch:
                    if not entry[1].done():
                        self._on_resend()
                        await self._call([entry])
                return
            for _, answer in batch:
                if not answer.done():
                    answer.set_exception(error if isinstance(error, Exception) else Refusal(503, "the server ends"))
            if not isinstance(error, Exception):
                raise
            return
        for (_, answer), got in zip(batch, answers, strict=True):
            if not answer.done():
                answer.set_result(got)

    async def _answers(self, jobs: list[Job]) -> list[Answered]:
        attempts = _TOGETHER if len(jobs) > 1 else _ATTEMPTS
        for attempt in range(attempts):
            if attempt:
                await asyncio.sleep(_PAUSE * 2 ** (attempt - 1))
            try:
                async with asyncio.timeout(self.seconds):
                    return await self._send(jobs)
            except ReplicaDied:
                if attempt < attempts - 1:
                    self._on_resend()
        raise Refusal(503, f"{attempts} replicas died with this request; send less at once, or try later")


def _pieces(job: Job) -> list[Job]:
    """The job in parts that take about equally long."""
    sentences, characters = len(job.first) + len(job.second), sum(map(len, job.first)) + sum(map(len, job.second))
    number = max(math.ceil(sentences / PIECE), math.ceil(characters / (PIECE * _CHARACTERS)))
    step = math.ceil(len(job.first) / number)
    starts = range(0, len(job.first), step)
    return [job._replace(first=job.first[at : at + step], second=job.second[at : at + step]) for at in starts]


def _merged(parts: Sequence[Any]) -> Any:
    """The answer to a request from those to its pieces."""
    if len(parts) == 1:
        return parts[0]
    match parts[0]:
        case Gaussian():
            return Gaussian.cat(parts)
        case np.ndarray():
            return np.concatenate(parts)
        case list():
            return [*chain.from_iterable(parts)]
        case tuple():
            return type(parts[0])(*map(_merged, zip(*parts, strict=True)))
        case None:
            return None
        case _:
            return sum(parts)
