"""How requests become batches, without a model: the sender of these tests answers each request with its first sentence."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from ray.exceptions import OutOfMemoryError, RayActorError
from ray.serve.exceptions import ReplicaUnavailableError

from pipeline.serving import batches
from pipeline.serving.batches import BATCH, CALLS, PIECE, Batches
from pipeline.serving.limits import Refusal
from pipeline.serving.model import Job
from pipeline.serving.replica import sender

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "_PAUSE", 0.0)


class Sender:
    """Keeps each batch until it is let go."""

    def __init__(self) -> None:
        self.sent: list[list[Job]] = []
        self.resent = 0
        self.deaths, self.death = 0, Exception()
        self.deadly: str | None = None
        self.error: Exception | None = None
        self.gate = asyncio.Event()
        self.batches = Batches(sender(self.send), self.count)

    def count(self) -> None:
        self.resent += 1

    async def send(self, jobs: list[Job]) -> list[Any]:
        self.sent.append(jobs)
        if self.deaths:
            self.deaths -= 1
            raise self.death
        await self.gate.wait()
        if self.deadly in [job.first[0] for job in jobs]:
            raise RayActorError
        if self.error is not None:
            raise self.error
        return [[float(job.first[0])] for job in jobs]

    def ask(self, number: int, sentences: int = 1) -> asyncio.Task[Any]:
        return asyncio.create_task(self.batches.answer(Job("means", [str(number)] * sentences)))

    def sizes(self) -> list[int]:
        return [len(jobs) for jobs in self.sent]


async def turn() -> None:
    """Let all other tasks run until they wait."""
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.parametrize("replicas", [1, 3])
async def test_what_arrives_while_the_replicas_are_busy_is_one_batch(replicas: int) -> None:
    sender = Sender()
    sender.batches.replicas = replicas
    asked = [sender.ask(0)]
    await turn()
    assert sender.sizes() == [1], "an idle model waits for nothing"
    for number in range(1, 40):
        asked.append(sender.ask(number))
        await turn()
    calls = replicas * CALLS
    assert sender.sizes() == [1] * calls
    sender.gate.set()
    assert await asyncio.gather(*asked) == [[float(number)] for number in range(40)]
    assert sender.sizes() == [1] * calls + [40 - calls]


async def test_a_client_that_is_alone_again_and_again_does_not_get_call_after_call() -> None:
    """Of many clients, those whose call ended first would keep one call each, while all others wait for the other call."""
    ends: list[asyncio.Future[None]] = []
    sizes: list[int] = []

    async def send(jobs: list[Job]) -> list[Any]:
        sizes.append(len(jobs))
        ends.append(asyncio.get_running_loop().create_future())
        await ends[-1]
        return [[1.0] for _ in jobs]

    one = Batches(send, lambda: None)
    asked: list[asyncio.Task[Any]] = []

    async def ask(number: int) -> None:
        asked.extend(asyncio.create_task(one.answer(Job("means", ["a"]))) for _ in range(number))
        await turn()

    async def end(call: int) -> None:
        ends[call].set_result(None)
        await turn()

    # Idle, it waits for nothing, and while one request is computed, neither.
    await ask(22)
    assert sizes == [1, 1]
    # All that wait are worth a call next to the other one.
    await end(0)
    assert sizes == [1, 1, 20]
    await end(1)
    # One of the clients comes back. It waits, until there are enough, or until the other call ends.
    await ask(1)
    assert sizes == [1, 1, 20]
    await ask(6)
    assert sizes == [1, 1, 20]
    await ask(1)
    assert sizes == [1, 1, 20, 8]
    await ask(3)
    await end(2)
    assert sizes == [1, 1, 20, 8]
    await end(3)
    assert sizes == [1, 1, 20, 8, 3]
    await end(4)
    await asyncio.gather(*asked)


async def test_what_waits_is_divided_between_free_calls() -> None:
    ends = asyncio.Event()
    sizes: list[int] = []

    async def send(jobs: list[Job]) -> list[Any]:
        sizes.append(len(jobs))
        await ends.wait()
        return [[1.0] for _ in jobs]

    one = Batches(send, lambda: None)
    one._calls[asyncio.current_task()] = 1  # type: ignore[index]
    one._calls[asyncio.create_task(asyncio.sleep(0))] = 1
    asked = [asyncio.create_task(one.answer(Job("means", ["a"]))) for _ in range(40)]
    await turn()
    assert sizes == []
    one._calls.clear()
    one._go()
    await turn()
    assert sizes == [20, 20]
    ends.set()
    await asyncio.gather(*asked)


async def test_a_batch_of_small_requests_has_at_most_its_sentences() -> None:
    sender = Sender()
    asked = [sender.ask(number, PIECE) for number in range(CALLS + BATCH // PIECE + 1)]
    await turn()
    sender.gate.set()
    await asyncio.gather(*asked)
    assert sender.sizes() == [1] * CALLS + [BATCH // PIECE, 1]


async def test_large_requests_take_turns_and_leave_a_call_to_small_ones() -> None:
    sender = Sender()
    sender.gate.set()
    await sender.ask(0)
    sender.gate.clear()
    large = [sender.ask(number, 3 * PIECE) for number in (1, 2)]
    await turn()
    assert sender.sizes() == [1, 1], "the other call is free"
    small = sender.ask(3)
    await turn()
    assert [job.first[0] for jobs in sender.sent for job in jobs] == ["0", "1", "3"]
    sender.gate.set()
    assert (await small, await asyncio.gather(*large)) == ([3.0], [[1.0] * 3, [2.0] * 3])
    assert [job.first[0] for jobs in sender.sent for job in jobs] == ["0", "1", "3", "1", "2", "1", "2", "2"]
    assert sender.batches._large_calls == set()


async def test_without_small_requests_pieces_are_sent_together() -> None:
    sender = Sender()
    large = [sender.ask(number, 3 * PIECE) for number in (1, 2)]
    writes = asyncio.create_task(sender.batches.answer(Job("fuse", ["3"] * 2 * PIECE, write=True)))
    await turn()
    sender.gate.set()
    assert await asyncio.gather(*large, writes) == [[1.0] * 3, [2.0] * 3, [3.0] * 2]
    assert all(len({job.write for job in jobs}) == 1 for jobs in sender.sent)
    assert max(sender.sizes()) == 3


@pytest.mark.parametrize("writes", [False, True])
async def test_a_small_request_does_not_wait_for_the_end_of_a_large_one(writes: bool) -> None:
    sender = Sender()
    job = Job("fuse", ["1"] * PIECE, write=True) if writes else Job("means", ["1"] * 4 * PIECE)
    large = asyncio.create_task(sender.batches.answer(job))
    await turn()
    assert len(sender.sent) == 1
    small = sender.ask(2)
    await turn()
    assert [jobs[0].first[0] for jobs in sender.sent] == ["1", "2"]
    sender.gate.set()
    await asyncio.gather(large, small)


async def test_a_large_request_that_writes_takes_turns_with_others() -> None:
    sender = Sender()
    writes = asyncio.create_task(sender.batches.answer(Job("fuse", ["3"] * 2 * BATCH, write=True)))
    await turn()
    plain = sender.ask(1, 2 * PIECE)
    await turn()
    sender.gate.set()
    await asyncio.gather(writes, plain)
    # One call is on its way when the other request comes.
    assert [jobs[0].write for jobs in sender.sent].index(False) <= 2


async def test_long_texts_make_small_pieces() -> None:
    sender = Sender()
    sender.gate.set()
    asked = Job("means", ["1" * 300] * 64, [f"{row}" * 9_000 for row in range(64)])
    await sender.batches.answer(asked)
    sent = [job for jobs in sender.sent for job in jobs]
    assert [len(job.first) for job in sent] == [1] * 64
    assert [text for job in sent for text in job.second] == asked.second


async def test_a_large_request_that_fails_or_is_given_up_sends_nothing_more() -> None:
    sender = Sender()
    sender.gate.set()
    sender.error = ValueError("broken")
    with pytest.raises(ValueError, match="broken"):
        await sender.ask(1, 4 * PIECE)
    await turn()
    sent = len(sender.sent)
    await turn()
    assert len(sender.sent) == sent
    sender.gate.clear()
    sender.sent, sender.error = [], None
    given_up = sender.ask(2, 4 * BATCH)
    await turn()
    given_up.cancel()
    sender.gate.set()
    assert await sender.ask(3, 2 * PIECE) == [3.0, 3.0]
    assert [{job.first[0] for job in jobs} for jobs in sender.sent] == [{"2"}, {"3"}]


async def test_a_request_that_was_given_up_is_not_sent() -> None:
    sender = Sender()
    asked = [sender.ask(number) for number in range(CALLS)]
    await turn()
    late, kept = sender.ask(77), sender.ask(78)
    await turn()
    late.cancel()
    sender.gate.set()
    await asyncio.gather(*asked, kept)
    assert [job.first for job in sender.sent[-1]] == [["78"]]


@pytest.mark.parametrize(
    "fault", [RayActorError(), OutOfMemoryError("a node is short of memory"), ReplicaUnavailableError("one")]
)
async def test_a_batch_whose_replica_died_is_sent_again(fault: Exception) -> None:
    sender = Sender()
    sender.gate.set()
    sender.deaths, sender.death = 3, fault
    assert await sender.ask(5) == [5.0]
    assert sender.resent == 3
    sender.deaths = 100
    with pytest.raises(Refusal, match="6 replicas died"):
        await sender.ask(6)


async def test_a_deadly_request_takes_no_other_of_its_batch_along() -> None:
    sender = Sender()
    asked = [sender.ask(number) for number in range(CALLS)]
    await turn()
    sender.deadly = "21"
    asked += [sender.ask(number) for number in range(CALLS, 40)]
    sender.gate.set()
    got = await asyncio.gather(*asked, return_exceptions=True)
    assert sender.sizes()[CALLS : CALLS + 2] == [40 - CALLS] * 2, "together at first"
    assert isinstance(got[21], Refusal)
    assert str(got[21]).startswith("6 replicas died with this request")
    assert [answer for number, answer in enumerate(got) if number != 21] == [[float(n)] for n in range(40) if n != 21]


async def test_an_error_reaches_each_request_of_its_batch() -> None:
    sender = Sender()
    sender.error = ValueError("broken")
    asked = [sender.ask(number) for number in range(8)]
    await turn()
    sender.gate.set()
    got = await asyncio.gather(*asked, return_exceptions=True)
    assert [str(error) for error in got] == ["broken"] * 8
    sender.error = None
    assert await sender.ask(9) == [9.0]
