"""The answers of `gausscse serve` are those of the Python API, also to OpenAI's client; refusals with words; limits; search."""

from __future__ import annotations

import base64
import itertools
import math
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pyarrow as pa
import pytest
import torch

from pipeline.data.schema import RELATIONS
from pipeline.inference.corpus import read_gaussians
from pipeline.inference.entailment_index import EntailmentIndex, nearest
from pipeline.models.encoder import GaussianEncoder
from pipeline.models.threshold import Calibration
from pipeline.serving.connections import HEADER_BYTES
from tests.relations import drawn_relation
from tests.serving.server import SENTENCES, Registry, Server, serving

pytestmark = pytest.mark.faults

SECONDS = 15
TOKEN = "a-token-of-more-than-16"
A = ["A dog runs across a field.", "An animal is moving.", "Ein Hund läuft.", "Zürich — 日本 🐕"]
B = ["An animal is moving.", "A dog runs across a field.", "Nobody sleeps.", "A dog runs."]


@pytest.fixture(scope="module")
def encoder(registry: Registry) -> GaussianEncoder:
    """That of version 1, which has a relation head."""

    def with_relation(encoder: GaussianEncoder) -> None:
        encoder.relation_head = drawn_relation()
        # Two of the four pairs reach it.
        middle = float(encoder.score(A, B).sort().values[1:3].mean())
        encoder.calibration = Calibration(threshold=middle, entailment_if=">=", swept_on="dev", pairs="d" * 64, accuracy=80.0)

    return registry.encoder(registry.add(1, with_relation))


