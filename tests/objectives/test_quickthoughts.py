"""QuickThoughts: targets by hand, losses in float64 against loops and the formulas of both sources, and how batches are drawn."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import PLAIN as PLAIN_PARAMS
from numpy.typing import NDArray
from torch import Tensor

from pipeline.config.load import load_params
from pipeline.data.token_store import Rows
from pipeline.families.text.params import QuickThoughtsParams
from pipeline.families.text.quickthoughts import (
    DocumentBatches,
    QuickThoughtsObjective,
    blocks_as_units,
    sentences_as_units,
)
from pipeline.gaussian.distribution import Gaussian
from pipeline.models.encoder import GaussianEncoder
from pipeline.utils.errors import UserError

# These objectives make their modules from the encoder alone.
NO_BATCHES: Any = None

PLAIN: dict[str, Any] = {
    "name": "quickthoughts",
    "loss": "softmax",
    "context_size": 1,
    "block_size": 1,
    "direction": "both",
    "score": "dot",
    "temperature": 1.0,
    "reduction": "mean",
    "run_length": None,
}


def made(**keys: Any) -> QuickThoughtsObjective:
    return QuickThoughtsObjective(params=QuickThoughtsParams(**{**PLAIN, **keys}))


def documents(*sizes: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    return np.repeat(np.arange(len(sizes)), sizes), np.concatenate([np.arange(size) for size in sizes])


def gaussians(n: int, dim: int, seed: int) -> Gaussian:
    draw = torch.Generator().manual_seed(seed)
    mean, log_var = torch.randn((2, n, dim), generator=draw, dtype=torch.float64)
    return Gaussian(mean, 0.3 * log_var)


def score_of(kind: str, sentence: Gaussian, candidate: Gaussian) -> float:
    """Of one f and one g, (D,) each, in plain numbers."""
    f, g = sentence.mean.tolist(), candidate.mean.tolist()
    if kind == "kl":
        kl = 0.0
        for mp, lp, mq, lq in zip(g, candidate.log_var.tolist(), f, sentence.log_var.tolist(), strict=True):
            kl += 0.5 * (math.exp(lp - lq) + (mp - mq) ** 2 / math.exp(lq) - 1 + lq - lp)
        return 1 / (1 + kl)
    dot = sum(a * b for a, b in zip(f, g, strict=True))
    return dot if kind == "dot" else dot / math.sqrt(sum(a * a for a in f) * sum(b * b for b in g))


def by_loop(encoded: Gaussian, document: NDArray[np.int64], position: NDArray[np.int64], **keys: Any) -> tuple[float, int]:
    """Σ of the row losses and the number of rows with targets, pair by pair."""
    o, half = {**PLAIN, **keys}, encoded.mean.shape[1] // 2
    f = Gaussian(encoded.mean[:, :half], encoded.log_var[:, :half])
    g = Gaussian(encoded.mean[:, half:], encoded.log_var[:, half:])
    n, total, rows = len(document), 0.0, 0
    block_of: dict[int, tuple[int, int]] = {}
    if o["loss"] == "block":
        run, begins = -1, 0
        for i in range(n):
            if i == 0 or document[i] != document[i - 1] or position[i] != position[i - 1] + 1:
                run, begins = run + 1, i
            block_of[i] = (run, (i - begins) // o["block_size"])
        members = {block: [i for i in block_of if block_of[i] == block] for block in block_of.values()}
        members = {block: inside for block, inside in members.items() if len(inside) == o["block_size"]}
    else:
        members = {(int(document[i]), int(position[i])): [i] for i in range(n)}
        block_of = {i: (int(document[i]), int(position[i])) for i in range(n)}
    window = 1 if o["loss"] == "block" else o["context_size"]
    for i in range(n):
        group, index = block_of[i]
        if (group, index) not in members:
            continue
        scores = {
            block: sum(score_of(o["score"], f[i], g[j]) for j in inside) / len(inside) / o["temperature"]
            for block, inside in members.items()
            if block != (group, index)
        }
        steps = [d for d in range(-window, window + 1) if d > 0 or (d < 0 and o["direction"] == "both")]
        targets = [(group, index + d) for d in steps if (group, index + d) in members]
        if not targets:
            continue
        rows += 1
        log_z = math.log(sum(math.exp(s) for s in scores.values()))
        share = 1 / len(targets)
        total += sum(share * (math.log(share) - (scores[block] - log_z)) for block in targets)
    return total, rows


def ours(encoded: Gaussian, document: NDArray[np.int64], position: NDArray[np.int64], **keys: Any) -> tuple[float, int]:
    objective = made(**keys)
    units = objective.units(document, position)
    return float(objective.loss(encoded, units)), units.with_targets()


def test_the_targets_of_six_sentences_of_two_documents() -> None:
    document, position = documents(4, 2)
    targets, excluded = sentences_as_units(document, position, 2, both=True).targets(slice(None))
    assert targets.int().tolist() == [
        [0, 1, 1, 0, 0, 0],
        [1, 0, 1, 1, 0, 0],
        [1, 1, 0, 1, 0, 0],
        [0, 1, 1, 0, 0, 0],
        [0, 0, 0, 0, 0, 1],
        [0, 0, 0, 0, 1, 0],
    ]
    assert torch.equal(excluded, torch.eye(6, dtype=torch.bool))
    targets, _ = sentences_as_units(document, position, 2, both=False).targets(slice(2, 5))
    assert targets.int().tolist() == [[0, 0, 0, 1, 0, 0], [0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1]]


def test_the_blocks_of_a_batch_end_with_their_run() -> None:
    # A run of five, a gap, a run of two, and another document of four: the fifth sentence fills no block.
    document = np.array([0, 0, 0, 0, 0, 0, 0, 3, 3, 3, 3])
    position = np.array([2, 3, 4, 5, 6, 9, 10, 0, 1, 2, 3])
    units = blocks_as_units(document, position, 2, both=False)
    assert units.members.tolist() == [[0, 1], [2, 3], [5, 6], [7, 8], [9, 10]]
    targets, excluded = units.targets(slice(None))
    assert targets.nonzero().tolist() == [[0, 1], [1, 1], [7, 4], [8, 4]]
    assert excluded.nonzero()[:, 1].tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]


@pytest.mark.parametrize("score", ["dot", "cosine", "kl"])
@pytest.mark.parametrize("direction", ["both", "next"])
@pytest.mark.parametrize("shape", [{"context_size": 1}, {"context_size": 3}, {"loss": "block", "block_size": 2}])
def test_losses_are_those_of_a_double_loop(score: str, direction: str, shape: dict[str, Any]) -> None:
    document, position = documents(5, 1, 7, 2, 4)
    # A batch that lacks a sentence in the middle of a document.
    document, position = (np.delete(part, 9) for part in (document, position))
    keys = {**shape, "score": score, "direction": direction, "temperature": 0.7}
    encoded = gaussians(len(document), 6, 1)
    (found, rows), (expected, expected_rows) = (form(encoded, document, position, **keys) for form in (ours, by_loop))
    assert found == pytest.approx(expected, rel=1e-10)
    assert rows == expected_rows


def test_the_formula_of_s2v() -> None:
    """S2V, context 1: scores with a zero diagonal, targets of both neighbours that share their weight, cross-entropy.

    A sentence whose own score is 0 stays a candidate there; without its term the sum of the softmax is ours.
    """
    n = 9
    encoded = gaussians(n, 8, 2)
    f, g = encoded.mean[:, :4], encoded.mean[:, 4:]
    scores = f @ g.T
    scores = scores - torch.diag(scores.diagonal())
    targets = torch.zeros(n, n, dtype=torch.float64)
    for offset in (-1, 1):
        targets += torch.diag(torch.ones(n - 1, dtype=torch.float64), offset)
    targets /= targets.sum(1, keepdim=True)
    with_itself = -(targets * scores.log_softmax(1)).sum(1)
    without = -(targets * scores).sum(1) + (scores.exp().sum(1) - 1).log()
    entropy = -(targets * targets.clamp(min=1e-300).log()).sum(1)
    found, rows = ours(encoded, *documents(n))
    assert rows == n
    assert found == pytest.approx(float((without - entropy).sum()), rel=1e-10)
    assert float((with_itself - without).min()) > 0


@pytest.mark.parametrize("context", [1, 2, 3])
def test_the_formula_of_the_post(context: int) -> None:
    """The post's code: scores with a zero diagonal, targets of the next k sentences with 0.1 added to each, KL divergence.

    Ours is that without the 0.1 and without the sentence itself among the candidates.
    """
    n = 8
    encoded = gaussians(n, 6, 3)
    f, g = encoded.mean[:, :3], encoded.mean[:, 3:]
    scores = f @ g.T
    scores = scores - torch.diag(scores.diagonal())
    followers = sum((torch.diag(torch.ones(n - d, dtype=torch.float64), d) for d in range(1, context + 1)), torch.zeros(n, n))
    smoothed = followers + 0.1
    weights = smoothed / smoothed.sum(1, keepdim=True)
    posts = F.kl_div(scores.log_softmax(1), weights, reduction="none").sum(1)

    # What the two changes do to a row: the divergence is Σ w log w − Σ w s + log Σ exp s, with other weights and one term less.
    shares = (weights * smoothed.sum(1, keepdim=True) - 0.1).clamp(min=0.0)[: n - 1]
    shares = shares / shares.sum(1, keepdim=True)
    entropies = (torch.xlogy(weights, weights).sum(1)[: n - 1], torch.xlogy(shares, shares).sum(1))
    sums = scores.exp().sum(1)[: n - 1]
    pulls = ((weights * scores).sum(1)[: n - 1], (shares * scores[: n - 1]).sum(1))
    expected = posts[: n - 1] + (entropies[1] - entropies[0]) - (pulls[1] - pulls[0]) + (sums - 1).log() - sums.log()
    found, rows = ours(encoded, *documents(n), context_size=context, direction="next")
    # The last sentence has no follower; there the post's targets are all alike.
    assert rows == n - 1
    assert weights[-1].tolist() == pytest.approx([1 / n] * n)
    assert found == pytest.approx(float(expected.sum()), rel=1e-10)
    assert found != pytest.approx(float(posts[: n - 1].sum()), rel=0.01)


def test_two_blocks_are_curl_s_logistic_loss() -> None:
    encoded = gaussians(9, 6, 4)
    f, g = encoded.mean[:, :3], encoded.mean[:, 3:]
    # Two blocks of three of one document, and one of another: for the first three sentences one right and one wrong block.
    found, rows = ours(encoded, *documents(6, 3), loss="block", block_size=3, direction="next")
    margin = f[:3] @ (g[3:6].mean(0) - g[6:].mean(0))
    assert rows == 3
    assert found == pytest.approx(float(torch.log1p(torch.exp(-margin)).sum()), rel=1e-10)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_loss_over_targets_is_at_least_the_block_loss_and_ln_b(size: int) -> None:
    document, position = documents(4 * size, 4 * size, 4 * size)
    units = blocks_as_units(document, position, size, both=False)
    for seed in range(20):
        encoded = gaussians(len(document), 8, seed)
        scores = encoded.mean[:, :4] @ encoded.mean[:, 4:].T
        total = 0.0
        targets, excluded = (mask.numpy() for mask in units.targets(slice(None)))
        for i in np.flatnonzero(targets.any(1)):
            following = units.members[targets[i].argmax()]
            candidates = units.members[~excluded[i]].ravel()
            total += float(torch.logsumexp(scores[i, candidates], 0) - scores[i, following].mean())
        block, rows = ours(encoded, document, position, loss="block", block_size=size, direction="next")
        least = block + rows * math.log(size)
        assert total >= least - 1e-9
        assert (total == pytest.approx(least, rel=1e-10)) == (size == 1)


def test_sentences_without_context_are_candidates_only() -> None:
    document, position = documents(3, 1, 1)
    encoded = gaussians(5, 4, 5)
    found, rows = ours(encoded, document, position)
    assert rows == 3
    changed = Gaussian(encoded.mean.clone(), encoded.log_var)
    changed.mean[3:, :2] += 1.0  # Their f.
    assert ours(changed, document, position)[0] == found
    changed.mean[3:, 2:] += 1.0  # Their g.
    assert ours(changed, document, position)[0] != pytest.approx(found)
    alone, none = ours(encoded[3:], document[3:], position[3:])
    assert (alone, none) == (0.0, 0)


def test_the_number_of_sentences_with_targets_is_that_of_the_matrix() -> None:
    random = np.random.default_rng(1)
    for _ in range(200):
        document = np.sort(random.integers(0, 4, 14))
        position = np.concatenate(
            [np.sort(random.choice(9, size, replace=False)) for size in np.bincount(document) if size < 10] or [[]]
        )
        if len(position) != len(document):
            continue
        for both, window in itertools.product((True, False), (1, 2, 3)):
            for units in (
                sentences_as_units(document, position.astype(np.int64), window, both=both),
                blocks_as_units(document, position.astype(np.int64), window, both=both),
            ):
                assert units.with_targets() == int(units.targets(slice(None))[0].any(1).sum())


def test_f_and_g_are_the_halves_of_a_sentence() -> None:
    encoded = gaussians(6, 8, 6)
    for score in ("dot", "cosine", "kl"):
        objective = made(score=score)
        found = objective.following(encoded[:2], encoded[2:])
        half = [Gaussian(encoded.mean[:, part], encoded.log_var[:, part]) for part in (slice(0, 4), slice(4, 8))]
        expected = [[score_of(score, half[0][i], half[1][j]) for j in range(2, 6)] for i in range(2)]
        assert torch.allclose(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-10)
    assert made(score="dot").score(encoded[:1], encoded[1:2]) == F.cosine_similarity(encoded.mean[:1], encoded.mean[1:2])


def rows_of(*sizes: int) -> Rows:
    document, position = documents(*sizes)
    columns = {"sentence": np.arange(len(document), dtype=np.int32), "document": document, "position": position}
    return Rows("documents", columns, frozenset(), Path("train"))


def test_an_epoch_has_every_sentence_once_in_runs() -> None:
    rows = rows_of(23, 1, 2, 40, 17)
    batches = DocumentBatches(made(run_length=5), rows, 16, seed=3)
    drawn = [batches.rows(step) for step in range(2 * batches.steps_per_epoch)]
    epochs = [np.concatenate(drawn[:6]), np.concatenate(drawn[6:])]
    assert batches.steps_per_epoch == 6
    assert {len(part) for part in drawn} == {13, 14}
    for epoch in epochs:
        assert sorted(epoch.tolist()) == list(range(83))
        document, position = rows.columns["document"][epoch], rows.columns["position"][epoch]
        breaks = np.flatnonzero((np.diff(document) != 0) | (np.diff(position) != 1))
        # Five sentences at most, and most runs have five; two runs that are neighbours may meet.
        assert np.mean(np.diff(breaks) == 5) > 0.4
        assert not np.array_equal(epoch, np.sort(epoch))
    assert epochs[0].tolist() != epochs[1].tolist()
    again = DocumentBatches(made(run_length=5), rows, 16, seed=3)
    assert np.array_equal(again.rows(7), drawn[7])


def test_whole_documents_stay_whole() -> None:
    rows = rows_of(9, 4, 12)
    batches = DocumentBatches(made(), rows, 25, seed=1)
    document = rows.columns["document"][batches.rows(0)]
    assert (np.diff(document) != 0).sum() == 2


def test_an_identity_start_must_give_f_and_g_the_same(tiny_backbone: Path) -> None:
    params = load_params(PLAIN_PARAMS).model.encoder.model_copy(update={"backbone": str(tiny_backbone), "mean_start": "identity"})
    with pytest.raises(UserError, match=r"model\.dim: 32, but with .* needs a multiple of 64 \(twice the hidden size\)"):
        made().modules(GaussianEncoder.from_backbone(params, 1), NO_BATCHES)
    made().modules(GaussianEncoder.from_backbone(params.model_copy(update={"dim": 64}), 1), NO_BATCHES)


def test_pairs_of_one_document_are_counted() -> None:
    batches = DocumentBatches(made(), rows_of(3, 4, 1), 8, seed=1)
    assert [batches.same_source(step) for step in range(2)] == [3 * 2 + 4 * 3] * 2
    # Three batches of five or six of two documents.
    halves = DocumentBatches(made(), rows_of(8, 8), 6, seed=1)
    sizes = [sorted(np.unique(halves.rows(step) < 8, return_counts=True)[1].tolist()) for step in range(3)]
    assert [halves.same_source(step) for step in range(3)] == [sum(n * (n - 1) for n in size) for size in sizes]


def test_a_batch_counts_the_sentences_with_targets() -> None:
    batches = DocumentBatches(made(direction="next"), rows_of(3, 4), 7, seed=1)
    batch = batches.batch(0)
    assert (batch.n, batch.counted) == (7, 5)


def test_too_little_text_is_refused() -> None:
    with pytest.raises(UserError, match="1 sentences of running text; training needs 2 or more"):
        DocumentBatches(made(), rows_of(1), 4, seed=1)


def test_documents_too_short_for_two_blocks_are_refused() -> None:
    with pytest.raises(UserError, match="no document is long enough for two blocks of 4 sentences"):
        DocumentBatches(made(loss="block", block_size=4), rows_of(7, 5, 6), 8, seed=1)
    assert DocumentBatches(made(loss="block", block_size=4), rows_of(7, 8), 8, seed=1).steps_per_epoch == 2


def test_a_gradient_reaches_both_halves() -> None:
    document, position = documents(4, 3)
    encoded = gaussians(7, 4, 7)
    mean = encoded.mean.clone().requires_grad_()
    objective = made(loss="block", block_size=1)
    loss: Tensor = objective.loss(Gaussian(mean, encoded.log_var), objective.units(document, position))
    loss.backward()
    assert mean.grad is not None
    assert (mean.grad.abs().sum(0) > 0).all()
    assert mean.grad.isfinite().all()
