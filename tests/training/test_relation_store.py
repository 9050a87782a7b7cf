"""Relation heads in the storage: fitted once for a model, its data and its parameters, and again where any of these differs."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pipeline.config.load import load_params
from pipeline.config.params import RelationParams
from pipeline.config.paths import DEV_TOKENS, TRAIN_TOKENS
from pipeline.data.token_sets import PairSet, read_pairs
from pipeline.data.token_store import open_store
from pipeline.evaluation.encoding import Encode, encode_here
from pipeline.families.pairs import relation_store
from pipeline.families.pairs.relation import fit_head
from pipeline.families.pairs.relation_store import relation_for
from pipeline.gaussian.distribution import Gaussian
from pipeline.models.encoder import GaussianEncoder
from pipeline.models.model_dir import RELATION_WEIGHTS, add_relation, relation_digest
from pipeline.models.relation_head import ScoreKind, read_relation
from pipeline.models.token_head import TokenHead, TokenProjection
from pipeline.trials.store import TrialStore
from pipeline.utils.errors import UserError
from tests.conftest import PLAIN
from tests.relations import drawn_relation
from tests.store import make_store
from tests.trial_of import tiny_encoder

P = load_params(PLAIN)
Fit = Callable[..., Path]


@pytest.fixture
def fit(tmp_path: Path, tiny_backbone: Path) -> Fit:
    r = np.random.default_rng(0)
    sentences = [[2, *r.integers(5, 30, r.integers(1, 11)).tolist(), 3] for _ in range(60)]
    pairs = [(*r.integers(0, 60, 2).tolist(), k % 3) for k in range(90)]
    make_store(tmp_path / TRAIN_TOKENS, sentences, triplets=[(0, 1, 2)], pairs={"pairs": pairs})  # type: ignore[dict-item]
    make_store(tmp_path / DEV_TOKENS, sentences, pairs={"dev": pairs[:45]})  # type: ignore[dict-item]
    for seed in (1, 2):
        tiny_encoder(tiny_backbone, seed).save_pretrained(tmp_path / f"model-{seed}")
    trials = TrialStore(train_tokens=tmp_path, dev_tokens=tmp_path, storage=tmp_path / "storage")

    def fitted(
        model: int = 1,
        kind: ScoreKind = "kl",
        seed: int = 1,
        *,
        encode: Encode = encode_here,
        params: RelationParams = P.relation,
    ) -> Path:
        folder = tmp_path / f"model-{model}"

        def here(what: Callable[[Path, Path, Encode], Any], model: Path, store: Path, /) -> Any:
            return what(model, store, encode)

        return relation_for("a model", folder, kind, params, seed, tmp_path, trials, here)

    return fitted


def rebuild(store: Path, more: Sequence[list[int]] = (), **tables: Any) -> None:
    """The store with its sentences, more of them, and other tables."""
    sentences = [open_store(store)[row].tolist() for row in range(60)]
    shutil.rmtree(store)
    make_store(store, [*sentences, *more], **tables)


def never(folder: Path, stores: Sequence[Path], /, **how: object) -> Sequence[Gaussian]:
    raise AssertionError(f"{folder} was encoded")


def rows_of(store: Path, name: str) -> list[tuple[int, int, int]]:
    pairs = read_pairs(store, name)
    return list(zip(pairs.premise.tolist(), pairs.hypothesis.tolist(), pairs.label.tolist(), strict=True))


def test_a_head_is_fitted_once(fit: Fit, capsys: pytest.CaptureFixture[str]) -> None:
    kept = fit()
    assert "relation head of a model: pass 5 of 5, loss " in capsys.readouterr().out
    assert fit(encode=never) == kept
    assert capsys.readouterr().out == "relation head of a model: reused, fitted before\n"
    assert read_relation(kept) is not None


def test_a_token_head_reads_the_vectors_of_its_own_projection(fit: Fit, tmp_path: Path) -> None:
    kept = fit()
    relation = read_relation(kept)
    assert relation is not None
    pairs = read_pairs(tmp_path / DEV_TOKENS, "dev")
    add_relation(kept, tmp_path / "model-1")
    # The model encodes with its head's projection, without being asked.
    (own,) = encode_here(tmp_path / "model-1", [tmp_path / DEV_TOKENS])
    (given,) = encode_here(tmp_path / "model-1", [tmp_path / DEV_TOKENS], project=relation.projection)
    assert own.tokens is not None and given.tokens is not None
    assert (own.tokens.packed().table == given.tokens.packed().table).all()
    relation.score(own[pairs.premise.astype(np.int64)], own[pairs.hypothesis.astype(np.int64)])
    with pytest.raises(UserError, match="reads token vectors, and these Gaussians have none"):
        relation.score(*encode_here(tmp_path / "model-2", [tmp_path / DEV_TOKENS]) * 2)


def test_a_head_starts_from_the_projection_that_was_trained_with_the_encoder(
    fit: Fit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = GaussianEncoder.from_pretrained(tmp_path / "model-1")
    joint = drawn_relation().head
    encoder.save_pretrained(tmp_path / "model-3", joint)
    encoder.save_pretrained(tmp_path / "model-4", torch.nn.ModuleDict({"projection": torch.nn.Linear(2, 2)}))
    starts: list[str] = []

    def seen(sentences: Gaussian, pairs: PairSet, first: TokenProjection, start: TokenProjection, **how: Any) -> TokenHead:
        starts.append(start.digest)
        return fit_head(sentences, pairs, first, start, **how)

    monkeypatch.setattr(relation_store, "fit_head", seen)
    for model in (3, 4, 1):
        fit(model)
    assert starts[0] == joint.projection.digest
    # Other modules are not a head.
    assert starts[1] == starts[2] != starts[0]


@pytest.mark.parametrize("precision", ["bf16", "fp32", None])
def test_training_sentences_are_encoded_in_the_precision_of_the_training_and_the_others_in_float32(
    fit: Fit, tmp_path: Path, precision: str | None
) -> None:
    notes: dict[str, Any] = {"trial": {"train": {"precision": precision}}} if precision else {}
    notes |= {"capabilities": ["direction"], "similarity": "kl"}
    GaussianEncoder.from_pretrained(tmp_path / "model-1").save_pretrained(tmp_path / "model-3", **notes)
    calls: list[tuple[list[Path], bool]] = []

    def encode(folder: Path, stores: Sequence[Path], /, *, bf16: bool = False, **how: Any) -> Sequence[Gaussian]:
        calls.append(([store.relative_to(tmp_path) for store in stores], bf16))
        return encode_here(tmp_path / "model-2", stores, bf16=bf16, **how)

    fit(3, encode=encode)
    assert calls == [([TRAIN_TOKENS], precision == "bf16"), ([DEV_TOKENS], False)]


def test_another_model_score_seed_or_key_fits_another(fit: Fit) -> None:
    kept = fit()
    for changes in ({"model": 2}, {"kind": "cosine"}, {"seed": 2}, {"params": P.relation.model_copy(update={"epochs": 2})}):
        other = fit(**changes)
        assert relation_digest(other) != relation_digest(kept)


def test_the_weight_of_the_similarity_changes_the_score_and_not_the_head(fit: Fit, tmp_path: Path) -> None:
    plain = read_relation(fit())

    def on_dev(folder: Path, stores: Sequence[Path], /, **how: Any) -> Sequence[Gaussian]:
        assert stores == [tmp_path / DEV_TOKENS]
        return encode_here(folder, stores, **how)

    # No training sentence is encoded again.
    heavier = read_relation(fit(params=P.relation.model_copy(update={"similarity_weight": 3.0}), encode=on_dev))
    assert read_relation(fit(kind="cosine", encode=on_dev)) is not None
    assert heavier is not None
    assert plain is not None
    assert (heavier.scale.similarity_weight, plain.scale.similarity_weight) == (3.0, P.relation.similarity_weight)
    assert all((heavier.head.state_dict()[name] == value).all() for name, value in plain.head.state_dict().items())


@pytest.mark.parametrize("changed", ["training pairs", "development pairs", "code"])
def test_other_data_or_code_fits_another(fit: Fit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str) -> None:
    kept = fit()
    if changed == "code":
        monkeypatch.setattr(relation_store, "code_digest", lambda roots: "of other code")
    else:
        store = tmp_path / (TRAIN_TOKENS if changed == "training pairs" else DEV_TOKENS)
        name = "pairs" if changed == "training pairs" else "dev"
        rebuild(store, pairs={name: [(k, (7 * k + 1) % 60, (k // 2) % 3) for k in range(60)]})
    assert fit() != kept


def test_other_rows_in_the_stores_or_another_head_fit_no_other(fit: Fit, tmp_path: Path) -> None:
    kept = fit()
    add_relation(kept, tmp_path / "model-1")
    for store, name in ((TRAIN_TOKENS, "pairs"), (DEV_TOKENS, "dev")):
        rebuild(tmp_path / store, [[2, 9, 3]], rows={"documents": [(60,)]}, pairs={name: rows_of(tmp_path / store, name)})
    assert fit(encode=never) == kept


def test_a_damaged_head_is_fitted_again(fit: Fit) -> None:
    kept = fit()
    expected = relation_digest(kept)
    (kept / RELATION_WEIGHTS).write_bytes(b"")
    assert relation_digest(fit()) == expected


def test_the_head_is_fitted_on_the_minimal_pairs_too(fit: Fit, tmp_path: Path) -> None:
    without = relation_digest(fit())
    store = tmp_path / TRAIN_TOKENS
    rows = rows_of(store, "pairs")
    rebuild(store, pairs={"pairs": rows[:60], "minimal_pairs": rows[60:]})
    # The pairs of both sets, in this order, are those from which the first head was fitted.
    assert relation_digest(fit()) == without
    rebuild(store, pairs={"pairs": rows[:60], "minimal_pairs": rows[60:-1]})
    assert relation_digest(fit()) != without