@pytest.fixture(scope="module")
def corpus(registry: Registry, encoder: GaussianEncoder, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A corpus that the served model encoded."""
    table = pa.table({"sentence": SENTENCES, "note": list(range(len(SENTENCES)))})
    return registry.encode_corpus(1, table, tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def later(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Has a folder for each version, with the corpus that it encodes once it is champion."""
    return tmp_path_factory.mktemp("later")


@pytest.fixture(scope="module")
def server(registry: Registry, corpus: str, later: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    limits = {"rows": 50, "characters": 1000, "bytes": 20_000, "concurrent": 2, "seconds": SECONDS}
    options = ["--corpus", f"{later}/{{version}}/encoded", "--corpus", corpus]
    options += [word for name, limit in limits.items() for word in (f"--max-{name}", str(limit))]
    empty = tmp_path_factory.mktemp("empty")
    with serving(registry, tmp_path_factory.mktemp("server"), options, token=TOKEN, root=empty) as running:
        yield running


def openais_client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key=TOKEN, max_retries=0)


def test_outside_a_project_it_takes_this_machine(registry: Registry, server: Server) -> None:
    """All answers of this file are given in an empty folder, which stays empty."""
    assert server.good("/health")["serving"]["model"] == f"{registry.name}/1"
    assert list(Path(server.process.cwd()).iterdir()) == []
    assert "the model runs in this process by torch, " in server.lines()


def test_encode_similarity_and_relation_are_the_encoders(registry: Registry, encoder: GaussianEncoder, server: Server) -> None:
    answer, expected = server.good("/encode", {"sentences": A}), encoder.encode(A)
    assert answer["model"] == f"{registry.name}/1"
    torch.testing.assert_close(torch.tensor(answer["mean"]), expected.mean, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(torch.tensor(answer["variance"]), expected.variance, rtol=1e-5, atol=1e-6)
    assert "Warning" not in server.log.read_text(encoding="utf-8")
    for a, b in ((A, B), (B, A)):
        answer = server.good("/similarity", {"a": a, "b": b})
        assert answer["similarity"] == pytest.approx(encoder.similarity(a, b).tolist(), rel=1e-5)
        answer = server.good("/relation", {"premises": a, "hypotheses": b})
        rows = [dict(zip(RELATIONS, row, strict=True)) for row in np.stack(encoder.relation(a, b), 1).tolist()]
        assert [pytest.approx(row, rel=1e-4) for row in rows] == answer["relation"]
        assert answer["label"] == encoder.decide(a, b)
        entails = server.good("/entails", {"premises": a, "hypotheses": b})
        assert (entails["model"], entails["threshold"]) == (
            answer["model"],
            encoder.calibration and encoder.calibration.threshold,
        )
        assert entails["score"] == pytest.approx(encoder.score(a, b).tolist(), rel=1e-4)
        assert entails["entails"] == encoder.entails(a, b).tolist() == [label == "entailment" for label in answer["label"]]
        assert (answer["cut"], answer["unknown"]) == (entails["cut"], entails["unknown"])
        assert answer["unknown"] == encoder.encode_counted([*a, *b])[1].strange >= 1
    assert {True, False} == {*encoder.entails(A, B).tolist()}
    answer = server.good("/encode", {"sentences": ["a dog runs", "dog " * 100, "犬が走る"]})
    assert (answer["cut"], answer["unknown"]) == (1, 1)


def shape(answer: Any) -> Any:
    """Names and kinds of an answer; of a list, its first item's."""
    if isinstance(answer, dict):
        return {name: shape(value) for name, value in answer.items()}
    return [shape(answer[0])] if isinstance(answer, list) and answer else type(answer).__name__


def test_the_examples_of_the_description_are_answers(registry: Registry, encoder: GaussianEncoder, server: Server) -> None:
    """Each operation has a sentence; its example body is answered, with what its example answer has."""
    description, compared = server.good("/openapi.json"), 0
    for path, operations in description["paths"].items():
        ((method, operation),) = operations.items()
        assert len(operation["description"].split()) > 2, path
        content = operation["responses"]["200"]["content"]
        if path in ("/metrics", "/operate"):
            continue
        body = None
        if method == "post":
            (reference,) = operation["requestBody"]["content"]["application/json"]["schema"].values()
            fields = description["components"]["schemas"][reference.rpartition("/")[2]]["properties"]
            body = {name: field["examples"][0] for name, field in fields.items() if "examples" in field}
            if path == "/v1/embeddings":
                body["model"] = registry.name
        expected, got = content["application/json"]["example"], server.good(path, body)
        if path == "/search":
            assert got["results"][0][0].pop("note") >= 0
        if path in ("/encode", "/v1/embeddings", "/health"):
            # Which numbers a model has, and whether its registry answers, is its own.
            assert expected.keys() == got.keys()
        assert shape(expected) == shape(got), path
        compared += 1
    assert compared == 10


def test_openais_client_gets_the_means(registry: Registry, encoder: GaussianEncoder, server: Server) -> None:
    client, model = openais_client(server), f"{registry.name}/1"
    assert [known.id for known in client.models.list()] == [registry.name, model]
    # Unless it is asked for something else, the client asks for base64 and decodes it.
    options: list[dict[str, Any]] = [{}, {"encoding_format": "float"}, {"dimensions": encoder.dim, "user": "somebody"}]
    for name, texts, more in itertools.product((registry.name, model), (A, A[2]), options):
        answer = client.embeddings.create(model=name, input=texts, **more)
        rows = [texts] if isinstance(texts, str) else texts
        assert (answer.object, answer.model) == ("list", model)
        assert [(row.object, row.index) for row in answer.data] == [("embedding", row) for row in range(len(rows))]
        means = torch.tensor([row.embedding for row in answer.data])
        torch.testing.assert_close(means, encoder.encode(rows).mean, rtol=1e-5, atol=1e-6)
        tokens = sum(len(ids) for ids in encoder.tokenizer(rows)["input_ids"])
        assert answer.usage.to_dict() == {"prompt_tokens": tokens, "total_tokens": tokens}
    (row,) = client.embeddings.create(model=model, input=A[0], encoding_format="base64").data
    assert isinstance(row.embedding, str)
    mean = np.frombuffer(base64.b64decode(row.embedding), "<f4")
    np.testing.assert_allclose(mean, encoder.encode(A[:1]).mean[0], rtol=1e-5, atol=1e-6)


TOKENS = "input: is neither a text nor a list of texts; token ids are not taken"


@pytest.mark.parametrize(
    ("changes", "error", "status", "words"),
    [
        ({"input": [[1037, 3899], [1037]]}, openai.UnprocessableEntityError, 422, TOKENS),
        ({"dimensions": 3}, openai.UnprocessableEntityError, 422, "dimensions: {model}/1 has {dim}, which cannot be changed"),
        ({"model": "gpt"}, openai.NotFoundError, 404, "model: 'gpt' is not served here; {model}/1 ('{model}') is"),
    ],
)
def test_openais_client_raises_its_own_errors_with_the_servers_words(
    registry: Registry,
    encoder: GaussianEncoder,
    server: Server,
    changes: dict[str, Any],
    error: type[openai.APIStatusError],
    status: int,
    words: str,
) -> None:
    asked: dict[str, Any] = {"model": registry.name, "input": "A dog runs."} | changes
    with pytest.raises(error) as caught:
        openais_client(server).embeddings.create(**asked)
    assert isinstance(caught.value.body, dict)
    assert (caught.value.status_code, caught.value.body["code"]) == (status, status)
    assert caught.value.body["message"].startswith(words.format(model=registry.name, dim=encoder.dim))


S = {"sentences": ["A dog runs."]}


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/encode", {}, 422, "sentences: Field required"),
        ("/encode", {"sentences": ["A dog runs.", 3]}, 422, "sentences.1: Input should be a valid string"),
        ("/encode", {"sentences": []}, 422, "sentences: is empty"),
        ("/encode", S | {"sentence": "x"}, 422, "sentence: Extra inputs are not permitted"),
        ("/encode", {"sentences": ["a"] * 51}, 413, "51 rows in one request; send at most 50"),
        ("/encode", {"sentences": ["a", "a" * 1001]}, 413, "sentences[1]: 1001 characters are too many; send at most 1000"),
        ("/encode", {"sentences": ["a" * 999] * 25}, 413, "larger than 20000 bytes"),
        ("/encode", b'{"sentences": ["\\ud83d"]}', 422, "sentences[0]: has half a character"),
        ("/encode", b"{", 400, "the body is not JSON"),
        ("/encode", b"[" * 300, 400, "body"),
        ("/encode", b"[" * 10_000, 413, "too many values"),
        ("/encode", b'{"sentences": ["\xff"]}', 400, "body"),
        ("/similarity", {"a": ["x", "y"], "b": ["x"]}, 422, "a has 2 sentences and b has 1"),
        ("/search", S | {"k": 0}, 422, "k: Input should be greater than or equal to 1"),
        ("/search", S | {"min_sim": math.nan}, 422, "min_sim: Input should be a finite number"),
        ("/search", {"sentences": ["a"] * 21, "k": 1000}, 413, "21 sentences with k = 1000; ask for at most 20000 results"),
        ("/nothing", {}, 404, "Not Found"),
        ("/encode", None, 405, "Method Not Allowed"),
    ],
)
def test_a_wrong_request_is_refused_with_words(server: Server, path: str, body: Any, status: int, words: str) -> None:
    got, answer = server.ask(path, body)
    assert (got, answer["error"]["code"]) == (status, status)
    assert words in answer["error"]["message"]


