"""In training on a GPU a fixed number of entries of the similarity matrix is recomputed; here the same code runs on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from pipeline.gaussian import pairwise
from pipeline.gaussian.distribution import pairwise_similarity, similarity
from tests.gaussian.test_distribution import draw, grads, leaves

N_P, N_Q = 9, 12


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many entries were chosen in each call."""
    counts: list[int] = []
    entries = pairwise._entries

    def counted(*given: Any) -> Tensor:
        chosen = entries(*given)
        counts.append(len(chosen))
        return chosen

    monkeypatch.setattr(pairwise, "_most", lambda p, q, training: pairwise._OUTLIERS * (len(p) + len(q)))
    monkeypatch.setattr(pairwise, "_entries", counted)
    return counts


def outliers() -> tuple[Any, Any]:
    """Sentence 2 of p and sentences 5 and 7 of q are far away from all others, and near each other."""
    p, q = draw(N_P, 64, 1), draw(N_Q, 64, 2)
    far = 5e3 * draw(1, 64, 3).mean.sign()
    p.mean[2] = far
    q.mean[[5, 7]] = far + 0.1
    return leaves(p), leaves(q)


@pytest.mark.parametrize("block", [1 << 22, 30])
def test_the_entries_of_outliers_are_among_them(block: int, asked: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairwise, "_MATRIX_BLOCK", block)
    p, q = outliers()
    exact = similarity(p[:, None], q[None])
    ours = pairwise_similarity(p, q)
    assert asked == [4 * (N_P + N_Q)]
    far = [2], [5, 7]
    torch.testing.assert_close(ours[far], exact[far], rtol=1e-13, atol=0)
    torch.testing.assert_close(ours, exact, rtol=0, atol=1e-5)
    weight = draw(N_P, N_Q, 4).mean
    for mine, theirs in zip(grads((ours * weight).sum(), p, q), grads((exact * weight).sum(), p, q), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-9)
    # Without recomputing, digits are lost.
    monkeypatch.undo()
    monkeypatch.setattr(pairwise, "TOLERANCE", float("inf"))
    assert (pairwise_similarity(p, q)[far] - exact[far]).abs().max() > 1e-10
    assert len(asked) == 1


def test_where_nothing_is_doubtful_it_changes_nothing(asked: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    p, q = leaves(draw(N_P, 24, 5)), leaves(draw(N_Q, 24, 6))
    ours = pairwise_similarity(p, q)
    found = grads(ours.square().sum(), p, q)
    monkeypatch.undo()
    plain = pairwise_similarity(p, q)
    assert len(asked) == 1
    torch.testing.assert_close(ours, plain, rtol=1e-13, atol=0)
    for mine, theirs in zip(found, grads(plain.square().sum(), p, q), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-13)


def test_values_that_are_not_finite_come_first() -> None:
    inf, nan = float("inf"), float("nan")
    parts = [pairwise._largest(torch.tensor(errors), 2) for errors in ([0.0, 5.0, nan, 1.0, 2.0, 3.0], [inf, 4.0, 0.0])]
    doubtful = [(error, place + first) for (error, place), first in zip(parts, (0, 6), strict=True)]
    assert sorted(pairwise._entries(doubtful, 3, 2).tolist()) == [[0, 2], [2, 0]]
