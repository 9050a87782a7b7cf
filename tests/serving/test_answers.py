"""The answers of `gausscse serve` are those of the Python API."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from pipeline.data.schema import RELATIONS
from pipeline.models.encoder import GaussianEncoder
from tests.relations import drawn_relation
from tests.serving.server import Registry, Server, serving

A = ["A dog runs across a field.", "An animal is moving.", "Ein Hund läuft.", "Zürich — 日本 🐕"]
B = ["An animal is moving.", "A dog runs across a field.", "Nobody sleeps.", "A dog runs."]


@pytest.fixture(scope="module")
def server(registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    def with_relation(encoder: GaussianEncoder) -> None:
        encoder.relation_head = drawn_relation(encoder.dim)

    registry.add(1, with_relation)
    with serving(registry, tmp_path_factory.mktemp("server"), root=tmp_path_factory.mktemp("empty")) as running:
        yield running


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


def test_embeddings_have_the_shape_of_openai(registry: Registry, server: Server) -> None:
    encoder = registry.encoder(1)
    mean = encoder.encode(A).mean
    answer = server.good("/v1/embeddings", {"input": A, "model": registry.name, "user": "somebody"})
    assert answer["object"] == "list"
    assert [(row["object"], row["index"]) for row in answer["data"]] == [("embedding", row) for row in range(4)]
    torch.testing.assert_close(torch.tensor([row["embedding"] for row in answer["data"]]), mean, rtol=1e-5, atol=1e-6)
    tokens = sum(len(ids) for ids in encoder.tokenizer(A)["input_ids"])
    assert answer["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    body = {"input": A[0], "model": answer["model"], "encoding_format": "base64"}
    (row,) = server.good("/v1/embeddings", body)["data"]
    np.testing.assert_allclose(np.frombuffer(base64.b64decode(row["embedding"]), "<f4"), mean[0], rtol=1e-5, atol=1e-6)
