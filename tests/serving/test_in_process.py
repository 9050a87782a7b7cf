"""A model in the process of the front: what holds of replicas holds of it, and it needs no Ray."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import pipeline
from pipeline.models.encoder import GaussianEncoder
from pipeline.models.model_dir import Engine
from pipeline.serving import runtime
from pipeline.serving.batches import Batches
from pipeline.serving.model import Answered, Job, Model
from pipeline.serving.runtime import InProcess
from pipeline.utils.atomic_io import write_sums
from pipeline.utils.errors import UserError
from tests.serving import test_swap
from tests.serving.server import Registry, Server, serving
from tests.serving.test_champion import follower
from tests.serving.test_front import a_version, listening, opened, request
from tests.serving.test_swap import CLIENTS, load, metric, more, refused

pytestmark = pytest.mark.faults


@pytest.fixture(scope="module")
def server(registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The tests that are those of test_swap.py ask this one."""
    registry.add(1)
    with serving(registry, tmp_path_factory.mktemp("server"), ["--max-seconds", "300"]) as running:
        yield running


def test_it_is_one_process_without_ray(server: Server) -> None:
    assert server.process.children() == []
    assert not [held.path for held in server.process.memory_maps() if "/ray/" in held.path]


test_nothing_is_lost_while_champions_change = test_swap.test_nothing_is_lost_while_champions_change_and_a_replica_dies
test_a_champion_that_fails_its_canaries_stays_out = test_swap.test_a_champion_that_fails_its_canaries_stays_out_and_says_so
test_a_champion_with_changed_files_stays_out = test_swap.test_a_champion_with_changed_files_stays_out


def without_a_tensor(folder: Path) -> None:
    """Weights that lack one, under correct sums."""
    weights = load_file(folder / "model.safetensors")
    del weights["mean_head.bias"]
    save_file(weights, folder / "model.safetensors")
    write_sums(folder)


def test_a_model_that_cannot_be_loaded_stays_out(registry: Registry, server: Server) -> None:
    before = server.good("/health")["serving"]["version"]
    broken = registry.add(7, spoil=without_a_tensor)
    with load(server, 4) as taken:
        registry.promote(broken)
        assert "mean_head.bias" in refused(server, broken)
        more(server, taken, 4)
    assert {body["model"] for *_, body in taken.answers} == {f"{registry.name}/{before}"}
    assert taken.faults == []
    registry.rollback()


@pytest.mark.parametrize("engine", ["openvino", "openvino-int8"])
def test_nothing_is_lost_while_champions_change_by_another_engine(registry: Registry, tmp_path: Path, engine: Engine) -> None:
    first, second, other = (registry.add(seed) for seed in (20, 21, 22))
    broken = registry.add(23, spoil=without_a_tensor)
    registry.promote(first)
    uri = registry.tracker.uri
    pair = {"a": ["A child sleeps."], "b": ["An animal eats."]}
    with serving(registry, tmp_path, ["--engine", engine]) as server:
        for number in (second, other):
            with load(server, 4) as taken:
                registry.promote(number)
                server.until(lambda number=number: server.serves(number), "the next champion answers")
                more(server, taken, 4)
            assert taken.faults == []
            expected = pipeline.load(f"models:/{registry.name}/{number}", uri, engine=engine).similarity(pair["a"], pair["b"])
            assert server.good("/similarity", pair)["similarity"] == pytest.approx(expected.tolist(), rel=1e-4)
        registry.promote(broken)
        assert "mean_head.bias" in refused(server, broken)
        assert server.good("/similarity", pair)["model"] == f"{registry.name}/{other}"
        assert f"by {engine}" in server.lines()
    registry.rollback()


def test_sigterm_answers_what_is_being_computed(registry: Registry, tmp_path: Path) -> None:
    registry.add(9)
    answers: list[tuple[int, Any]] = []
    many = {"sentences": [f"The dog number {row} runs." for row in range(5000)]}
    with serving(registry, tmp_path, ["--max-rows", "5000"]) as server:
        clients = [threading.Thread(target=lambda: answers.append(server.ask("/encode", many))) for _ in range(CLIENTS)]
        for client in clients:
            client.start()
        server.until(lambda: metric(server, "gausscse_serve_in_progress") > CLIENTS / 2, "most are in progress")
    for client in clients:
        client.join()
    assert [(status, len(body["mean"])) for status, body in answers] == [(200, 5000)] * CLIENTS


class Held(Model):
    """Computes once it may."""

    began, may = threading.Event(), threading.Event()

    def answers(self, jobs: list[Job]) -> list[Answered]:
        self.began.set()
        assert self.may.wait(60)
        return super().answers(jobs)


@pytest.fixture
def held(operator_model: Path, monkeypatch: pytest.MonkeyPatch) -> Batches:
    """Sends batches to a model that waits until `Held.may` is set."""
    monkeypatch.setattr(runtime, "Model", Held)
    Held.began.clear()
    Held.may.clear()
    return Batches(InProcess(1, 60.0).start("a-model", str(operator_model), lambda: False), lambda: None)


