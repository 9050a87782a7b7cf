"""The recipe for vector stores: DuckDB finds the rows that `gausscse search` finds, by plain inner products."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import pipeline.registry.loading
from pipeline.cli.search import main
from pipeline.data.generated import generate
from pipeline.gaussian.distribution import Gaussian, kl_divergence
from pipeline.inference.corpus import read_gaussians
from pipeline.inference.entailment_index import EntailmentIndex
from pipeline.inference.index_vectors import WAYS, Frame, Way
from pipeline.models.encoder import GaussianEncoder
from pipeline.models.model_dir import encoder_digest
from pipeline.utils.errors import UserError
from tests.distributed.bulk import encode_here, make_project
from tests.pages import python_of

QUERIES = ["a dog is running in a park", "nobody sleeps", "three animals"]
K = 12


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, tiny_backbone: Path) -> Path:
    """A project with a model and a corpus that it encoded, without Ray. Some sentences occur twice."""
    root = make_project(tmp_path_factory.mktemp("store"), tiny_backbone)
    encoder = GaussianEncoder.from_pretrained(root / "model")
    with torch.no_grad():
        # A new head gives all sentences nearly the same variances.
        encoder.variance_head.weight.mul_(20)
    encoder.save_pretrained(root / "wide")
    rows = generate("train", 600, 1)
    pq.write_table(pa.table({"premise": [None, *(premise for premise, *_ in rows)][:601]}), root / "premises.parquet")
    encode_here(encoder, root / "premises.parquet", root / "encoded", "premise", ["premise"], model=encoder_digest(root / "wide"))
    return root


@pytest.fixture(scope="module")
def recipe(project: Path) -> dict[str, Any]:
    """The names that the page's code defines, once it has filled the database and opened it again."""
    names: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(project)
        patch.setattr(pipeline.registry.loading, "encoder_folder", lambda *_: nullcontext(project / "wide"))
        filling, searching = python_of("export.md", "Your own vector store")
        exec(filling, {})
        exec(searching, names)
    return names


@pytest.mark.usefixtures("recipe")
def test_another_model_is_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    monkeypatch.setattr(pipeline.registry.loading, "encoder_folder", lambda *_: nullcontext(project / "model"))
    with pytest.raises(SystemExit, match=r"another model encoded corpus\.duckdb"):
        exec(python_of("export.md", "Your own vector store")[1], {})


def test_the_command_refuses_another_model_too(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its query would be compared with vectors of other weights."""
    monkeypatch.chdir(project)
    words = r"^encoded: was encoded by another model or engine; name those that did, or encode it again"
    with pytest.raises(UserError, match=words):
        main(["encoded", QUERIES[0], "--model", "model"])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("query", QUERIES)
def test_the_database_ranks_as_the_command_does(
    project: Path,
    recipe: dict[str, Any],
    way: Way,
    query: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(project)
    main(["encoded", query, "--way", way, "-k", str(K), "--model", "wide"])
    lines = [line.split("  ") for line in capsys.readouterr().out.splitlines()]
    found = recipe["search"](query, way, K)
    assert [(f"row {row}", premise) for _, row, premise in found] == [(line[1], line[2]) for line in lines]
    assert len(found) == K
    # The command prints four digits; the index has them all.
    corpus = read_gaussians("encoded").gaussians
    sims = EntailmentIndex.build(corpus, (way,)).search(recipe["encoder"].encode([query]), way, K).sims[0]
    np.testing.assert_allclose([similarity for similarity, _, _ in found], sims, rtol=0, atol=1e-6)


@pytest.mark.parametrize("way", WAYS)
def test_the_two_feature_maps_are_the_kl(way: Way) -> None:
    g = torch.Generator().manual_seed(5)
    corpus, queries = (Gaussian(3 + torch.randn(n, 6, generator=g), torch.randn(n, 6, generator=g)) for n in (40, 7))
    frame = Frame.of(corpus)
    vectors, constants = frame.query_vectors(queries, way)
    products = vectors @ frame.row_vectors(corpus, way).T
    q, x = (Gaussian(one.mean.double()[index], one.log_var.double()[index]) for one, index in (
        (queries, torch.arange(7).repeat_interleave(40)), (corpus, torch.arange(40).repeat(7))
    ))  # fmt: skip
    expected = kl_divergence(q, x) if way == "entails" else kl_divergence(x, q)
    torch.testing.assert_close(-(products + constants) / 2, expected.view(7, 40), rtol=1e-9, atol=1e-9)
