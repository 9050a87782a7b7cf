"""Fitting and calibrating a relation head: what it learns, what decides its weights, and its scale against other libraries."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import softmax

from pipeline.config.params import RelationParams
from pipeline.data.schema import CONTRADICTION, ENTAILMENT, NEUTRAL, NO_LABEL
from pipeline.data.token_sets import PairSet
from pipeline.data.token_store import MISSING
from pipeline.families.pairs.relation import calibrate, fit_head
from pipeline.gaussian.distribution import Gaussian
from pipeline.gaussian.tokens import TokenVectors
from pipeline.models.relation_head import REVERSED, similarity_log_odds
from pipeline.models.token_head import TokenHead, TokenProjection
from pipeline.utils.errors import UserError

D = 8
PARAMS = RelationParams(epochs=5, similarity_weight=0.5)


def as_it_is() -> TokenProjection:
    """Stores a quarter of each of 2·D numbers."""
    projection = TokenProjection(2 * D, 2 * D).requires_grad_(False)
    projection.weight.copy_(torch.eye(2 * D) / 4)
    projection.bias.zero_()
    return projection.eval()


def world(n: int, seed: int, *, two_way: bool = False, noise: float = 0.1) -> tuple[Gaussian, PairSet]:
    """Sentences whose log-variance says how general they are: a premise entails what points the same way and is more general.

    A contradiction points the other way; a neutral sentence points anywhere. A sentence has one token, which holds its Gaussian.
    """
    random = np.random.default_rng(seed)
    label = random.integers(0, 3, n).astype(np.int8)
    premise = random.normal(size=(n, D))
    hypothesis = np.where(
        (label == ENTAILMENT)[:, None], premise, np.where((label == CONTRADICTION)[:, None], -premise, random.normal(size=(n, D)))
    )
    general = np.concatenate([np.zeros(n), np.where(label == ENTAILMENT, 1.0, 0.0)])
    mean = np.concatenate([premise, hypothesis]) + noise * random.normal(size=(2 * n, D))
    log_var = general[:, None] + noise * random.normal(size=(2 * n, D))
    numbers = torch.tensor(mean, dtype=torch.float32), torch.tensor(log_var, dtype=torch.float32)
    tokens = TokenVectors.of_packed(as_it_is()(torch.cat(numbers, 1)), torch.ones(2 * n, dtype=torch.int64))
    sentences = Gaussian(*numbers, tokens=tokens)
    index = np.arange(n, dtype=np.int32)
    reverse = np.full(n, ENTAILMENT if two_way else MISSING, dtype=np.int8)
    return sentences, PairSet("pairs", index, index + n, label, reverse)


def predicted(head: TokenHead, sentences: Gaussian, left: np.ndarray, right: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    with torch.inference_mode():
        sentences = read_by(head, sentences)
        return head(sentences[torch.from_numpy(left).long()], sentences[torch.from_numpy(right).long()]).argmax(1).numpy()


def read_by(head: TokenHead, sentences: Gaussian) -> Gaussian:
    """The sentences of a world with the token vectors that the head reads."""
    vectors = head.projection(torch.cat((sentences.mean, sentences.log_var), 1))
    return Gaussian(sentences.mean, sentences.log_var, tokens=TokenVectors.of_packed(vectors, torch.ones(len(vectors)).long()))


def test_a_head_learns_the_relations_and_which_way_they_hold(capsys: pytest.CaptureFixture[str]) -> None:
    sentences, pairs = world(4000, 1)
    head = fit_head(sentences, pairs, as_it_is(), as_it_is(), 8, 1)
    losses = [float(line.split()[-1]) for line in capsys.readouterr().out.splitlines()]
    assert len(losses) == 8
    assert losses[-1] < losses[0] / 2
    seen, new = world(1000, 2)
    assert (predicted(head, seen, new.premise, new.hypothesis) == new.label).mean() > 0.9
    entailed = new.label == ENTAILMENT
    turned = predicted(head, seen, new.hypothesis[entailed], new.premise[entailed])
    assert (turned == REVERSED).mean() > 0.9


def test_a_pair_that_holds_both_ways_is_not_an_example_of_reversed() -> None:
    sentences, pairs = world(2000, 1, two_way=True)
    head = fit_head(sentences, pairs, as_it_is(), as_it_is(), 5, 1)
    entailed = pairs.label == ENTAILMENT
    assert not (predicted(head, sentences, pairs.hypothesis[entailed], pairs.premise[entailed]) == REVERSED).any()


def test_a_neutral_pair_whose_reverse_is_known_to_hold_is_an_example_of_reversed() -> None:
    sentences, pairs = world(2000, 1)
    # Half of the entailment pairs are in the data in reverse order too, as neutral pairs with a reverse label.
    back = np.flatnonzero(pairs.label == ENTAILMENT)[::2]
    kept = np.flatnonzero(pairs.label != ENTAILMENT)
    premise = np.concatenate([pairs.premise[kept], pairs.hypothesis[back], pairs.premise[back]])
    hypothesis = np.concatenate([pairs.hypothesis[kept], pairs.premise[back], pairs.hypothesis[back]])
    label = np.concatenate([pairs.label[kept], np.full(len(back), NEUTRAL), np.full(len(back), ENTAILMENT)]).astype(np.int8)
    # The entailments are said to hold both ways, so that they give no example in reverse order themselves.
    reverse = np.concatenate([pairs.reverse_label[kept], np.full(2 * len(back), ENTAILMENT)]).astype(np.int8)
    head = fit_head(sentences, PairSet("pairs", premise, hypothesis, label, reverse), as_it_is(), as_it_is(), 30, 1)
    assert (predicted(head, sentences, pairs.hypothesis[back], pairs.premise[back]) == REVERSED).mean() > 0.9


def test_a_token_head_learns_from_one_word_what_gaussians_do_not_hold() -> None:
    """A hypothesis is its premise with one token replaced: by its opposite, by a wider one, or by another one."""
    random = np.random.default_rng(0)
    words = random.normal(size=(60, 24))
    n, length = 2400, 6
    label = random.integers(0, 3, n).astype(np.int8)
    premise = np.stack([random.permutation(20)[:length] for _ in range(n)])
    hypothesis, at = premise.copy(), random.integers(0, length, n)
    # 20 words, their wider ones and their opposites; a neutral word is any of the 20.
    hypothesis[np.arange(n), at] = np.choose(
        label, [premise[np.arange(n), at] + 20, random.integers(0, 20, n), premise[np.arange(n), at] + 40]
    )
    states = torch.tensor(words[np.concatenate((premise, hypothesis))].reshape(-1, 24), dtype=torch.float32)
    projection = TokenProjection.principal(states)
    nothing = torch.randn(2 * n, D, generator=torch.Generator().manual_seed(0))
    index = np.arange(n, dtype=np.int32)
    pairs = PairSet("pairs", index, index + n, label, np.full(n, MISSING, dtype=np.int8))

    sentences = Gaussian(nothing, nothing, tokens=TokenVectors.of_packed(projection(states), torch.full((2 * n,), length)))
    seen = PairSet("pairs", index[:2000], index[:2000] + n, label[:2000], pairs.reverse_label[:2000])
    head = fit_head(sentences, seen, projection, projection, 12, 1)
    # It is learned with the head.
    assert float((head.projection.weight - projection.weight).abs().max()) > 1e-3
    with torch.inference_mode():
        vectors = TokenVectors.of_packed(head.projection(states), torch.full((2 * n,), length))
        sentences = Gaussian(nothing, nothing, tokens=vectors)
        found = head(sentences[torch.from_numpy(index[2000:]).long()], sentences[torch.from_numpy(index[2000:] + n).long()])
        assert (found.argmax(1).numpy() == label[2000:]).mean() > 0.9
        relation = calibrate(head, sentences, pairs, "kl", PARAMS, seed=1, pairs_digest="d" * 64)
        likely = relation.score(sentences[torch.arange(n)], sentences[torch.arange(n, 2 * n)]).numpy()
    assert likely[label == ENTAILMENT].mean() > 0.7 > 0.2 > likely[label != ENTAILMENT].mean()


def test_the_seed_decides_the_weights_and_nothing_else_is_drawn() -> None:
    (sentences, pairs), projection = world(600, 1), as_it_is()
    before = torch.get_rng_state()
    one, again, other = (fit_head(sentences, pairs, projection, projection, 1, seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert not torch.equal(one["out.4.weight"], other["out.4.weight"])


def test_the_scale_is_the_one_that_other_libraries_find() -> None:
    sentences, pairs = world(2000, 3, noise=1.0)
    # These are only known not to be entailed.
    pairs.label[np.flatnonzero(pairs.label != ENTAILMENT)[:100]] = NO_LABEL
    # A head that has seen too little is wrong about its certainty, so there is something to calibrate.
    head = fit_head(*world(300, 1, noise=1.0), as_it_is(), as_it_is(), epochs=20, seed=1)
    sentences = read_by(head, sentences)
    found = calibrate(head, sentences, pairs, "kl", PARAMS, seed=1, pairs_digest="d" * 64).scale
    p, h = sentences[torch.arange(2000)], sentences[torch.arange(2000, 4000)]
    with torch.inference_mode():
        logits = head(p, h)
    numbers, s = logits.double().numpy(), similarity_log_odds(p, h, "kl").numpy()
    odds = np.exp(numbers)
    r = np.log((odds[:, 0] + odds[:, 3]) / (odds[:, 1] + odds[:, 2]))
    assert found.similarity_scale == pytest.approx(r.std(ddof=1) / s.std(ddof=1))
    combined = numbers + 0.5 * found.similarity_scale * s[:, None] * [1, 0, 0, 1]

    def loss_of(x: np.ndarray) -> float:  # type: ignore[type-arg]
        p = softmax(x[0] * combined + [x[1], x[2], x[3], 0], axis=1)
        each = np.column_stack([p[:, 0], p[:, 1] + p[:, 3], p[:, 2], 1 - p[:, 0]])
        return -np.log(each[np.arange(2000), pairs.label]).mean()

    # By a method without gradients.
    best = minimize(loss_of, [1.0, 0, 0, 0], method="Nelder-Mead", options={"xatol": 1e-6, "fatol": 1e-12, "maxiter": 4000}).x
    assert (found.slope, *found.offsets) == pytest.approx((*best, 0), abs=2e-2)


@pytest.mark.parametrize("label", [ENTAILMENT, NEUTRAL])
def test_pairs_of_one_kind_are_refused(label: int) -> None:
    sentences, pairs = world(50, 1)
    one_kind = PairSet("pairs", pairs.premise, pairs.hypothesis, np.full(50, label, np.int8), pairs.reverse_label)
    with pytest.raises(UserError, match=r"training pairs.*all of one kind"):
        fit_head(sentences, one_kind, as_it_is(), as_it_is(), 1, 1)
    with pytest.raises(UserError, match=r"development pairs.*all of one kind"):
        calibrate(TokenHead(as_it_is()).eval(), sentences, one_kind, "kl", PARAMS, seed=1, pairs_digest="d" * 64)