def test_the_front_answers_while_the_model_computes(held: Batches) -> None:
    """A request that takes too long is given up, and its call does not keep the next one out for good."""
    champion, client = opened(seconds=1)
    champion.served = a_version(held)
    headers = {"Authorization": "Bearer a-token-of-more-than-16", "Content-Type": "application/json"}

    async def ask() -> None:
        async with asyncio.timeout(60), listening(client) as address:
            # A connection ends with its writer.
            late, kept = await request(address, "/encode", b'{"sentences": ["A dog runs."]}', headers)
            assert await asyncio.to_thread(Held.began.wait, 60)
            live, _ = await request(address, "/live", b"", {})
            assert b"405 Method Not Allowed" in await live.readline()
            assert b"504" in await late.readline()
            kept.close()
            Held.may.set()
            next_one, _ = await request(address, "/encode", b'{"sentences": ["A dog runs."]}', headers)
            assert b"200" in await next_one.readline()

    asyncio.run(ask())


class Meeting(Model):
    """Computes once another call is computed, too."""

    both = threading.Barrier(2)
    threads: ClassVar[list[int]] = []

    def answers(self, jobs: list[Job]) -> list[Answered]:
        self.threads.append(torch.get_num_threads())
        self.both.wait(60)
        return super().answers(jobs)


def test_two_threads_compute_by_torch_and_one_by_openvino(operator_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "Model", Meeting)
    before = torch.get_num_threads()
    own = InProcess(2, 60.0)
    send = own.start("a-model", str(operator_model), lambda: False)

    async def ask() -> list[list[Answered]]:
        return await asyncio.gather(*(send([Job("means", ["A dog runs."])]) for _ in range(2)))

    first, second = asyncio.run(ask())
    np.testing.assert_allclose(first[0].value.mean, second[0].value.mean, rtol=1e-4)  # type: ignore[union-attr]
    # The first one took all before the other came.
    assert Meeting.threads == [2, 1]
    assert InProcess(2, 60.0, "openvino")._workers._max_workers == 1
    torch.set_num_threads(before)


def test_a_call_that_hangs_makes_the_model_unready(held: Batches, operator_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = InProcess(1, 60.0)
    batches = Batches(own.start("another", str(operator_model), lambda: False), lambda: None)

    async def ask() -> None:
        asked = asyncio.create_task(batches.answer(Job("means", ["A dog runs."])))
        assert await asyncio.to_thread(Held.began.wait, 60)
        assert own.running("another") == 1
        monkeypatch.setattr(runtime, "_HANGS", 0.0)
        assert own.running("another") == 0
        Held.may.set()
        await asked
        assert own.running("another") == 1

    asyncio.run(ask())


def test_the_end_of_the_server_waits_for_what_is_computed_and_frees_the_model(
    held: Batches, operator_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[weakref.ref[GaussianEncoder]] = []
    read = GaussianEncoder.from_pretrained

    def reading(*arguments: Any) -> GaussianEncoder:
        kept.append(weakref.ref(encoder := read(*arguments)))
        return encoder

    monkeypatch.setattr(GaussianEncoder, "from_pretrained", staticmethod(reading))
    following, own = follower("sqlite://", []), InProcess(1, 60.0)
    following._runtime, following._seconds = own, 60.0
    following.served = a_version(Batches(own.start("another", str(operator_model), lambda: False), lambda: None))

    async def end() -> Any:
        asked = asyncio.create_task(following.ask(Job("means", ["A dog runs."])))
        assert await asyncio.to_thread(Held.began.wait, 60)
        closing = asyncio.create_task(following.close())
        await asyncio.sleep(0.2)
        assert not closing.done() and not asked.done()
        Held.may.set()
        await closing
        return await asked

    assert asyncio.run(end())[0].tokens > 2
    gc.collect()
    assert [encoder() for encoder in kept] == [None]


def test_a_version_that_is_refused_is_freed(operator_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while no later one is looked at."""
    kept: list[weakref.ref[Model]] = []
    following, own = follower("sqlite://", []), InProcess(1, 60.0)
    following._runtime = own

    def started(version: Any) -> Any:
        model = Model(operator_model, "cpu")
        kept.append(weakref.ref(model))

        async def send(jobs: list[Job]) -> Any:
            return model.answers(jobs)

        return a_version(Batches(send, lambda: None))

    async def fails(new: Any) -> None:
        await new.batches.answer(Job("means", ["A dog runs."]))
        raise UserError("its canaries fail")

    monkeypatch.setattr(following, "_started", started)
    monkeypatch.setattr(following, "_check", fails)

    async def replace() -> None:
        with pytest.raises(UserError, match="its canaries fail"):
            await following._replace(cast(Any, SimpleNamespace(version="7")))

    asyncio.run(replace())
    gc.collect()
    assert [model() for model in kept] == [None]
