"""The front without a cluster: MLflow's signed message makes it look at the champion now, and readiness."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import pytest
from starlette.testclient import TestClient

from pipeline.serving.api import create_app
from pipeline.serving.batches import Batches
from pipeline.serving.champion import ChampionFollower
from pipeline.serving.guard import Guard
from pipeline.serving.limits import Limits
from pipeline.serving.metrics import Metrics
from pipeline.serving.served import Served
from tests.registry.test_following import KEY, NAME, message, signed


def opened(secret: str | None, tokens: Sequence[str] = ("a-token-of-more-than-16",)) -> tuple[ChampionFollower, TestClient]:
    """A front whose champion is not followed. It has a token, which the messages lack."""
    nothing: Any = None
    metrics, limits = Metrics(), Limits(bytes=1000)
    champion = ChampionFollower(NAME, "sqlite://", nothing, nothing, [], metrics, 1.0)
    app = create_app(champion, limits, metrics, secret)
    return champion, TestClient(Guard(app, app.openapi()["paths"], limits, tokens, metrics))


def a_version(batches: Batches, **changes: Any) -> Served:
    """A version that can do nothing but encode, unless `changes` say more."""
    nothing: Any = None
    plain: dict[str, Any] = {
        "number": 3, "model": "a-model/3", "app": "an-application", "kind": "cosine", "has_relation": False,
        "has_operators": False, "has_decoder": False, "find_corpus": nothing, "canaries": None,
        "files": ExitStack(), "replicas": 1,
    }  # fmt: skip
    return Served(batches=batches, **(plain | changes))


@pytest.mark.parametrize(("body", "moved"), [(message(), True), (message(alias="challenger"), False), (message(name="b"), False)])
def test_a_signed_message_counts(body: bytes, moved: bool) -> None:
    champion, client = opened(KEY)
    assert client.post("/webhook", content=body, headers=signed(body, sent=str(int(time.time())))).status_code == 204
    assert champion.moved.is_set() is moved


def test_an_unsigned_message_does_not_nor_does_one_that_is_too_long() -> None:
    champion, client = opened(KEY)
    answer = client.post("/webhook", content=message(), headers=signed(message(), "t" * 16, str(int(time.time()))))
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, 401)
    assert client.post("/webhook", content=b" " * 1001).status_code == 413
    assert not champion.moved.is_set()


def test_without_a_secret_there_is_no_webhook() -> None:
    """So the path needs a token like any other, and with one it does not exist."""
    champion, client = opened(None)
    headers = signed(message(), sent=str(int(time.time())))
    assert client.post("/webhook", content=message(), headers=headers).status_code == 401
    headers["Authorization"] = "Bearer a-token-of-more-than-16"
    assert client.post("/webhook", content=message(), headers=headers).status_code == 404
    assert not champion.moved.is_set()


def test_a_fault_of_the_server_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    champion, client = opened(None)

    async def ask(*_: Any) -> Any:
        raise ZeroDivisionError("a\nfault")

    monkeypatch.setattr(champion, "ask", ask)
    answer = client.post("/encode", json={"sentences": ["A"]}, headers={"Authorization": "Bearer a-token-of-more-than-16"})
    assert (answer.status_code, answer.json()["error"]["type"]) == (500, "server_error")


@pytest.mark.parametrize(
    ("host", "answered"),
    [("localhost:8000", True), ("127.0.0.1:8000", True), ("[::1]:8000", True), ("", True), ("elsewhere.example", False),
     ("localhost.example:8000", False), ("[::1", False)],
)  # fmt: skip
def test_without_a_token_a_page_of_another_name_gets_no_answer(host: str, answered: bool) -> None:
    """A browser sends the name that a page has, whatever address that name leads to."""
    for tokens in ((), ("a-token-of-more-than-16",)):
        _, client = opened(None, tokens)
        for path in ("/health", "/live", "/"):
            answer = client.get(path, headers={"Host": host, "Authorization": "Bearer a-token-of-more-than-16"})
            assert answer.status_code == (200 if answered or tokens else 421), (path, tokens)


def test_the_front_is_ready_while_a_replica_runs() -> None:
    champion, client = opened(None)
    token = {"Authorization": "Bearer a-token-of-more-than-16"}
    assert client.get("/ready").json()["error"]["message"] == "no model is ready yet; GET /health says why"
    nothing: Any = None
    champion.served = served = a_version(Batches(nothing, nothing), model=f"{NAME}/3")
    assert client.get("/ready").json() == {"ready": True}
    health = client.get("/health", headers=token).json()
    assert (health["status"], health["serving"]["replicas"]) == ("ok", 1)
    served.replicas = 0
    answer = client.get("/ready")
    assert (answer.status_code, answer.json()["error"]["message"]) == (
        503,
        f"no replica of {NAME}/3 runs; Ray Serve starts another one",
    )
    health = client.get("/health", headers=token).json()
    assert (health["status"], health["serving"]["replicas"]) == ("degraded", 0)