def test_only_probes_and_the_page_need_no_token(server: Server) -> None:
    for authorization in ("", "Bearer", "Bearer wrong-but-as-long-as-it", TOKEN, f"Basic {TOKEN}"):
        for path, body in (("/encode", S), ("/health", None), ("/metrics", None), ("/nothing", None)):
            status, answer = server.ask(path, body, headers={"Authorization": authorization})
            assert status == 401
            assert "Authorization: Bearer TOKEN" in answer["error"]["message"]
    for path in ("/live", "/ready", "/docs", "/openapi.json", "/", "/page/script.js", "/page/style.css"):
        assert server.ask(path, headers={"Authorization": ""})[0] == 200
    assert server.ask("/encode", S, headers={"Authorization": "Bearer another-token-of-16"})[0] == 200


LIVE = b"GET /live HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = b"POST /encode HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
ENDLESS = {
    "request line": (b"GET /", b"a" * 50_000),
    "header": (LIVE + b"A: ", b"a" * 50_000),
    "many headers": (LIVE, b"a: b\r\n" * 8_000),
    "empty lines before": (b"", b"\r\n" * 25_000),
    "extension of a chunk": (CHUNKED + b"1;a=", b"a" * 50_000),
    "trailer": (CHUNKED + b"0\r\nA: ", b"a" * 50_000),
    "many trailers": (CHUNKED + b"0\r\n", b"a: b\r\n" * 8_000),
}


@pytest.mark.parametrize("kind", ENDLESS)
def test_a_header_without_end_takes_no_memory(server: Server, kind: str) -> None:
    """Without a token: it would otherwise take as much as the client sends, here up to 30 MB."""
    start, more = ENDLESS[kind]
    server.good("/live")
    before = server.process.memory_info().rss
    most, closed = before, False
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as hostile:
        try:
            hostile.sendall(start)
            for part in range(600):
                hostile.sendall(more)
                most = max(most, server.process.memory_info().rss)
                if part % 20 == 10:
                    assert server.good("/live") == {"live": True}
        except (BrokenPipeError, ConnectionResetError):
            closed = True
    assert closed
    assert most - before < 8_000_000


