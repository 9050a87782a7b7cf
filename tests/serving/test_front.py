"""The front without a cluster: readiness, refusals, and the description of the API."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from typing import Any

import pytest
import uvicorn
from starlette.testclient import TestClient

from pipeline.models.relation_head import FORMULAS, ScoreKind
from pipeline.serving.api import create_app
from pipeline.serving.batches import Batches
from pipeline.serving.champion import ChampionFollower
from pipeline.serving.guard import OPEN, Guard
from pipeline.serving.limits import Limits, Refusal
from pipeline.serving.metrics import Metrics
from pipeline.serving.model import Job
from pipeline.serving.page import PATHS
from pipeline.serving.served import Served

NAME, TOKEN = "gausscse", "a-token-of-more-than-16"
NOTHING: Any = None


def opened(tokens: Sequence[str] = (TOKEN,), *, seconds: int = 60, **headers: str) -> tuple[ChampionFollower, TestClient]:
    """A front whose champion is not followed, and a client with its token."""
    metrics, limits = Metrics(), Limits(bytes=1000, seconds=seconds)
    champion = ChampionFollower(NAME, "sqlite://", NOTHING, [], metrics, 1.0)
    app = create_app(champion, limits, metrics, token=bool(tokens))
    guard = Guard(app, app.openapi()["paths"], limits, tokens, metrics)
    return champion, TestClient(guard, headers={"Authorization": f"Bearer {TOKEN}"} | headers)


def a_version(batches: Batches | None = None, **changes: Any) -> Served:
    """A version that can do nothing but encode, unless `changes` say more."""
    plain: dict[str, Any] = {
        "number": 3, "model": "a-model/3", "app": "an-application", "kind": "cosine", "directed": False,
        "has_relation": False, "calibration": None, "operations": {}, "writes": False, "find_corpus": NOTHING, "canaries": None,
        "files": ExitStack(), "share": NOTHING, "replicas": 1,
    }  # fmt: skip
    return Served(batches=batches or Batches(NOTHING, NOTHING), **(plain | changes))


@asynccontextmanager
async def listening(client: TestClient) -> AsyncIterator[tuple[str, int]]:
    """The same front as a server in this event loop; gives its address."""
    server = uvicorn.Server(uvicorn.Config(client.app, log_level="warning"))
    with socket.create_server(("127.0.0.1", 0)) as opened:
        serving = asyncio.create_task(server.serve([opened]))
        try:
            yield opened.getsockname()
        finally:
            server.should_exit = True
            await serving


async def request(
    address: tuple[str, int], path: str, body: bytes, headers: dict[str, str]
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection on which a request was sent."""
    reader, writer = await asyncio.open_connection(*address)
    fields = {"Host": "localhost", "Content-Length": str(len(body)), **headers}
    writer.write("\r\n".join([f"POST {path} HTTP/1.1", *(f"{k}: {v}" for k, v in fields.items()), "", ""]).encode() + body)
    return reader, writer


def test_a_client_that_hangs_up_frees_its_place() -> None:
    """Its request would be computed for nobody, and keep others out until its time is over."""
    champion, client = opened()
    sent: list[int] = []

    async def hangs(jobs: list[Job]) -> list[Any]:
        sent.append(len(jobs))
        await asyncio.sleep(600)
        raise AssertionError

    champion.served = served = a_version(Batches(hangs, lambda: None))
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}

    async def hang_up() -> None:
        async with asyncio.timeout(30), listening(client) as address:
            clients = [await request(address, "/encode", b'{"sentences": ["A dog runs."]}', headers) for _ in range(4)]
            # Two calls are under way; the other two requests wait for a third one.
            while served.in_flight < 4:
                await asyncio.sleep(0.01)
            for _, writer in clients:
                writer.close()
            while served.in_flight:
                await asyncio.sleep(0.01)
            assert not served.batches._waiting

    asyncio.run(hang_up())
    assert sum(sent) < 4
    # As nginx counts them.
    assert 'gausscse_serve_requests_total{path="/encode",status="499"} 4.0' in champion._metrics.text().decode()


def test_a_body_without_its_content_type_is_refused_with_words() -> None:
    _, client = opened()
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    answer = client.post("/encode", content=b'{"sentences": ["A dog runs."]}', headers=headers)
    assert (answer.status_code, answer.json()["error"]["message"]) == (
        422,
        "the body: is taken as JSON only with the header `Content-Type: application/json`",
    )


@pytest.mark.parametrize("tokens", [(), (TOKEN,)])
def test_the_description_of_the_api_says_what_needs_the_token(tokens: Sequence[str]) -> None:
    _, client = opened(tokens, Host="localhost", Authorization="")
    paths = client.get("/openapi.json").json()["paths"]
    routes = [(path, method, about) for path, methods in paths.items() for method, about in methods.items()]
    asked = {path for path, _, about in routes if "security" in about}
    assert asked == {path for path, method, _ in routes if client.request(method, path).status_code == 401}
    assert len(asked) == (10 if tokens else 0)


