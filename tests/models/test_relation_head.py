"""The relation of two sentences: its probabilities, its files, and the answers of its encoder."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from pipeline.data.schema import RELATIONS
from pipeline.gaussian.distribution import Gaussian, kl_divergence
from pipeline.models.encoder import GaussianEncoder
from pipeline.models.model_dir import (
    RELATION,
    RELATION_WEIGHTS,
    add_relation,
    content_digest,
    encoder_digest,
    relation_digest,
    weights_digest,
)
from pipeline.models.relation_head import Relation, ScoreKind, read_relation, similarity_log_odds
from pipeline.models.threshold import Calibration
from pipeline.utils.errors import UserError
from tests.relations import drawn_relation, with_tokens
from tests.trial_of import tiny_encoder

D, N = 5, 7


def gaussians(seed: int, n: int = N, dim: int = D) -> Gaussian:
    random = torch.Generator().manual_seed(seed)
    return with_tokens(Gaussian(torch.randn(n, dim, generator=random), torch.randn(n, dim, generator=random)), seed=seed)


@pytest.mark.parametrize("kind", ["kl", "kl-dimwise", "cosine"])
def test_the_probabilities_are_those_of_head_and_similarity(kind: ScoreKind) -> None:
    found, p, h = drawn_relation(kind=kind), gaussians(1), gaussians(2)
    logits = found.head(p, h).detach().double().numpy()
    p64, h64 = (Gaussian(one.mean.double(), one.log_var.double()) for one in (p, h))
    if kind == "cosine":
        s = (1 + (p64.mean * h64.mean).sum(1) / (p64.mean.norm(dim=1) * h64.mean.norm(dim=1))) / 2
    elif kind == "kl":
        s = 1 / (1 + kl_divergence(h64, p64))
    else:
        each = [kl_divergence(h64[:, :, None][:, d], p64[:, :, None][:, d]) for d in range(D)]  # type: ignore[index]
        s = torch.stack([1 / (1 + one) for one in each]).mean(0)
    own = np.log(s.numpy() / (1 - s.numpy()))
    related = np.array([1, 0, 0, 1])
    powers = np.exp(0.75 * (logits + 0.5 * 2.0 * own[:, None] * related) + [0.25, -0.5, 1.0, 0.0])
    expected = powers / powers.sum(1, keepdims=True)
    np.testing.assert_allclose(found.probabilities(p, h).numpy(), expected, rtol=1e-5)
    np.testing.assert_allclose(found.score(p, h).numpy(), expected[:, 0], rtol=1e-5)


def test_equal_sentences_have_a_finite_score() -> None:
    one = gaussians(1)
    for kind in ("kl", "kl-dimwise", "cosine"):
        assert similarity_log_odds(one, one, kind).tolist() == pytest.approx([math.log(1e6 - 1)] * N, abs=0.2)


def test_a_head_alone_does_not_read_the_similarity() -> None:
    p, h = gaussians(1), gaussians(2)
    assert torch.equal(drawn_relation(kind="kl", weight=0.0).score(p, h), drawn_relation(kind="cosine", weight=0.0).score(p, h))


@pytest.fixture
def encoder(tiny_backbone: Path) -> GaussianEncoder:
    return tiny_encoder(tiny_backbone)


def test_an_encoder_keeps_its_head(encoder: GaussianEncoder, tmp_path: Path) -> None:
    encoder.save_pretrained(tmp_path / "without")
    encoder.relation_head = drawn_relation()
    encoder.save_pretrained(tmp_path / "with")
    read = GaussianEncoder.from_pretrained(tmp_path / "with")
    assert read.relation_head is not None
    assert read.relation_head.scale == encoder.relation_head.scale
    assert not read.relation_head.head.training
    pair = (["a dog runs", "nobody"], ["an animal moves", "a man"])
    assert all(map(torch.equal, read.relation(*pair), encoder.relation(*pair)))
    # A head is part of what a model computes, and of its weights, but not of the Gaussians.
    assert encoder_digest(tmp_path / "with") == encoder_digest(tmp_path / "without") == content_digest(tmp_path / "without")
    assert content_digest(tmp_path / "with") != content_digest(tmp_path / "without")
    assert weights_digest(tmp_path / "with") != weights_digest(tmp_path / "without")
    add_relation(tmp_path / "with", tmp_path / "without")
    assert relation_digest(tmp_path / "with") == relation_digest(tmp_path / "without") is not None
    again = GaussianEncoder.from_pretrained(tmp_path / "without")
    assert all(map(torch.equal, again.relation(*pair), encoder.relation(*pair)))


def test_the_answers_of_an_encoder_with_a_head_are_those_of_the_head(encoder: GaussianEncoder) -> None:
    a, b = ["a dog runs", "nobody is outside", "a child sleeps"], ["an animal", "a man plays", "a child"]
    encoder.relation_head = drawn_relation()
    forward = encoder.relation_head.score(encoder.encode(a), encoder.encode(b))
    back = encoder.relation_head.score(encoder.encode(b), encoder.encode(a))
    torch.testing.assert_close(encoder.relation(a, b).entailment, forward)
    torch.testing.assert_close(encoder.direction(a, b), forward - back)
    middle = float(forward.sort().values[1])
    encoder.calibration = Calibration(threshold=middle, entailment_if=">", swept_on="dev", pairs="d" * 64, accuracy=80.0)
    assert encoder.entails(encoder.encode(a), encoder.encode(b)).tolist() == (forward > middle).tolist()
    named = encoder.relation(a[0], b[0])
    assert tuple(named) == RELATIONS
    assert named == pytest.approx({name: float(chance) for name, chance in encoder.relation(a[:1], b[:1])._asdict().items()})
    assert sum(named.values()) == pytest.approx(1)
    # A model without variances gets a direction by its head.
    encoder.score_kind = "cosine"
    torch.testing.assert_close(encoder.direction(a, b), forward - back)


def test_without_a_head_there_is_no_relation(encoder: GaussianEncoder) -> None:
    with pytest.raises(UserError, match=r"no relation head.*model\.relation_head: tokens"):
        encoder.relation("a dog", "an animal")


@pytest.mark.parametrize("damage", ["missing", "another key", "other shapes", "cut short"])
def test_files_that_do_not_fit_together_are_refused_in_one_line(tmp_path: Path, damage: str) -> None:
    drawn_relation().write(tmp_path)
    assert read_relation(tmp_path) is not None
    held = json.loads((tmp_path / RELATION).read_text(encoding="utf-8"))
    if damage == "missing":
        (tmp_path / RELATION_WEIGHTS).unlink()
    elif damage == "cut short":
        (tmp_path / RELATION_WEIGHTS).write_bytes((tmp_path / RELATION_WEIGHTS).read_bytes()[:-100])
    elif damage == "other shapes":
        save_file({**load_file(tmp_path / RELATION_WEIGHTS), "out.1.bias": torch.zeros(4)}, tmp_path / RELATION_WEIGHTS)
    else:
        (tmp_path / RELATION).write_text(json.dumps({**held, "more": 1}), encoding="utf-8")
    with pytest.raises(UserError, match="not a relation head that this version can read") as refused:
        read_relation(tmp_path)
    assert "\n" not in str(refused.value)


def test_a_folder_without_a_head_has_none(tmp_path: Path) -> None:
    assert read_relation(tmp_path) is None
    assert relation_digest(tmp_path) is None


def test_a_head_is_another_model_by_its_choices_not_its_calibration(tmp_path: Path, encoder: GaussianEncoder) -> None:
    given = drawn_relation(weight=0.25)
    encoder.relation_head = given
    encoder.save_pretrained(tmp_path / "one")

    def digest(**scale: object) -> str:
        name = "-".join(map(str, scale.items()))
        encoder.relation_head = Relation(given.head, given.scale.model_copy(update=scale))
        encoder.save_pretrained(tmp_path / name)
        assert content_digest(tmp_path / name) != content_digest(tmp_path / "one")
        return weights_digest(tmp_path / name)

    one = weights_digest(tmp_path / "one")
    # What follows from the development pairs, and what is only kept for the record.
    same = {"similarity_scale": 2.5, "slope": 1.5, "offsets": (0.5, 0.0, 0.5, 0.0), "pairs": "e" * 64, "epochs": 9, "seed": 9}
    assert {digest(**{key: value}) for key, value in same.items()} == {one}
    # Else a champion's head with other weights of the similarity would be tried without being counted as attempts.
    assert len({one, digest(similarity_weight=0.5), digest(score_kind="cosine")}) == 3


def test_gaussians_of_another_number_type_are_scored_the_same() -> None:
    found, p, h = drawn_relation(), gaussians(1), gaussians(2)
    torch.testing.assert_close(found.score(p.to(torch.float64), h.to(torch.float64)), found.score(p, h))
    torch.testing.assert_close(found.probabilities(p.to(torch.float64), h), found.probabilities(p, h))
