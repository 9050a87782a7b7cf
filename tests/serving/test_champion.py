"""What the follower of the champion does when something is missing or does not fit, without a cluster."""

from __future__ import annotations

import asyncio
import math
import shutil
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from pipeline.cluster.session import Session
from pipeline.config.load import load_execution
from pipeline.models.canaries import Canaries, CanaryError
from pipeline.serving import champion
from pipeline.serving.batches import Batches
from pipeline.serving.champion import ChampionFollower
from pipeline.serving.metrics import Metrics
from pipeline.serving.model import Job
from pipeline.serving.replica import Scale
from pipeline.serving.runtime import InProcess
from pipeline.serving.served import Served
from pipeline.storage.object_store import Storage
from pipeline.utils.errors import UserError
from tests.conftest import ROOT
from tests.folders import folder_of
from tests.registry.servers import free_port
from tests.registry.test_following import NAME, alias, registry
from tests.serving.test_front import a_version
from tests.serving.test_operators import front


def follower(uri: str, corpora: list[str]) -> ChampionFollower:
    unused: Any = None
    return ChampionFollower(NAME, uri, unused, corpora, Metrics(), 1.0)


def test_a_missing_alias_has_moved_on_and_a_missing_registry_has_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client, uri = registry(tmp_path)
    alias(client, 1)
    following = follower(uri, [])
    assert asyncio.run(following._moved_on(1)) is False
    assert asyncio.run(following._moved_on(2)) is True
    client.delete_registered_model_alias(NAME, "champion")
    assert asyncio.run(following._moved_on(1)) is True
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    assert asyncio.run(follower(f"http://127.0.0.1:{free_port()}", [])._moved_on(1)) is False


def test_a_model_that_answers_is_shared_again_after_hours(tmp_path: Path) -> None:
    """It may have gone from the storage, and replicas that start later need it."""
    storage = Storage.open(str(tmp_path / "storage"))
    params = load_execution(ROOT / "execution.yaml").cluster.model_copy(update={"address": "auto", "storage": storage.name})
    session, model = (
        Session(params, use_gpu=False, concurrent=1, cores=1, in_driver=False),
        folder_of(tmp_path / "model", a="1"),
    )
    nothing: Any = None
    served = a_version(nothing, number=1, share=lambda: session.share(model))
    client, uri = registry(tmp_path)
    alias(client, 1)
    following = follower(uri, [])
    following.served = served
    asyncio.run(following._check_alias())
    assert not storage.entries()
    served.shared_at -= champion._SHARE_AGAIN
    asyncio.run(following._check_alias())
    assert [name.rpartition("/")[2] for name in storage.entries("objects")] == ["a", "manifest"]
    shutil.rmtree(tmp_path / "storage")
    asyncio.run(following._check_alias())
    assert not storage.entries()


@pytest.mark.parametrize(
    ("fault", "why"), [(MemoryError("too large"), "MemoryError: too large"), (UserError("it is damaged"), "it is damaged")]
)
def test_a_corpus_that_cannot_be_read_costs_only_the_search(operator_model: Path, fault: Exception, why: str) -> None:
    def broken() -> None:
        raise fault

    champion, client = front(operator_model)
    served = champion.served
    assert served is not None
    served.find_corpus = broken
    following = follower("sqlite://", ["encoded"])
    asyncio.run(following._corpora.read(served))
    # To read a corpus in vain is expensive, so the next attempt is minutes away.
    assert served.corpus_at > time.monotonic() + 200
    answer = client.post("/search", json={"sentences": ["A dog runs."]})
    assert (answer.status_code, answer.json()["error"]["message"]) == (409, f"operators/7 does not search: {why}")
    assert client.post("/encode", json={"sentences": ["A dog runs."]}).status_code == 200
    served.find_corpus = lambda: None
    asyncio.run(following._corpora.read(served))
    assert served.no_corpus == "with this engine it encoded none of encoded"


def running(model: Path) -> Served:
    served = front(model)[0].served
    assert served is not None
    return served


def replaced(new: Served, corpora: list[str], monkeypatch: pytest.MonkeyPatch) -> tuple[ChampionFollower, Any]:
    """A follower that has started `new`, whose alias does not move meanwhile; and the version to call `_replace` with."""
    following = follower("sqlite://", corpora)
    following._runtime = InProcess(1, 600.0)

    async def stays(_: int) -> bool:
        return False

    new.canaries = Canaries(premises=("A dog runs.",), hypotheses=("Nobody eats.",), similarity=(0.5,), relation=None)
    monkeypatch.setattr(Canaries, "check", lambda *_: None)
    monkeypatch.setattr(following, "_started", lambda version: new)
    monkeypatch.setattr(following, "_moved_on", stays)
    return following, SimpleNamespace(version="7")


