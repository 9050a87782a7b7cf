"""Token vectors and the head that reads them: against numpy, against the backbone alone, and what padding may not change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from pipeline.gaussian.distribution import Gaussian
from pipeline.gaussian.tokens import TokenVectors
from pipeline.models.encoder import GaussianEncoder
from pipeline.models.relation_head import Relation, by_lengths, logits_of
from pipeline.models.token_head import TokenHead, TokenProjection
from tests.relations import drawn_relation, with_tokens
from tests.trial_of import tiny_encoder

# Of more lengths than blocks, so that some are padded.
_LONG = "the old man is reading a long book in the garden and a dog runs on the mat"
TEXTS = [_LONG[:end] for end in (3, 7, 11, 14, 20, 28, 36, 40, 28)]


def drawn(n: int, seed: int = 0) -> Gaussian:
    """n sentences whose Gaussians say nothing."""
    return with_tokens(Gaussian(torch.zeros(n, 2), torch.zeros(n, 2)), seed=seed)


def vectors(sentences: Gaussian) -> list[list[list[int]]]:
    """The token vectors of each sentence, by the definition of `TokenVectors`."""
    tokens = sentences.tokens
    assert tokens is not None
    table = tokens.table.tolist()
    return [table[start : start + length] for start, length in zip(tokens.start.tolist(), tokens.length.tolist(), strict=True)]


def of_numpy(head: TokenHead, p: NDArray[np.float64], h: NDArray[np.float64]) -> NDArray[np.float64]:
    """(4,) logits of one pair, from its vectors (l, d) and (m, d)."""
    weights = {name: value.double().numpy() for name, value in head.state_dict().items()}

    def linear(name: str, x: NDArray[np.float64]) -> NDArray[np.float64]:
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def relu(x: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.maximum(x, 0)

    def softmax(x: NDArray[np.float64]) -> NDArray[np.float64]:
        powers = np.exp(x - x.max(1, keepdims=True))
        return powers / powers.sum(1, keepdims=True)

    query_p, query_h = (linear("query.2", relu(linear("query.0", x))) for x in (p, h))
    scores = query_p @ query_h.T / np.sqrt(p.shape[1])
    pooled = []
    for own, aligned in ((p, softmax(scores) @ h), (h, softmax(scores.T) @ p)):
        joined = np.concatenate((own, aligned, abs(own - aligned), own * aligned), 1)
        compared = relu(linear("compare.4", relu(linear("compare.1", joined))))
        pooled += [compared.mean(0), compared.max(0)]
    return linear("out.4", relu(linear("out.1", np.concatenate(pooled))))


@torch.inference_mode()
def test_each_pair_gets_the_logits_of_the_formula_whatever_it_is_computed_with() -> None:
    head = drawn_relation(16).head
    premise, hypothesis = drawn(300), drawn(300, seed=1)
    together = logits_of(head, premise, hypothesis)
    sides = [[np.array(one) / 127 for one in vectors(side)] for side in (premise, hypothesis)]
    expected = np.stack([of_numpy(head, p, h) for p, h in zip(*sides, strict=True)])
    np.testing.assert_allclose(together.numpy(), expected, rtol=0, atol=2e-5)
    assert np.ptp(expected, axis=0).min() > 0.05
    assert logits_of(head, premise[:0], hypothesis[:0]).shape == (0, 4)


def test_pairs_are_divided_by_length_within_the_budget() -> None:
    lengths = np.random.default_rng(0).integers(1, 60, (2, 5000))
    parts = [part.numpy() for part in by_lengths(lengths, 2048)]
    assert sorted(np.concatenate(parts).tolist()) == list(range(5000))
    assert all(len(part) * lengths[:, part].max() <= 2048 for part in parts)
    # In random order it would be nearly twice as much.
    assert sum(len(part) * lengths[:, part].max(1).sum() for part in parts) < 1.35 * lengths.sum()
    # A pair that is longer than the budget is a part of its own.
    assert [part.tolist() for part in by_lengths(np.array([[9, 1, 9], [1, 1, 9]]), 4)] == [[1], [0], [2]]


def test_parts_of_a_batch_keep_their_vectors() -> None:
    one, two = drawn(5), drawn(3, seed=1)
    rows = torch.tensor([4, 0, 0, 2])
    picked = [vectors(one)[row] for row in rows]
    both = Gaussian.cat([one[rows], two])
    assert vectors(both) == [*picked, *vectors(two)]
    assert both.tokens is not None
    packed = both[1:].tokens.packed()  # type: ignore[union-attr]
    assert vectors(Gaussian(both.mean[1:], both.log_var[1:], tokens=packed)) == [*picked[1:], *vectors(two)]
    assert len(packed.table) == sum(map(len, [*picked[1:], *vectors(two)]))
    # Another number type is for the Gaussians.
    assert both.to(torch.float64).tokens.table.dtype == torch.int8  # type: ignore[union-attr]
    assert Gaussian.cat([one, Gaussian(two.mean, two.log_var)]).tokens is None


@pytest.mark.parametrize("changes", [{"pooling": "first"}, {"pooling": "mean"}, {"towers": "encoders"}], ids=str)
def test_an_encoder_gives_the_projected_states_of_every_token(tiny_backbone: Path, changes: dict[str, Any]) -> None:
    encoder = tiny_encoder(tiny_backbone, **changes).eval()
    plain = encoder.encode(TEXTS)
    assert plain.tokens is None
    encoder.relation_head = relation = drawn_relation()
    encoded = encoder.encode(TEXTS)
    torch.testing.assert_close(encoded.mean, plain.mean)
    torch.testing.assert_close(encoded.log_var, plain.log_var)
    projection = relation.head.projection
    for text, found in zip(TEXTS, vectors(encoded), strict=True):
        with torch.inference_mode():
            states: Any = encoder.backbone(**encoder.tokenizer(text, return_tensors="pt")).last_hidden_state[0]  # type: ignore[operator]
            numbers = states @ projection.weight.T + projection.bias
        np.testing.assert_allclose(found, 127 * numbers.clamp(-1, 1).numpy(), rtol=0, atol=0.51)
    scores = encoder.score(TEXTS[:-1], TEXTS[1:])
    torch.testing.assert_close(scores, relation.score(encoded[:-1], encoded[1:]))


def test_a_projection_keeps_the_directions_in_which_the_states_vary() -> None:
    random = np.random.default_rng(0)
    states = random.normal(size=(4000, 6)) @ np.diag([5, 3, 1, 0.5, 0.2, 0.1]) @ random.normal(size=(6, 6)) + 7
    # Two more, which the others decide.
    states = np.concatenate((states, states[:, :1] + states[:, 1:2], states[:, 2:3] - 3), 1)
    projection = TokenProjection.principal(torch.tensor(states, dtype=torch.float32))
    numbers = projection(torch.tensor(states, dtype=torch.float32)).double().numpy() / 127
    np.testing.assert_allclose(np.cov(numbers.T), np.eye(6) / 16, rtol=0, atol=3e-3)
    assert abs(numbers).max() <= 1


def test_in_training_the_vectors_are_the_stored_ones_and_have_a_gradient() -> None:
    projection, states = TokenProjection(12, 8), torch.randn(50, 12, generator=torch.Generator().manual_seed(0))
    stored, given = projection.eval()(states), projection.train()(states)
    assert (stored.dtype, given.dtype) == (torch.int8, torch.float32)
    torch.testing.assert_close(given, stored.float())
    with torch.autocast("cpu", torch.bfloat16):
        assert projection(states).dtype == torch.float32
    given.sum().backward()
    exact = states @ projection.weight.T + projection.bias
    # That of what is rounded, where it is not cut.
    expected = (127 * states.T @ (exact.abs() < 1).float()).T
    torch.testing.assert_close(projection.weight.grad, expected, rtol=1e-4, atol=1e-3)


def test_vectors_come_back_from_the_numbers_of_a_loss() -> None:
    one = drawn(6)
    assert one.tokens is not None
    numbers = one.tokens.as_numbers(12)
    assert numbers.shape == (6, 1 + 12 * 8)
    longest = int(one.tokens.length.max())
    for given in (None, longest):
        tokens = TokenVectors.of_numbers(torch.cat((numbers, torch.zeros(1, 97))), 8, given)
        assert tokens.longest == (given or 12)
        back = Gaussian(torch.zeros(7, 2), torch.zeros(7, 2), tokens=tokens)
        for found, expected in zip(vectors(back), [*vectors(one), [[0] * 8]], strict=True):
            np.testing.assert_allclose(found, expected, atol=1e-4)
        padded, mask = tokens.padded()
        assert padded.shape == (7, given or 12, 8)
        assert mask.sum(1).tolist() == [*one.tokens.length.tolist(), 1]


def test_it_is_saved_with_the_model(tiny_backbone: Path, tmp_path: Path) -> None:
    encoder = tiny_encoder(tiny_backbone).eval()
    encoder.relation_head = drawn_relation()
    encoder.save_pretrained(tmp_path / "model")
    again = GaussianEncoder.from_pretrained(tmp_path / "model")
    assert isinstance(again.relation_head, Relation)
    assert again.relation_head.projection.digest == encoder.relation_head.projection.digest  # type: ignore[union-attr]
    torch.testing.assert_close(again.relation(TEXTS, TEXTS[::-1]), encoder.relation(TEXTS, TEXTS[::-1]))


def test_projections_one_after_another_are_one() -> None:
    mixed, drawn_states = (torch.randn(n, 20, generator=torch.Generator().manual_seed(n)) for n in (20, 4000))
    states = drawn_states @ mixed
    first, last = TokenProjection.principal(states, 20), TokenProjection.principal(states, 7)
    rest = first.before(last)
    assert rest.weight.shape == (7, 20)
    exact = states @ last.weight.T + last.bias
    twice = (states @ first.weight.T + first.bias) @ rest.weight.T + rest.bias
    torch.testing.assert_close(twice, exact, rtol=0, atol=1e-5)
    both = rest.after(first)
    torch.testing.assert_close(both.weight, last.weight, rtol=0, atol=1e-6)
    torch.testing.assert_close(both.bias, last.bias, rtol=0, atol=1e-6)
    assert (both(states) == last(states)).float().mean() > 0.999
    # With fewer directions, it is the nearest on these.
    narrow = TokenProjection.principal(states, 5).before(last).after(TokenProjection.principal(states, 5))
    torch.testing.assert_close(narrow.weight[-5:], last.weight[-5:], rtol=0, atol=1e-6)
    torch.testing.assert_close(narrow.weight[:2], torch.zeros(2, 20), rtol=0, atol=1e-6)
