"""The answers of `gausscse serve` are those of the Python API, also to the client of OpenAI's API."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import torch

from pipeline.data.schema import RELATIONS
from pipeline.models.encoder import GaussianEncoder
from tests.relations import drawn_relation
from tests.serving.server import Registry, Server, serving

TOKEN = "a-token-of-more-than-16"
A = ["A dog runs across a field.", "An animal is moving.", "Ein Hund läuft.", "Zürich — 日本 🐕"]
B = ["An animal is moving.", "A dog runs across a field.", "Nobody sleeps.", "A dog runs."]


@pytest.fixture(scope="module")
def server(registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    def with_relation(encoder: GaussianEncoder) -> None:
        encoder.relation_head = drawn_relation(encoder.dim)

    registry.add(1, with_relation)
    with serving(registry, tmp_path_factory.mktemp("server"), token=TOKEN, root=tmp_path_factory.mktemp("empty")) as running:
        yield running


def openais_client(server: Server, token: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key=token, max_retries=0)


def test_outside_a_project_it_takes_this_machine(registry: Registry, server: Server) -> None:
    """All answers of this file are given in an empty folder, which stays empty."""
    assert server.good("/health")["serving"]["model"] == f"{registry.name}/1"
    assert list(Path(server.process.cwd()).iterdir()) == []
    assert "(cluster.device: auto, and Ray finds " in server.lines()


def test_encode_similarity_and_relation_are_the_encoders(registry: Registry, server: Server) -> None:
    encoder = registry.encoder(1)
    answer, expected = server.good("/encode", {"sentences": A}), encoder.encode(A)
    assert answer["model"] == f"{registry.name}/1"
    torch.testing.assert_close(torch.tensor(answer["mean"]), expected.mean, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(torch.tensor(answer["variance"]), expected.variance, rtol=1e-5, atol=1e-6)
    assert "Warning" not in server.log.read_text(encoding="utf-8")
    for a, b in ((A, B), (B, A)):
        answer = server.good("/similarity", {"a": a, "b": b})
        assert answer["similarity"] == pytest.approx(encoder.similarity(a, b).tolist(), rel=1e-5)
        answer = server.good("/relation", {"premises": a, "hypotheses": b})
        rows = [dict(zip(RELATIONS, row, strict=True)) for row in encoder.relation(a, b).tolist()]
        assert [pytest.approx(row, rel=1e-4) for row in rows] == answer["relation"]


def test_openais_client_gets_the_means(registry: Registry, server: Server) -> None:
    encoder, client = registry.encoder(1), openais_client(server, TOKEN)
    model = f"{registry.name}/1"
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
        ({"input": ["A dog runs.", 3]}, openai.UnprocessableEntityError, 422, TOKENS),
        ({"input": []}, openai.UnprocessableEntityError, 422, "input: is empty; send at least one sentence"),
        ({"dimensions": 3}, openai.UnprocessableEntityError, 422, "dimensions: {model}/1 has {dim}, which cannot be changed"),
        ({"model": "gpt"}, openai.NotFoundError, 404, "model: 'gpt' is not served here; {model}/1 ('{model}') is"),
        ({"input": ["A dog runs."] * 1025}, openai.APIStatusError, 413, "input: 1025 rows in one request; send at most 1024"),
    ],
)
def test_openais_client_raises_its_own_errors_with_the_servers_words(
    registry: Registry, server: Server, changes: dict[str, Any], error: type[openai.APIStatusError], status: int, words: str
) -> None:
    client = openais_client(server, TOKEN)
    asked: dict[str, Any] = {"model": registry.name, "input": "A dog runs."} | changes
    with pytest.raises(error) as caught:
        client.embeddings.create(**asked)
    assert isinstance(caught.value.body, dict)
    assert (caught.value.status_code, caught.value.body["code"]) == (status, status)
    assert caught.value.body["message"].startswith(words.format(model=registry.name, dim=registry.encoder(1).dim))


def test_openais_client_needs_the_token(registry: Registry, server: Server) -> None:
    client = openais_client(server, "wrong-but-as-long-as-it")
    for ask in (client.models.list, lambda: client.embeddings.create(model=registry.name, input="A dog runs.")):
        with pytest.raises(openai.AuthenticationError, match="Authorization: Bearer TOKEN"):
            ask()
