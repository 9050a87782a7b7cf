"""Canary pairs: recorded with a model, they distinguish it from any other model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from pipeline.models.canaries import Canaries, read_canaries, record, to_text
from pipeline.models.encoder import GaussianEncoder
from pipeline.models.model_dir import CANARIES, content_digest
from pipeline.utils.atomic_io import write_sums
from pipeline.utils.errors import UserError
from tests.relations import drawn_relation
from tests.trial_of import tiny_encoder

SENTENCES = [f"{who} {does}." for who in ("A dog", "An animal", "Nobody") for does in ("runs", "sleeps", "eats")]


@pytest.fixture
def encoder(tiny_backbone: Path) -> GaussianEncoder:
    return tiny_encoder(tiny_backbone, pooling="mean")


@pytest.fixture
def canaries(encoder: GaussianEncoder) -> Canaries:
    encoder.relation_head = drawn_relation()
    found = record(encoder, SENTENCES)
    assert found is not None
    return found


def answers(encoder: GaussianEncoder, canaries: Canaries) -> tuple[list[float], list[list[float]]]:
    """What a server answers, one pair at a time."""
    pairs = list(zip(canaries.premises, canaries.hypotheses, strict=True))
    return [encoder.similarity(h, p) for p, h in pairs], [list(encoder.relation(p, h).values()) for p, h in pairs]


def test_a_model_passes_its_own_canaries_and_another_fails(encoder: GaussianEncoder, canaries: Canaries) -> None:
    assert (canaries.premises, canaries.hypotheses) == (tuple(SENTENCES[:-1]), tuple(SENTENCES[1:]))
    similarity, relation = answers(encoder, canaries)
    canaries.check(similarity, relation)
    with torch.no_grad():
        encoder.mean_head.weight.mul_(1.1)
    with pytest.raises(UserError, match=r"similarity of canary pair \d is \S+, recorded is \S+ \(\d of 8 pairs are off\)"):
        canaries.check(*answers(encoder, canaries))
    with pytest.raises(UserError, match=r"relation of canary pair 2 is .* \(1 of 8 pairs are off\)"):
        canaries.check(similarity, [[0.25] * 4 if row == 2 else scores for row, scores in enumerate(relation)])


def test_an_engine_that_rounds_may_move_one_score_far_but_not_all(encoder: GaussianEncoder, canaries: Canaries) -> None:
    similarity, relation = answers(encoder, canaries)
    one = [1.5 * similarity[0], *similarity[1:]]
    canaries.check(one, relation, "openvino-int8")
    for engine in ("torch", "openvino"):
        with pytest.raises(UserError, match="canary pair 0 is"):
            canaries.check(one, relation, engine)
    with pytest.raises(UserError, match="similarity of the canary pairs is on average 20% from the record"):
        canaries.check([1.2 * score for score in similarity], relation, "openvino-int8")
    with pytest.raises(UserError, match="similarity of the canary pairs is on average nan"):
        canaries.check([float("nan"), *similarity[1:]], relation, "openvino-int8")
    with pytest.raises(UserError, match="relation of the canary pairs is on average"):
        canaries.check(similarity, [[0.25] * 4] * 8, "openvino-int8")


def test_empty_sentences_are_no_canaries(encoder: GaussianEncoder, canaries: Canaries) -> None:
    found = record(encoder, ["", *SENTENCES[:4], " ", *SENTENCES[4:], "\u200b"])
    assert found is not None
    assert found.premises == canaries.premises
    assert record(encoder, ["", SENTENCES[0]]) is None


def test_small_scores_count_as_much_as_large_ones(canaries: Canaries) -> None:
    small = canaries.model_copy(update={"similarity": tuple(1e-6 * (row + 1) for row in range(8)), "relation": None})
    small.check(np.array(small.similarity) * 1.005, None)
    with pytest.raises(UserError, match="canary pair 0 is"):
        small.check(np.array(small.similarity) * 1.02, None)


def test_no_number_is_as_wrong_as_a_wrong_one(encoder: GaussianEncoder, canaries: Canaries) -> None:
    similarity, relation = answers(encoder, canaries)
    with pytest.raises(UserError, match="canary pair 3 is nan"):
        canaries.check([*similarity[:3], float("nan"), *similarity[4:]], relation)
    with pytest.raises(UserError, match=r"similarity of the canary pairs: \(7,\) numbers where \(8,\) are recorded"):
        canaries.check(similarity[1:], relation)
    with pytest.raises(UserError, match="relation of the canary pairs"):
        canaries.check(similarity, None)
    with torch.no_grad():
        encoder.mean_head.weight.fill_(float("nan"))
    with pytest.raises(UserError, match="scores that are not finite"):
        record(encoder, SENTENCES)


def test_they_are_read_back_and_change_nothing_in_what_a_model_is(
    encoder: GaussianEncoder, canaries: Canaries, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    encoder.save_pretrained(folder)
    assert read_canaries(folder) is None
    before = content_digest(folder)
    (folder / CANARIES).write_text(to_text(canaries), encoding="utf-8")
    write_sums(folder)
    assert content_digest(folder) == before
    assert read_canaries(folder) == canaries
    (folder / CANARIES).write_text('{"premises": []}', encoding="utf-8")
    with pytest.raises(UserError, match=r"canaries\.json: not canary pairs that this version can read"):
        read_canaries(folder)
