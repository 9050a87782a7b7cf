"""Operators by HTTP, with the front, the batches and a replica in this process."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch
from starlette.testclient import TestClient

from pipeline.families.operations.encoder import Encoder
from pipeline.serving.batches import Batches
from pipeline.serving.bodies import ANSWERS
from pipeline.serving.champion import ChampionFollower
from pipeline.serving.model import Job
from pipeline.serving.replica import Replica
from tests.operator_encoder import operator_encoder
from tests.serving.test_front import a_version, opened

A, B = ["A dog runs.", "An animal sleeps."], ["A child sings.", "Nobody eats."]


def front(folder: Path, *, operates: bool = True, writes: bool = True) -> tuple[ChampionFollower, TestClient]:
    champion, client = opened()
    batches = Batches(Replica(str(folder), 1, "cpu").answers, lambda: None)
    champion.served = a_version(batches, model="operators/7", operations=Encoder.operations if operates else {}, writes=writes)
    return champion, client


@pytest.mark.parametrize("operator", ["fuse", "difference", "compress"])
def test_operators_and_decoder_are_the_encoders(operator_model: Path, operator: str) -> None:
    encoder, client = operator_encoder(operator_model), front(operator_model)[1]
    sides = {"a": A} if operator == "compress" else {"a": A, "b": B}
    expected: torch.Tensor = getattr(encoder, operator)(*sides.values())
    answer = client.post("/operate", json={"operator": operator, **sides}).json()
    assert (answer["model"], answer["text"]) == ("operators/7", None)
    assert answer.keys() == ANSWERS["/operate"].keys()
    torch.testing.assert_close(torch.tensor(answer["mean"]), expected, rtol=1e-5, atol=1e-5)
    assert client.get("/health").json()["serving"]["operations"] == ["fuse", "difference", "compress"]
    answer = client.post("/operate", json={"operator": operator, **sides, "write": True}).json()
    assert answer["text"] == encoder.decode(expected)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"operator": "fuse", "a": A}, "b: fuse takes two sentences, a and b"),
        ({"operator": "compress", "a": A, "b": B}, "b: compress takes no b"),
    ],
)
def test_a_wrong_number_of_sentences_is_refused(operator_model: Path, body: dict[str, Any], message: str) -> None:
    answer = front(operator_model)[1].post("/operate", json=body)
    assert (answer.status_code, answer.json()["error"]["message"]) == (422, message)


@pytest.mark.parametrize(
    ("lacks", "message"), [("operates", "operators/7 has no operators"), ("writes", "operators/7 has no decoder")]
)
def test_a_model_that_cannot_do_it_says_so(operator_model: Path, lacks: str, message: str) -> None:
    client = front(operator_model, **{lacks: False})[1]
    answer = client.post("/operate", json={"operator": "compress", "a": A, "write": True})
    assert (answer.status_code, answer.json()["error"]["message"]) == (409, message)


def test_requests_that_write_share_calls_only_with_each_other(operator_model: Path) -> None:
    encoder, replica = operator_encoder(operator_model), Replica(str(operator_model), 1, "cpu")
    calls: list[list[Job]] = []

    async def send(jobs: list[Job]) -> list[Any]:
        calls.append(jobs)
        return await replica.answers(jobs)

    jobs = [Job("compress", A, write=True), Job("fuse", A, B, write=True), Job("encode", A), Job("compress", B)]

    async def ask() -> list[Any]:
        batches = Batches(send, lambda: None)
        # Both calls that a replica may have are taken, so that the rest gathers.
        first = [asyncio.create_task(batches.answer(Job("encode", A))) for _ in range(2)]
        await asyncio.sleep(0)
        rest = [asyncio.create_task(batches.answer(job)) for job in jobs]
        return (await asyncio.gather(*first, *rest))[2:]

    compressed, fused, _, plain = asyncio.run(ask())
    assert [[job.write for job in call] for call in calls] == [[False], [False], [True, True], [False, False]]
    assert compressed.value.texts == encoder.decode(encoder.compress(A))
    assert fused.value.texts == encoder.decode(encoder.fuse(A, B))
    assert plain.value.texts is None
