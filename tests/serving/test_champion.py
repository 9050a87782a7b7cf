"""What the follower of the champion does when something is missing or does not fit, without a cluster."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest
import ray
from mlflow.tracking import MlflowClient

from pipeline.cluster.session import Session
from pipeline.config.load import load_execution
from pipeline.serving.champion import ChampionFollower
from pipeline.serving.metrics import Metrics
from pipeline.serving.replica import Scale
from pipeline.utils.errors import UserError
from tests.conftest import ROOT
from tests.registry.servers import free_port
from tests.serving.test_operators import TOKEN, front


def follower(uri: str, corpora: list[str]) -> ChampionFollower:
    unused: Any = None
    return ChampionFollower("a-model", uri, unused, unused, corpora, Metrics(), 1.0)


def test_an_alias_that_is_gone_has_moved_on_and_a_registry_that_is_gone_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    client = MlflowClient(tracking_uri=uri, registry_uri=uri)
    client.create_registered_model("a-model")
    client.create_model_version("a-model", "somewhere")
    client.set_registered_model_alias("a-model", "champion", "1")
    following = follower(uri, [])
    assert asyncio.run(following._moved_on(1)) is False
    assert asyncio.run(following._moved_on(2)) is True
    client.delete_registered_model_alias("a-model", "champion")
    assert asyncio.run(following._moved_on(1)) is True
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    assert asyncio.run(follower(f"http://127.0.0.1:{free_port()}", [])._moved_on(1)) is False


@pytest.mark.parametrize(
    ("fault", "why"), [(MemoryError("too large"), "MemoryError: too large"), (UserError("it is damaged"), "it is damaged")]
)
def test_a_corpus_that_cannot_be_read_costs_only_the_search(operator_model: Path, fault: Exception, why: str) -> None:
    def broken() -> None:
        raise fault

    champion, client = front(operator_model, has_operators=True)
    served = champion.served
    assert served is not None
    served.find_corpus = broken
    following = follower("sqlite://", ["encoded"])
    asyncio.run(following._read_corpus(served))
    asyncio.run(following._read_corpus(served))
    assert served.corpus_failures == 2
    answer = client.post("/search", json={"sentences": ["A dog runs."]}, headers=TOKEN)
    assert (answer.status_code, answer.json()["error"]["message"]) == (409, f"operators/7 does not search: {why}")
    assert client.post("/encode", json={"sentences": ["A dog runs."]}, headers=TOKEN).status_code == 200
    served.find_corpus = lambda: None
    asyncio.run(following._read_corpus(served))
    assert (served.corpus_failures, served.no_corpus) == (0, "it encoded none of the corpora (encoded)")


@pytest.mark.parametrize("gpus", [1, 2, 3, 4, 7, 8])
@pytest.mark.parametrize("most", [1, 2, 3, 5])
def test_two_models_fit_onto_the_gpus(gpus: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"GPU": float(gpus)})
    session = Session(load_execution(ROOT / "execution.yaml").cluster, True, 1, 1, False)
    share = Scale.on(session, 1, most, private=True).gpus
    assert 0 < share <= 1
    # A replica is on one GPU.
    assert gpus * math.floor(1 / share + 1e-9) >= 2 * most