def test_a_champion_waits_only_so_long_for_its_corpus(
    operator_model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Which may take minutes to read, while the champion that was rolled back would go on answering."""
    monkeypatch.setattr("pipeline.serving.corpora._PATIENCE", 0.2)
    monkeypatch.setattr("pipeline.serving.corpora._POLL", 0.01)
    champion, client = front(operator_model)
    assert champion.served is not None
    new = a_version(champion.served.batches)
    may_end, reads = threading.Event(), list[int]()
    corpus: Any = object()

    def slow() -> Any:
        reads.append(1)
        assert may_end.wait(60)
        return corpus

    new.find_corpus = slow
    following, version = replaced(new, ["encoded"], monkeypatch)

    async def replace() -> None:
        await following._replace(version)
        assert following.served is new
        champion.served = new
        answer = await asyncio.to_thread(client.post, "/search", json={"sentences": ["A dog runs."]})
        assert answer.json()["error"]["message"] == "a-model/3 does not search: its corpus is being read"
        looking = asyncio.create_task(following._corpora.look())
        await asyncio.sleep(0.1)
        may_end.set()
        async with asyncio.timeout(30):
            while new.corpus is None:
                await asyncio.sleep(0.01)
        looking.cancel()

    with caplog.at_level("INFO"):
        asyncio.run(replace())
    assert new.corpus is corpus
    # Once, although it was looked for again and again meanwhile.
    assert reads == [1]
    assert [record.message for record in caplog.records if "searches now" in record.message] == [
        "serve: a-model/3 searches now; it has encoded a corpus"
    ]


@pytest.mark.parametrize("waits_for", ["its canary pairs", "its corpus"])
def test_a_server_that_ends_does_not_wait(operator_model: Path, monkeypatch: pytest.MonkeyPatch, waits_for: str) -> None:
    """A replica that hangs would have the whole time of a start to answer the pairs."""
    new = running(operator_model)
    waiting, may_end = threading.Event(), threading.Event()
    ended: list[Served] = []

    async def hangs(_: list[Job]) -> list[Any]:
        waiting.set()
        await asyncio.sleep(600)
        raise AssertionError

    def slow() -> None:
        waiting.set()
        assert may_end.wait(60)

    if waits_for == "its corpus":
        new = a_version(new.batches, find_corpus=slow)
    else:
        new.batches = Batches(hangs, lambda: None)
    following, version = replaced(new, ["encoded"], monkeypatch)
    monkeypatch.setattr(following, "_discard", ended.append)

    async def end() -> None:
        replacing = asyncio.create_task(following._replace(version))
        assert await asyncio.to_thread(waiting.wait, 60)
        following.stop()
        async with asyncio.timeout(30):
            with pytest.raises(UserError, match="the server ends"):
                await replacing
            await following.close()
        assert (ended, following.served) == ([new], None)
        may_end.set()

    asyncio.run(end())


def test_a_move_during_a_start_is_looked_at_now(operator_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next look by itself may be an hour away. The corpus of the version that lost its alias is not read in its turn."""
    served = running(operator_model)
    new = a_version(served.batches)
    reads: list[int] = []
    new.find_corpus = lambda: reads.append(1)
    following, version = replaced(new, ["encoded"], monkeypatch)
    ended: list[Served] = []
    monkeypatch.setattr(following, "_discard", ended.append)
    monkeypatch.setattr("pipeline.serving.corpora._PATIENCE", 0.1)
    may_end = threading.Event()

    async def moves(_: int) -> bool:
        return True

    async def replace() -> None:
        monkeypatch.setattr(following, "_moved_on", moves)
        # Another corpus is being read.
        following._corpora._readers.submit(may_end.wait, 60)
        await following._replace(version)
        may_end.set()
        await asyncio.gather(*following._corpora._reading)

    asyncio.run(replace())
    assert (ended, following.served, reads) == ([new], None, [])
    assert following._look_now.is_set()


def test_without_the_registry_the_model_goes_on_answering(operator_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    champion, client = front(operator_model)
    champion._watch.uri = f"http://127.0.0.1:{free_port()}"
    for _ in range(2):
        asyncio.run(champion._check_alias())
    health = client.get("/health").json()
    assert health["status"] == "degraded"
    assert "127.0.0.1" in health["registry"]
    assert health["serving"]["version"] == 3
    assert "gausscse_serve_registry_errors_total 2.0" in client.get("/metrics").text
    assert client.get("/ready").status_code == 200
    assert client.post("/encode", json={"sentences": ["A dog runs."]}).status_code == 200


def test_a_first_champion_that_fails_is_said(operator_model: Path) -> None:
    champion, client = front(operator_model)
    champion.served = None
    assert client.get("/health").json()["status"] == "starting"
    champion._refuse(7, CanaryError("it gives numbers that are not finite"))
    health = client.get("/health").json()
    assert (health["status"], health["serving"], health["refused"]["number"]) == ("failing", None, 7)
    assert health["refused"]["final"] is True
    assert client.get("/ready").status_code == 503
    answer = client.post("/encode", json={"sentences": ["A dog runs."]})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert 'gausscse_serve_swaps_total{outcome="refused"} 1.0' in client.get("/metrics").text


@pytest.mark.parametrize(("gpus", "most"), [(1, 1), (1, 5), (2, 3), (3, 2), (7, 5), (8, 1)])
def test_two_models_fit_onto_the_gpus(gpus: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"GPU": float(gpus)})
    session = Session(load_execution(ROOT / "execution.yaml").cluster, True, 1, 1, False)
    share = Scale.on(session, 1, most, private=True).gpus
    assert 0 < share <= 1
    # A replica is on one GPU.
    assert gpus * math.floor(1 / share + 1e-9) >= 2 * most
