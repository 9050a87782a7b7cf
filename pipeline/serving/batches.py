"""Sends the requests of one model to its replicas, many requests in one call."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from pipeline.serving.limits import Refusal
from pipeline.serving.model import Answered, Job
from pipeline.serving.runtime import ReplicaDied, Send

CALLS = 2
"""Calls that a model is sent at once: it computes one while the other waits, so it is never idle in between."""
# Sentences in a call, at most, unless one request alone has more.
BATCH = 256
# How often requests are sent, alone and together, and seconds before they are sent again, which double.
_ATTEMPTS, _TOGETHER, _PAUSE = 6, 2, 0.05


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
        self._waiting: deque[tuple[Job, asyncio.Future[Answered]]] = deque()
        self._calls: set[asyncio.Task[None]] = set()

    async def answer(self, job: Job) -> Answered:
        """The answer to one request.

        Raises:
            Refusal: several replicas in a row died with it.
        """
        answer: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()
        self._waiting.append((job, answer))
        self._go()
        try:
            return await answer
        except asyncio.CancelledError:
            # Replicas that hang take no batch, in which it would be left out; it must not be kept until they do.
            self._waiting = deque(entry for entry in self._waiting if entry[1] is not answer)
            raise

    def _go(self) -> None:
        while len(self._calls) < CALLS * self.replicas and (batch := self._next()):
            call = asyncio.create_task(self._call(batch))
            self._calls.add(call)
            call.add_done_callback(self._done)

    def _done(self, call: asyncio.Task[None]) -> None:
        self._calls.discard(call)
        self._go()

    def _next(self) -> list[tuple[Job, asyncio.Future[Answered]]]:
        """The oldest requests that fit into a batch, at least one if any waits. Requests that were given up are left out."""
        batch: list[tuple[Job, asyncio.Future[Answered]]] = []
        size = 0
        while self._waiting:
            job, answer = self._waiting[0]
            if not answer.cancelled():
                size += len(job.first) + len(job.second)
                # Writing takes far longer than all else, so other requests do not wait for it in the same call.
                if batch and (size > BATCH or job.write != batch[0][0].write):
                    break
                batch.append((job, answer))
            self._waiting.popleft()
        return batch

    async def _call(self, batch: list[tuple[Job, asyncio.Future[Answered]]]) -> None:
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
