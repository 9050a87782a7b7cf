"""What the follower of the champion does when something is missing or does not fit, without a cluster."""

from __future__ import annotations

import asyncio
import json
import math
import shutil
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from mlflow.tracking import MlflowClient

from pipeline.cluster.session import Session
from pipeline.config.load import load_execution
from pipeline.models.model_config import capabilities_of, score_kind_of
from pipeline.serving import champion
from pipeline.serving.batches import Batches
from pipeline.serving.canary_check import CanaryError
from pipeline.serving.champion import ChampionFollower
from pipeline.serving.corpora import searchable
from pipeline.serving.metrics import Metrics
from pipeline.serving.replica import Job, Scale
from pipeline.serving.served import Served
from pipeline.storage.object_store import Storage
from pipeline.utils.errors import UserError
from tests.conftest import ROOT
from tests.folders import folder_of
from tests.registry.servers import free_port
from tests.serving.test_front import a_version
from tests.serving.test_operators import front


def follower(uri: str, corpora: list[str]) -> ChampionFollower:
    unused: Any = None
    return ChampionFollower("a-model", uri, unused, unused, corpora, Metrics(), 1.0)


def registry(folder: Path) -> tuple[MlflowClient, str]:
    """One whose champion is version 1, and its address."""
    uri = f"sqlite:///{folder}/mlflow.db"
    client = MlflowClient(tracking_uri=uri, registry_uri=uri)
    client.create_registered_model("a-model")
    client.create_model_version("a-model", "somewhere")
    client.set_registered_model_alias("a-model", "champion", "1")
    return client, uri


def test_a_missing_alias_has_moved_on_and_a_missing_registry_has_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client, uri = registry(tmp_path)
    following = follower(uri, [])
    assert asyncio.run(following._moved_on(1)) is False
    assert asyncio.run(following._moved_on(2)) is True
    client.delete_registered_model_alias("a-model", "champion")
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
    following = follower(registry(tmp_path)[1], [])
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
    now = time.monotonic()
    for failures, pause in ((1, 5), (2, 10), (3, 20)):
        asyncio.run(following._corpora.read(served))
        assert served.corpus_failures == failures
        assert now + pause <= served.corpus_at < now + pause + 5
    answer = client.post("/search", json={"sentences": ["A dog runs."]})
    assert (answer.status_code, answer.json()["error"]["message"]) == (409, f"operators/7 does not search: {why}")
    assert client.post("/encode", json={"sentences": ["A dog runs."]}).status_code == 200
    served.find_corpus = lambda: None
    asyncio.run(following._corpora.read(served))
    assert served.no_corpus == "it encoded none of the corpora (encoded)"


def test_a_corpus_not_encoded_yet_is_looked_for_at_every_poll(
    operator_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.serving.corpus_reader._POLL", 0.01)
    looks: list[float] = []
    there: Any = object()

    def find() -> Any:
        looks.append(time.monotonic())
        return there if len(looks) > 5 else searchable([str(tmp_path / "missing")], "a-digest", "cosine", None)

    served = running(operator_model)
    served.find_corpus = find
    following = follower("sqlite://", ["missing"])
    following.served = served

    async def look() -> None:
        looking = asyncio.create_task(following._corpora.look())
        async with asyncio.timeout(30):
            while served.corpus is None:
                await asyncio.sleep(0.01)
        looking.cancel()

    asyncio.run(look())
    assert served.corpus is there
    assert (len(looks), served.corpus_failures) == (6, 0)
    assert served.no_corpus == f"{tmp_path}/missing: no _manifest.json here: run gausscse encode until it is done"


def running(model: Path) -> Served:
    served = front(model)[0].served
    assert served is not None
    return served


def replaced(new: Served, corpora: list[str], monkeypatch: pytest.MonkeyPatch) -> tuple[ChampionFollower, Any]:
    """A follower that has started `new`, whose alias does not move meanwhile; and the version to call `_replace` with."""
    following = follower("sqlite://", corpora)
    following._scale = Scale(least=1, most=1, threads=1, cpus=0, gpus=0, patience=600)

    async def stays(_: int) -> bool:
        return False

    monkeypatch.setattr(following, "_started", lambda version: new)
    monkeypatch.setattr(following, "_moved_on", stays)
    return following, SimpleNamespace(version="7")


def test_a_champion_waits_only_so_long_for_its_corpus(
    operator_model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Which may take minutes to read, while the champion that was rolled back would go on answering."""
    monkeypatch.setattr("pipeline.serving.corpus_reader._PATIENCE", 0.2)
    monkeypatch.setattr("pipeline.serving.corpus_reader._POLL", 0.01)
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
    monkeypatch.setattr("pipeline.serving.champion._discard", ended.append)

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
    monkeypatch.setattr("pipeline.serving.champion._discard", ended.append)
    monkeypatch.setattr("pipeline.serving.corpus_reader._PATIENCE", 0.1)
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
    assert following.moved.is_set()


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


def test_what_a_model_can_do_is_in_its_notes(operator_model: Path) -> None:
    notes = json.loads((operator_model / "config.json").read_text(encoding="utf-8"))
    assert capabilities_of(notes) == {"operators", "decoder"}
    notes["trial"]["objective"]["generation_weight"] = 0.0
    assert capabilities_of(notes) == {"operators"}
    notes["trial"]["objective"] = {"name": "gausscse"}
    assert not capabilities_of(notes)


@pytest.mark.parametrize(
    ("objective", "kind", "directed"),
    [
        (None, "kl", True),
        ({"name": "ent+con+rev", "similarity": "kl"}, "kl", True),
        ({"name": "ent+con+rev", "similarity": "kl-dimwise"}, "kl-dimwise", True),
        ({"name": "simcse"}, "cosine", False),
        ({"name": "quickthoughts", "score": "dot"}, "cosine", False),
        # Its variances have learnt which sentence follows which, not which entails which.
        ({"name": "quickthoughts", "score": "kl"}, "kl", False),
    ],
)
def test_only_what_was_trained_on_entailment_speaks_of_it(objective: dict[str, Any] | None, kind: str, directed: bool) -> None:
    notes = {} if objective is None else {"trial": {"objective": objective}}
    assert (score_kind_of(notes), "direction" in capabilities_of(notes)) == (kind, directed)


@pytest.mark.parametrize(("gpus", "most"), [(1, 1), (1, 5), (2, 3), (3, 2), (7, 5), (8, 1)])
def test_two_models_fit_onto_the_gpus(gpus: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"GPU": float(gpus)})
    session = Session(load_execution(ROOT / "execution.yaml").cluster, True, 1, 1, False)
    share = Scale.on(session, 1, most, private=True).gpus
    assert 0 < share <= 1
    # A replica is on one GPU.
    assert gpus * math.floor(1 / share + 1e-9) >= 2 * most
