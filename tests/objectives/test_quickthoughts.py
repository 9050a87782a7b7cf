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

from pipeline.config.load import load_params
from pipeline.data.token_store import Rows
from pipeline.families.text.params import QuickThoughtsParams
from pipeline.families.text.quickthoughts import DocumentBatches, QuickThoughtsObjective, blocks_as_units, sentences_as_units
from pipeline.gaussian.distribution import Gaussian
from pipeline.models.encoder import GaussianEncoder
from pipeline.utils.errors import UserError
from tests.store import in_memory

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


def test_two_blocks_are_curl_s_logistic_loss() -> None:
    encoded = gaussians(9, 6, 4)
    f, g = encoded.mean[:, :3], encoded.mean[:, 3:]
    # Two blocks of three of one document, and one of another: for the first three sentences one right and one wrong block.
    found, rows = ours(encoded, *documents(6, 3), loss="block", block_size=3, direction="next")
    margin = f[:3] @ (g[3:6].mean(0) - g[6:].mean(0))
    assert rows == 3
    assert found == pytest.approx(float(torch.log1p(torch.exp(-margin)).sum()), rel=1e-10)


def test_sentences_without_context_have_no_loss() -> None:
    assert ours(gaussians(2, 4, 5), *documents(1, 1)) == (0.0, 0)


def test_the_number_of_sentences_with_targets_is_that_of_the_matrix() -> None:
    random = np.random.default_rng(1)
    for _ in range(100):
        document, position = np.divmod(np.sort(random.choice(36, 14, replace=False)), 9)
        for both, window in itertools.product((True, False), (1, 2, 3)):
            for units_of in (sentences_as_units, blocks_as_units):
                units = units_of(document, position, window, both=both)
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
    return in_memory(columns, Path("train"))


def test_an_epoch_has_every_sentence_once_in_runs() -> None:
    rows = rows_of(23, 1, 2, 40, 17)
    batches = DocumentBatches(made(run_length=5), rows, 16, seed=3)
    drawn = [batches.rows(step) for step in range(2 * batches.steps_per_epoch)]
    epochs = [np.concatenate(drawn[:6]), np.concatenate(drawn[6:])]
    assert batches.steps_per_epoch == 6
    assert {len(part) for part in drawn} == {13, 14}
    for epoch in epochs:
        assert sorted(epoch.tolist()) == list(range(83))
        document, position = rows.column("document")[epoch], rows.column("position")[epoch]
        breaks = np.flatnonzero((np.diff(document) != 0) | (np.diff(position) != 1))
        # Five sentences at most, and most runs have five; two runs that are neighbours may meet.
        assert np.mean(np.diff(breaks) == 5) > 0.4
        assert not np.array_equal(epoch, np.sort(epoch))
    assert epochs[0].tolist() != epochs[1].tolist()
    again = DocumentBatches(made(run_length=5), rows, 16, seed=3)
    assert np.array_equal(again.rows(7), drawn[7])


def test_blocks_are_of_runs_that_are_near_in_the_text() -> None:
    rows = rows_of(*[20] * 100)
    batches = DocumentBatches(made(run_length=5), rows, 16, seed=3, block_rows=50)
    epoch = np.concatenate([batches.rows(step) for step in range(batches.steps_per_epoch)])
    assert sorted(epoch.tolist()) == list(range(2000))
    assert np.array_equal(epoch[:9], DocumentBatches(made(run_length=5), rows, 16, seed=3, block_rows=50).rows(0)[:9])
    # Eight blocks of about 50 rows are mixed. A block of 50 rows is of four documents at most.
    documents = [len(np.unique(epoch[k : k + 100] // 20)) for k in range(0, 2000, 100)]
    assert max(documents) <= 2 * 8 * 4 and min(documents) > 4
    places = np.argsort(epoch)
    assert np.median([np.ptp(places[k : k + 20]) for k in range(0, 2000, 20)]) < 400
    free = np.argsort(np.concatenate([DocumentBatches(made(run_length=5), rows, 2000, seed=3).rows(0)]))
    assert np.median([np.ptp(free[k : k + 20]) for k in range(0, 2000, 20)]) > 800


def test_an_identity_start_must_give_f_and_g_the_same(tiny_backbone: Path) -> None:
    params = load_params(PLAIN_PARAMS).model.encoder.model_copy(update={"backbone": str(tiny_backbone), "mean_start": "identity"})
    with pytest.raises(UserError, match=r"model\.dim: 32, but with .* needs a multiple of 64 \(twice the hidden size\)"):
        made().modules(GaussianEncoder.from_backbone(params, 1), NO_BATCHES)
    made().modules(GaussianEncoder.from_backbone(params.model_copy(update={"dim": 64}), 1), NO_BATCHES)


def test_a_batch_counts_targets_and_pairs_of_one_document() -> None:
    batches = DocumentBatches(made(direction="next"), rows_of(3, 4, 1), 8, seed=1)
    assert (batches.batch(0).n, batches.batch(0).counted) == (8, 5)
    assert [batches.same_source(step) for step in range(2)] == [3 * 2 + 4 * 3] * 2


def test_too_little_text_is_refused() -> None:
    with pytest.raises(UserError, match="1 sentences of running text; training needs 2 or more"):
        DocumentBatches(made(), rows_of(1), 4, seed=1)
    with pytest.raises(UserError, match="no document is long enough for two blocks of 4 sentences"):
        DocumentBatches(made(loss="block", block_size=4), rows_of(7, 5, 6), 8, seed=1)
    assert DocumentBatches(made(loss="block", block_size=4), rows_of(7, 8), 8, seed=1).steps_per_epoch == 2
