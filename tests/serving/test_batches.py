"""How requests become batches, without a model: the sender of these tests answers each request with its first sentence."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from ray.exceptions import OutOfMemoryError, RayActorError
from ray.serve.exceptions import ReplicaUnavailableError

from pipeline.serving import batches
from pipeline.serving.batches import BATCH, CALLS, Batches
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


async def test_a_batch_has_at_most_its_sentences_unless_one_request_has_more() -> None:
    sender = Sender()
    asked = [sender.ask(number) for number in range(CALLS)]
    await turn()
    half = BATCH // 2
    asked += [sender.ask(number, size) for number, size in enumerate([half, half, 1, 2 * BATCH, 1])]
    await turn()
    sender.gate.set()
    await asyncio.gather(*asked)
    assert sorted(sum(len(job.first) for job in jobs) for jobs in sender.sent[-4:]) == [1, 1, BATCH, 2 * BATCH]


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
