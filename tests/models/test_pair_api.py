"""What people ask of an encoder, against the definitions; and the threshold that it carries."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from pipeline.data.cleaning import is_empty
from pipeline.data.decision import EntailmentIf, decided
from pipeline.data.schema import RELATIONS
from pipeline.gaussian.distribution import similarity
from pipeline.models.encoder import GaussianEncoder
from pipeline.models.model_dir import CARD, THRESHOLDS, content_digest
from pipeline.models.threshold import Calibration, write_calibration
from pipeline.utils.atomic_io import write_sums
from pipeline.utils.errors import UserError
from tests.relations import drawn_relation
from tests.trial_of import tiny_encoder

A = ["a dog runs across a field", "two children play outside", ".", "a man plays a guitar on the street"]
B = ["an animal is moving", "nobody is outside", "a child sleeps", "a man plays"]
CALIBRATION = Calibration(threshold=0.5, entailment_if=">=", swept_on="dev", pairs="d" * 64, accuracy=80.0)


@pytest.fixture(scope="module")
def encoder(tiny_backbone: Path) -> GaussianEncoder:
    return tiny_encoder(tiny_backbone)


def test_similarity_and_direction_are_the_definitions(encoder: GaussianEncoder) -> None:
    a, b = encoder.encode(A), encoder.encode(B)
    for kind in ("kl", "kl-dimwise"):
        encoder.score_kind = kind
        forward, back = similarity(a, b, kind), similarity(b, a, kind)
        torch.testing.assert_close(encoder.similarity(A, B), forward)
        # What was encoded once is not encoded again.
        assert torch.equal(encoder.similarity(a, b), forward)
        torch.testing.assert_close(encoder.direction(A, B), back - forward)
        torch.testing.assert_close(encoder.direction(B, A), forward - back)
    encoder.score_kind = "kl"
    one = encoder.similarity(A[0], B[0])
    assert isinstance(one, float)
    assert one == pytest.approx(float(encoder.similarity(A[:1], B[:1])[0]))
    assert isinstance(encoder.direction(A[0], B[0]), float)
    # One side may be encoded already.
    torch.testing.assert_close(encoder.similarity(a, B), encoder.similarity(A, b))


@pytest.mark.parametrize("empty", ["", " \t\n", "\u200b", "\u2003\ufeff \u00a0", "\u00ad\u2063\u202a\x01\ufffd\ufe0f\u061c"])
def test_an_empty_sentence_gets_no_answer(encoder: GaussianEncoder, empty: str) -> None:
    """The same texts as readers of data drop as empty."""
    methods = [encoder.similarity, encoder.score, encoder.direction, encoder.relation, partial(encoder.entails, threshold=0.5)]
    encoder.relation_head = drawn_relation()
    try:
        for method in methods:
            with pytest.raises(UserError, match=r"^sentence 1 is empty or only white space; leave it out$"):
                method(A[0], empty)
            with pytest.raises(UserError, match="sentence 0 is empty"):
                method([empty, A[0]], A[:2])
        with pytest.raises(UserError, match="sentence 2 is empty"):
            encoder.encode([*A[:2], empty])
    finally:
        encoder.relation_head = None
    assert is_empty(empty)


def test_a_premise_entails_where_the_hypothesis_reaches_the_threshold(encoder: GaussianEncoder) -> None:
    score = encoder.similarity(B, A)
    middle = float(score.sort().values[2])
    for rule, expected in ((">=", score >= middle), (">", score > middle)):
        encoder.calibration = CALIBRATION.model_copy(update={"threshold": middle, "entailment_if": rule})
        assert torch.equal(encoder.entails(encoder.encode(A), encoder.encode(B)), expected)
    assert torch.equal(encoder.entails(A, B, threshold=2.0), torch.zeros(4, dtype=torch.bool))
    assert encoder.entails(A[0], B[0], threshold=0.0) is True
    encoder.calibration = None
    with pytest.raises(UserError, match="threshold is nan: write a number"):
        encoder.entails(A, B, threshold=float("nan"))
    with pytest.raises(UserError, match="this model has no threshold"):
        encoder.entails(A, B)


@pytest.mark.parametrize(
    ("chances", "threshold", "rule", "name"),
    [
        ([0.42, 0.05, 0.05, 0.48], 0.42, ">=", "entailment"),
        ([0.42, 0.05, 0.05, 0.48], 0.42, ">", "reversed"),
        ([0.42, 0.05, 0.05, 0.48], None, ">=", "reversed"),
        ([0.60, 0.05, 0.30, 0.05], 0.7, ">=", "contradiction"),
        ([0.60, 0.30, 0.05, 0.05], 0.7, ">=", "neutral"),
        ([0.60, 0.30, 0.05, 0.05], None, ">", "entailment"),
    ],
)
def test_a_pair_has_one_relation_which_the_threshold_decides(
    chances: list[float], threshold: float | None, rule: EntailmentIf, name: str
) -> None:
    assert decided([chances], threshold, rule) == [name]


@pytest.mark.parametrize("threshold", [None, 0.1, 0.3, 0.5, 0.9])
def test_what_is_entailed_is_never_called_something_else(encoder: GaussianEncoder, threshold: float | None) -> None:
    encoder.relation_head = drawn_relation()
    encoder.calibration = None if threshold is None else CALIBRATION.model_copy(update={"threshold": threshold})
    try:
        names = encoder.decide([*A, *B], [*B, *A])
        assert encoder.entails([*A, *B], [*B, *A]).tolist() == [name == "entailment" for name in names]
        chances = np.stack(encoder.relation([*A, *B], [*B, *A]), 1)
        for row, name in zip(chances, names, strict=True):
            if name != "entailment":
                assert name == RELATIONS[1 + row[1:].argmax()]
        assert encoder.decide(A[0], B[0]) == names[0]
    finally:
        encoder.relation_head = encoder.calibration = None


def test_a_model_without_variances_compares_by_cosine_and_knows_no_direction(encoder: GaussianEncoder) -> None:
    encoder.score_kind = "cosine"
    try:
        a, b = encoder.encode(A[:2]), encoder.encode(B[:2])
        torch.testing.assert_close(encoder.similarity(A[:2], B[:2]), torch.cosine_similarity(a.mean, b.mean))
        with pytest.raises(UserError, match="it has no direction"):
            encoder.direction(A[:2], B[:2])
    finally:
        encoder.score_kind = "kl"


def test_what_does_not_pair_up_is_one_line(encoder: GaussianEncoder) -> None:
    with pytest.raises(UserError, match="2 sentences against 1: each is compared with the one at the same position"):
        encoder.similarity(A[:2], B[:1])
    with pytest.raises(UserError, match="sentence 1 is int, not text"):
        encoder.similarity([A[0], 3], B[:2])  # type: ignore[list-item]


def test_threshold_score_and_notes_travel_with_the_folder(encoder: GaussianEncoder, tmp_path: Path) -> None:
    notes = {"similarity": "kl-dimwise", "step": 7}
    encoder.save_pretrained(tmp_path / "bare", **notes)
    bare = GaussianEncoder.from_pretrained(tmp_path / "bare")
    assert (bare.calibration, bare.score_kind, bare.notes) == (None, "kl-dimwise", notes)
    bare.calibration = CALIBRATION
    bare.save_pretrained(tmp_path / "whole")
    whole = GaussianEncoder.from_pretrained(tmp_path / "whole")
    assert (whole.calibration, whole.score_kind, whole.notes) == (CALIBRATION, "kl-dimwise", bare.notes)
    assert torch.equal(whole.encode(A[:2]).mean, bare.encode(A[:2]).mean)


def test_a_threshold_and_a_card_change_nothing_in_what_a_model_is(encoder: GaussianEncoder, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    encoder.save_pretrained(bare)
    before = content_digest(bare)
    write_calibration(CALIBRATION, bare)
    (bare / CARD).write_text("# a model", encoding="utf-8")
    write_sums(bare)
    assert content_digest(bare) == before
    (bare / "tokenizer.json").write_text("{}", encoding="utf-8")
    with pytest.raises(UserError, match="differs from its SHA-256 sum"):
        content_digest(bare)
    write_sums(bare)
    assert content_digest(bare) != before


def test_a_threshold_that_is_none_is_refused(encoder: GaussianEncoder, tmp_path: Path) -> None:
    encoder.save_pretrained(tmp_path / "model")
    (tmp_path / "model" / THRESHOLDS).write_text(json.dumps({"entailment": {"threshold": "high"}}), encoding="utf-8")
    write_sums(tmp_path / "model")
    with pytest.raises(UserError, match=r"thresholds\.json: not a threshold that this version can read"):
        GaussianEncoder.from_pretrained(tmp_path / "model")