def questions(client: TestClient) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Path, schema and smallest body of each request that asks a model something, from the API's description."""
    description = client.get("/openapi.json").json()
    for path, route in description["paths"].items():
        if "requestBody" in route.get("post", {}):
            reference = route["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
            schema = description["components"]["schemas"][reference.rpartition("/")[2]]
            fields = {name: "x" if schema["properties"][name].get("type") == "string" else ["x"] for name in schema["required"]}
            yield path, schema, fields | ({"operator": "compress"} if path == "/operate" else {})


@pytest.mark.parametrize("empty", ["", " \n", "\u200b"])
def test_an_empty_text_is_refused_with_its_row_by_every_route(empty: str) -> None:
    _, client = opened()
    fields: list[str] = []
    for path, _, body in questions(client):
        for name in [name for name, value in body.items() if isinstance(value, list)]:
            texts = {other: ["x", "x"] for other, value in body.items() if isinstance(value, list)}
            answer = client.post(path, json=body | texts | {name: ["x", empty]})
            message = f"{name}[1]: is empty or only white space; send a sentence"
            assert (answer.status_code, answer.json()["error"]["message"]) == (422, message)
            fields.append(name)
    two = client.post("/operate", json={"operator": "fuse", "a": ["x"], "b": [empty]})
    one = client.post("/v1/embeddings", json={"model": NAME, "input": empty})
    assert (two.status_code, one.status_code) == (422, 422)
    assert sorted(fields) == ["a", "a", "b", *["hypotheses"] * 2, "input", *["premises"] * 2, "sentences", "sentences"]


def test_null_means_the_default_in_every_optional_field() -> None:
    _, client = opened()
    found: list[str] = []
    for path, schema, body in questions(client):
        assert client.post(path, json=body).status_code == 503, "understood, but no model is ready"
        for name in schema["properties"]:
            optional = name not in schema["required"]
            assert client.post(path, json=body | {name: None}).status_code == (503 if optional else 422), (path, name)
            found += [name] * optional
    assert {"encoding_format", "dimensions", "way", "k", "by", "min_sim", "b", "write"} <= set(found)


def test_every_route_that_answers_get_answers_head() -> None:
    champion, client = opened()
    champion.served = a_version()
    paths = {path for path, route in client.get("/openapi.json").json()["paths"].items() if "get" in route} | OPEN
    assert {"/", "/live", "/ready", "/health", "/metrics", "/v1/models", "/docs"} <= paths
    for path in paths:
        got, head = client.get(path), client.head(path)
        assert (got.status_code, head.status_code, head.content) == (200, 200, b""), path
        assert head.headers["content-type"] == got.headers["content-type"]
    assert client.head("/health", headers={"Authorization": ""}).status_code == 401
    wrong = client.head("/encode")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize("kind", FORMULAS)
def test_the_page_and_health_say_the_similarity_of_the_model(kind: ScoreKind) -> None:
    champion, client = opened()
    champion.served = a_version(kind=kind)
    assert client.get("/health").json()["serving"]["similarity"] == FORMULAS[kind]
    # The page has no words of its own for it.
    assert all((page := client.get(path)).is_success and "KL" not in page.text for path in PATHS)


def test_a_fault_of_the_server_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    champion, client = opened()

    async def ask(*_: Any) -> Any:
        raise ZeroDivisionError("a\nfault")

    monkeypatch.setattr(champion, "ask", ask)
    answer = client.post("/encode", json={"sentences": ["A"]})
    assert (answer.status_code, answer.json()["error"]["type"]) == (500, "server_error")


@pytest.mark.parametrize(
    ("host", "answered"),
    [("localhost:8000", True), ("127.0.0.1:8000", True), ("[::1]:8000", True), ("", True), ("elsewhere.example", False),
     ("localhost.example:8000", False), ("[::1", False)],
)  # fmt: skip
def test_without_a_token_a_page_of_another_name_gets_no_answer(host: str, answered: bool) -> None:
    """A browser sends the name that a page has, whatever address that name leads to."""
    for tokens in ((), (TOKEN,)):
        _, client = opened(tokens, Host=host)
        for path in ("/health", "/live", "/"):
            assert client.get(path).status_code == (200 if answered or tokens else 421), (path, tokens)


def test_the_front_is_ready_while_a_replica_runs() -> None:
    champion, client = opened()
    assert client.get("/ready").json()["error"]["message"] == "no model is ready yet; GET /health says why"
    champion.served = served = a_version(model=f"{NAME}/3")
    assert client.get("/ready").json() == {"ready": True}
    health = client.get("/health").json()
    assert (health["status"], health["serving"]["replicas"]) == ("ok", 1)
    served.replicas = 0
    answer = client.get("/ready")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert answer.json()["error"]["message"] == f"no replica of {NAME}/3 runs; Ray Serve starts another one"
    health = client.get("/health").json()
    assert (health["status"], health["serving"]["replicas"]) == ("degraded", 0)


def test_large_bodies_have_a_rate_that_outlives_nobody() -> None:
    """Parts of 700 large bodies whose clients go, and then an honest one."""
    guard = Guard(NOTHING, (), Limits(), (), Metrics())

    async def read(*parts: int, ends: bool = True) -> int:
        messages = [{"type": "http.request", "body": bytes(part), "more_body": True} for part in parts]

        async def receive() -> dict[str, Any]:
            if messages:
                return messages.pop(0)
            await asyncio.sleep(0 if ends else 3600)
            return {"type": "http.request", "body": b"", "more_body": False}

        return len(await guard._body({"type": "http", "headers": []}, receive, asyncio.get_running_loop().time() + 60))

    async def run() -> None:
        left = [asyncio.ensure_future(read(80_000, ends=False)) for _ in range(700)]
        await asyncio.sleep(0.1)
        for task in left:
            task.cancel()
        refused = [error.status for error in await asyncio.gather(*left, return_exceptions=True) if isinstance(error, Refusal)]
        assert {*refused} == {503} and len(refused) > 100
        assert guard._uploads == {} and guard._uploaded == 0
        async with asyncio.timeout(4):
            while True:
                with suppress(Refusal):
                    assert await read(*[100_000] * 19) == 1_900_000
                    break
                await asyncio.sleep(0.1)
        # 9.5 MB at 10 MB a second.
        start = time.monotonic()
        assert await asyncio.gather(*(read(*[100_000] * 19) for _ in range(5))) == [1_900_000] * 5
        assert time.monotonic() - start > 0.8

    asyncio.run(run())
