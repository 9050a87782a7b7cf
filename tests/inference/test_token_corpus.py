"""Token vectors in an encoded corpus: what is written, and what a relation head ranks by."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import pipeline
from pipeline.cli.encode import main as encode
from pipeline.cli.search import main as search
from pipeline.inference.corpus import read_gaussians
from pipeline.inference.entailment_index import EntailmentIndex, Searchable
from pipeline.models.encoder import GaussianEncoder
from pipeline.models.model_dir import encoder_digest
from pipeline.serving.corpora import searchable
from pipeline.utils.errors import UserError
from tests.distributed.bulk import encode_here, make_project
from tests.relations import drawn_relation

TEXTS = ["a dog runs", "", "the cat on the mat", "a man", None, "a dog runs", "the man on the dog", "dog"]
KEPT = [text for text in TEXTS if text]


@pytest.fixture
def project(tmp_path: Path, tiny_backbone: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = make_project(tmp_path, tiny_backbone)
    encoder = GaussianEncoder.from_pretrained(root / "model")
    encoder.relation_head = drawn_relation()
    encoder.save_pretrained(root / "tokens")
    pq.write_table(pa.table({"text": pa.array(TEXTS, pa.string())}), root / "texts.parquet")
    monkeypatch.chdir(root)
    return root


def written(root: Path, out: str, *, tokens: bool) -> GaussianEncoder:
    encoder = GaussianEncoder.from_pretrained(root / "tokens")
    relation = encoder.relation_head
    assert relation is not None
    digest = relation.projection.digest if tokens else None
    encode_here(encoder, root / "texts.parquet", out, keep=["text"], model=encoder_digest(root / "tokens"), tokens=digest)
    return encoder


def test_a_corpus_is_ranked_by_the_scores_that_its_sentences_get(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    encoder = written(project, "with", tokens=True)
    corpus, query = read_gaussians("with", encoder.relation_head), "the man"
    assert [TEXTS[row] for row in corpus.rows] == corpus.kept["text"].to_pylist() == KEPT
    assert encoder.relation_head is not None
    rows, scores = EntailmentIndex.build(corpus.gaussians).ranked(encoder.encode([query]), "entails", encoder.relation_head, 3)
    expected = encoder.score(KEPT, [query] * len(KEPT)).numpy()
    np.testing.assert_allclose(scores[0], np.sort(expected)[::-1][:3], rtol=1e-3)
    np.testing.assert_allclose(expected[rows[0]], scores[0], rtol=1e-3)
    search(["with", query, "--way", "entails", "--by", "relation", "-k", "3", "--model", "tokens"])
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [f"{score:.4f}" for score in scores[0]]


def test_a_corpus_without_kept_columns_is_searched(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    encoder = GaussianEncoder.from_pretrained(project / "tokens")
    encode_here(encoder, project / "texts.parquet", "bare", keep=[], model=encoder_digest(project / "tokens"))
    expected = Searchable.of(encoder, KEPT, ("entails",), "similarity").search(
        encoder.encode(["the man"]), "entails", 3, -math.inf, "similarity"
    )[0]
    assert len(expected) == 3
    search(["bare", "the man", "--way", "entails", "-k", "3", "--model", "tokens"])
    found = [line.split("  row ") for line in capsys.readouterr().out.splitlines()]
    # Some texts are there twice.
    assert [(score, TEXTS[int(row)]) for score, row in found] == [(f"{one['score']:.4f}", one["sentence"]) for one in expected]


def test_without_the_vectors_of_this_head_nothing_is_ranked_by_it(project: Path) -> None:
    encoder = written(project, "without", tokens=False)
    written(project, "with", tokens=True)
    relation = encoder.relation_head
    assert relation is not None
    assert read_gaussians("with").gaussians.tokens is None
    # A folder of a version that knew no token vectors.
    manifest = json.loads((project / "without/_manifest.json").read_text())
    del manifest["tokens"]
    (project / "without/_manifest.json").write_text(json.dumps(manifest))
    with torch.no_grad():
        relation.projection.bias.add_(0.01)
    for out in ("without", "with"):
        assert read_gaussians(out, relation).gaussians.tokens is None
        searched = searchable([out], encoder_digest(project / "tokens"), "kl", relation)
        assert searched is not None
        with pytest.raises(UserError, match=r"the relation head reads token vectors.*gausscse encode --tokens"):
            searched.search(encoder.encode(["a man"]), "entails", 3, 0.0, "relation")
        assert searched.search(encoder.encode(["a man"]), "entails", 3, 0.0, "similarity")
    with pytest.raises(UserError, match=r"^--by relation: .*gausscse encode --tokens"):
        search(["without", "a man", "--by", "relation", "--model", "tokens"])


def test_search_from_python(project: Path) -> None:
    """The same rows from a folder, from sentences and from a Searchable; one that another model made is refused."""
    encoder = written(project, "with", tokens=True)
    ask = dict[str, Any](way="entails", k=np.int64(2), by="relation")
    encoder.save_pretrained(project / "again")
    model = pipeline.load(project / "again")
    model.digest = encoder.digest
    (single,) = pipeline.search(model, "with", ["the man"], **ask)
    assert [row["row"] for row in single] == [row["row"] for row in pipeline.search(model, Path("with"), "the man", **ask)]
    kept = pipeline.Searchable.of(model, KEPT, ("entails",), "relation")
    found = pipeline.search(model, kept, "the man", **ask)
    assert [row["sentence"] for row in found] == [row["text"] for row in single]
    assert [row["score"] for row in found] == pytest.approx([row["score"] for row in single], rel=1e-3)
    assert pipeline.search(model, kept, "the man", **{**ask, "min_score": found[0]["score"]}) == found[:1]
    for change, words in (
        ({"by": "x"}, r"^by is 'x': write similarity or relation or cosine$"),
        ({"way": 1}, r"^way is 1: write entails or entailed$"),
        ({"k": "3"}, r"^k is '3': write a whole number of at least 1$"),
    ):
        with pytest.raises(pipeline.UserError, match=words):
            pipeline.search(model, kept, "the man", **{**ask, **change})
    for ways, by, said in ((("entail",), "cosine", "way is 'entail'"), ("entails", "foo", "by is 'foo'")):
        with pytest.raises(pipeline.UserError, match=said):
            pipeline.Searchable.of(model, KEPT, cast(Any, ways), cast(Any, by))
    # One way needs no tuple.
    one = pipeline.Searchable.of(model, KEPT, "entails", "similarity")
    assert pipeline.search(model, one, KEPT[0], way="entails", k=1)[0]["sentence"] == KEPT[0]
    by_cosine = pipeline.Searchable.of(model, KEPT, ("entails",), "cosine")
    with pytest.raises(UserError, match=r"^the Searchable cannot rank by similarity; make it with by='similarity'$"):
        pipeline.search(model, by_cosine, "the man", by="similarity")
    with pytest.raises(UserError, match="made by another model"):
        pipeline.search(GaussianEncoder.from_pretrained(project / "model"), replace_model(kept), "the man")


def replace_model(searchable: Any) -> Any:
    return replace(searchable, corpus=replace(searchable.corpus, model="another"))


def test_in_a_checkout_each_module_is_there_once() -> None:
    assert import_module("gausscse.utils.errors").UserError is UserError
    assert import_module("gausscse.models.encoder").GaussianEncoder is GaussianEncoder


def test_a_model_without_such_a_head_is_refused_before_anything_is_written(project: Path) -> None:
    with pytest.raises(UserError, match=r"^--tokens: model has no relation head, and only such a head reads tokens"):
        encode(["texts.parquet", "out", "--column", "text", "--model", "model", "--tokens"])
    assert not (project / "out").exists()