def test_a_header_that_is_too_long_is_refused_with_words(server: Server) -> None:
    status, answer = server.ask("/live", headers={"A": "a" * HEADER_BYTES})
    assert (status, answer["error"]["code"]) == (431, 431)
    assert server.ask("/live", headers={"A": "a" * (HEADER_BYTES - 1000)})[0] == 200


def test_search_is_that_of_the_index(encoder: GaussianEncoder, corpus: str, server: Server) -> None:
    read = read_gaussians(corpus)
    index, queries = EntailmentIndex.build(read.gaussians), ["A dog runs.", "Nobody eats."]
    for way in ("entails", "entailed"):
        expected = index.search(encoder.encode(queries), way, 5)
        answer = server.good("/search", {"sentences": queries, "way": way, "k": 5})["results"]
        assert [[hit["row"] for hit in hits] for hits in answer] == expected.rows.tolist()
        assert [hit["score"] for hits in answer for hit in hits] == pytest.approx(expected.sims.ravel().tolist(), rel=1e-4)
        assert all(hit["sentence"] == SENTENCES[hit["row"]] and hit["note"] == hit["row"] for hits in answer for hit in hits)
        least = float(expected.sims[0, 2]) * (1 - 1e-4)
        (few,) = server.good("/search", {"sentences": queries[:1], "way": way, "k": 5, "min_sim": least})["results"]
        assert len(few) == (expected.sims[0] >= least).sum()
    rows, _ = nearest(read.gaussians.mean, encoder.encode(queries).mean, 3)
    answer = server.good("/search", {"sentences": queries, "by": "cosine", "k": 3})["results"]
    assert [[hit["row"] for hit in hits] for hits in answer] == rows.tolist()


def test_the_page_of_the_api_fetches_nothing_from_elsewhere(server: Server) -> None:
    page = server.good("/docs")
    assert "https://" not in page
    for name in ("swagger-ui-bundle.js", "swagger-ui.css"):
        assert f"/static-offline-docs/{name}" in page
        assert len(server.good(f"/static-offline-docs/{name}")) > 10_000


def test_the_relation_head_ranks_what_is_found(server: Server, encoder: GaussianEncoder) -> None:
    # Two queries of different lengths, so that the second one's tokens are not at the beginning.
    queries = ["A dog runs across a big field.", "A dog runs."]
    found = server.good("/search", {"sentences": queries, "by": "relation", "way": "entails", "k": 3})["results"]
    for text, hits in zip(queries, found, strict=True):
        expected = encoder.score(SENTENCES, [text] * len(SENTENCES)).sort(descending=True).values[:3]
        assert [hit["score"] for hit in hits] == pytest.approx(expected.tolist(), rel=1e-3)


def test_after_a_swap_only_a_corpus_of_the_new_version_is_searched(registry: Registry, later: Path, server: Server) -> None:
    registry.promote(registry.add(2))
    server.until(lambda: server.serves(2), "the second version answers")
    status, answer = server.ask("/search", S)
    assert status == 409
    assert f"/2 does not search: {later}/2/encoded: no _manifest.json here" in answer["error"]["message"]
    (later / "2").mkdir()
    corpus = registry.encode_corpus(2, pa.table({"sentence": SENTENCES}), later / "2")
    server.until(lambda: server.ask("/search", S)[0] == 200, "its corpus is seen")
    (hits,) = server.good("/search", S)["results"]
    expected = EntailmentIndex.build(read_gaussians(corpus).gaussians).search(
        registry.encoder(2).encode(S["sentences"]), "entailed", 10
    )
    assert [hit["row"] for hit in hits] == expected.rows[0].tolist()
    # Nor has it the first version's relation head.
    for path, body in (("/relation", {"premises": ["x"], "hypotheses": ["y"]}), ("/search", S | {"by": "relation"})):
        status, answer = server.ask(path, body)
        assert status == 409 and "no relation head" in answer["error"]["message"]
    status, answer = server.ask("/entails", {"premises": ["x"], "hypotheses": ["y"]})
    assert status == 409 and "has no threshold; ask /similarity" in answer["error"]["message"]
