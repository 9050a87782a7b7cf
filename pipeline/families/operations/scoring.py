"""How well sentence operators do: the rank of the target, and the sentence that the decoder writes (InterSent, 2023, section 4).

Shapes: n rows, c sentences in a pool, S sentences in a store, D dimensions.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from pipeline.data.schema import OPERATIONS, TWO_INPUTS, Operation
from pipeline.data.token_sets import OperationSet, TargetSet
from pipeline.data.token_store import TokenStore
from pipeline.families.operations.encoder import Encoder
from pipeline.families.operations.operators import arithmetic
from pipeline.models.encoder import GaussianEncoder

MRR_AT = 10
"""A target with a higher rank counts as not retrieved in the mean reciprocal rank."""
ROUGE = ("rouge1", "rouge2", "rougeL")
"""The ROUGE scores of a decoded sentence; the names are those of rouge-score."""
LEAD_WORDS = 12
"""How many of the first words of a sentence the line `rule` takes for its compression."""
# Rows compared with the pool, and embeddings decoded, at a time.
_ROWS, _DECODED = 1024, 128


@dataclass(frozen=True, slots=True)
class TrainingTargets:
    """Targets of training rows, and what the model that is scored makes of them."""

    rows: TargetSet
    store: TokenStore
    """The store that has them."""
    mean: Tensor
    """(S, D) embeddings of the sentences of the store."""


Operator = Callable[[Operation, Tensor, Tensor | None], Tensor]
"""(operation, (n, D) first inputs, (n, D) second inputs or None) → (n, D) outputs."""


def unit_arithmetic(operation: Operation, a: Tensor, b: Tensor | None) -> Tensor:
    """Sum and difference of unit vectors; the input itself for the other operations.

    Longer means would count for more: of the untrained encoder's, `arithmetic` finds fewer targets.
    """
    return arithmetic(operation, F.normalize(a), None if b is None else F.normalize(b))


def copying(operation: Operation, a: Tensor, b: Tensor | None) -> Tensor:
    """The first input, whatever the operation."""
    return a


def outputs_of(mean: Tensor, rows: OperationSet, operator: Operator) -> Tensor:
    """(n, D) the operator's output for each row, from (S, D) embeddings of the sentences of the store."""
    output = mean.new_zeros((len(rows), mean.shape[1]))
    for name, own in _by_operation(rows):
        b = mean[_index(rows.b[own])] if name in TWO_INPUTS else None
        output[torch.from_numpy(own)] = operator(name, mean[_index(rows.a[own])], b)
    return output


def target_ranks(mean: Tensor, rows: OperationSet, operator: Operator) -> NDArray[np.int64]:
    """(n,) the rank of each row's target, from 1, by the cosine with the operator's output.

    The pool of a row are all targets and inputs of its operation in the set. Other right answers are left out: targets of rows
    with the same inputs and, for reconstruction, whose output is its input, the row's own input. Other sentences with the same
    cosine as the target count as higher.

    Args:
        mean: (S, D) embeddings of the sentences of the store.
    """
    output = outputs_of(mean, rows, operator)
    ranks = np.zeros(len(rows), np.int64)
    for name, own in _by_operation(rows):
        a, b, target = (column[own] for column in (rows.a, rows.b, rows.target))
        pool = np.unique(np.concatenate((a, target, b) if name in TWO_INPUTS else (a, target)))
        candidates = F.normalize(mean[_index(pool)])
        inputs = list(zip(a.tolist(), b.tolist(), strict=True))
        right: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        for key, place in zip(inputs, np.searchsorted(pool, target).tolist(), strict=True):
            right[key].append(place)
        if name == "reconstruction":
            for key in right:
                right[key].append(int(np.searchsorted(pool, key[0])))
        for start in range(0, len(own), _ROWS):
            part = slice(start, start + _ROWS)
            cosine = F.normalize(output[torch.from_numpy(own[part])]) @ candidates.T
            at = torch.from_numpy(np.searchsorted(pool, target[part])).to(cosine.device)[:, None]
            # NaN counts as higher, too.
            higher = ~(cosine < cosine.gather(1, at))
            places = [(row, place) for row, key in enumerate(inputs[part]) for place in right[key]]
            higher[torch.tensor(places, device=cosine.device).unbind(1)] = False
            ranks[own[part]] = 1 + higher.sum(1).cpu().numpy()
    return ranks


def reciprocal(ranks: NDArray[np.int64]) -> NDArray[np.float64]:
    """1 / rank, 0 for ranks over 10; the mean is MRR@10."""
    return np.where(ranks <= MRR_AT, 1.0 / ranks, 0.0)


def mean_over_operations(values: NDArray[Any], operation: NDArray[np.int8]) -> float:
    """The mean over the operations that occur of the mean over their rows."""
    return float(np.mean([values[operation == code].mean() for code in np.unique(operation)]))


@torch.inference_mode()
def score_operations(
    encoder: GaussianEncoder, mean: Tensor, store: TokenStore, rows: OperationSet, training: TrainingTargets | None = None
) -> pa.Table:
    """Per-row scores of a set of operation rows.

    A model without operators is scored with sum and difference of unit vectors.

    Args:
        encoder: the model; it gives operators, decoder and tokenizer.
        mean: (S, D) its embeddings of the sentences of the store.
        training: what the decoder may have memorised.

    Returns:
        Table of n rows: operation, row, whole (`OperationSet.whole`), and for the model's operators (operator_), sum and
        difference of unit vectors (arithmetic_) and the first input alone (copy_): mrr (1 / rank of the target, 0 above 10) and
        recall (whether the target is first). With a decoder also written (what it writes for the operator's output, without beam
        search), exact (whether these are the tokens of the target), rouge1, rouge2, rougeL (F1, of words in lower case, not
        stemmed), and the same three for two lines that see the text: copy_ (all inputs, one after the other) and rule_
        (difference: a without the words of b; compression: the first twelve words; otherwise as copy_). With `training` also for
        nearest_: the training target of the same operation that is nearest to the operator's output by the cosine. The texts are
        those of the tokens, so they are cut as the model's sentences are.
    """
    trained = encoder.trained_modules if isinstance(encoder, Encoder) else None
    own: Operator = unit_arithmetic if trained is None else trained.operators
    columns: dict[str, Any] = {"operation": rows.operation, "row": np.arange(len(rows)), "whole": rows.whole}
    for prefix, operator in (("operator", own), ("arithmetic", unit_arithmetic), ("copy", copying)):
        ranks = target_ranks(mean, rows, operator)
        columns[f"{prefix}_mrr"], columns[f"{prefix}_recall"] = reciprocal(ranks), ranks == 1
    if isinstance(encoder, Encoder) and encoder.writes:
        vectors = outputs_of(mean, rows, own)
        written: list[list[int]] = [[]] * len(rows)
        # A batch is decoded until its longest sentence ends, so sentences of about the same length go together.
        order = np.argsort(_expected_lengths(store, rows), kind="stable")
        for start in range(0, len(rows), _DECODED):
            part = order[start : start + _DECODED]
            for row, ids in zip(part.tolist(), encoder.write_ids(vectors[torch.from_numpy(part)]), strict=True):
                written[row] = ids
        nearest = None if training is None else _nearest(vectors, rows, training)
        columns |= _texts(encoder, store, rows, written, nearest)
    return pa.table(columns)


def operation_metrics(scores: pa.Table) -> dict[str, float]:
    """Means of the columns of `score_operations`, in percent, over the operations and for each operation (OPERATION.NAME)."""
    columns = {name: scores.column(name).to_numpy() for name in scores.column_names if name != "written"}
    operation = columns.pop("operation")
    del columns["row"], columns["whole"]
    numbers: dict[str, float] = {"rows": len(operation)}
    for name, values in columns.items():
        numbers[name] = 100 * mean_over_operations(values, operation)
    for code in np.unique(operation).tolist():
        own = operation == code
        numbers[f"{OPERATIONS[code]}.rows"] = int(own.sum())
        numbers |= {f"{OPERATIONS[code]}.{name}": 100 * float(values[own].mean()) for name, values in columns.items()}
    return numbers


def _expected_lengths(store: TokenStore, rows: OperationSet) -> NDArray[np.int64]:
    """(n,) about how many tokens a result has, by its inputs."""
    expected = store.lengths_of(rows.a).astype(np.int64)
    for name, sign in (("fusion", 1), ("difference", -1)):
        own = rows.operation == OPERATIONS.index(name)
        expected[own] += sign * store.lengths_of(rows.b[own])
    return expected


def _nearest(vectors: Tensor, rows: OperationSet, training: TrainingTargets) -> list[list[int]]:
    """Token ids of the training target nearest to each of n vectors; none if training has no row of the operation."""
    ids: list[list[int]] = [[] for _ in range(len(rows))]
    for name, own in _by_operation(rows):
        candidates = training.rows.sentence[training.rows.operation == OPERATIONS.index(name)]
        if not len(candidates):
            continue
        means = F.normalize(training.mean[_index(candidates)])
        for start in range(0, len(own), _ROWS):
            part = own[start : start + _ROWS]
            best = (F.normalize(vectors[torch.from_numpy(part)]) @ means.T).argmax(1).cpu().numpy()
            for row, k in zip(part.tolist(), candidates[best].tolist(), strict=True):
                ids[row] = training.store[k].tolist()
    return ids


def _texts(
    encoder: GaussianEncoder,
    store: TokenStore,
    rows: OperationSet,
    written: Sequence[Sequence[int]],
    nearest: Sequence[Sequence[int]] | None,
) -> dict[str, Any]:
    # It imports a large library of its own, which takes seconds.
    from rouge_score.rouge_scorer import RougeScorer

    def texts(numbers: NDArray[np.int32]) -> list[str]:
        return encoder.text_of([store[number].tolist() if number >= 0 else [] for number in numbers.tolist()])

    a, b, target = (texts(numbers) for numbers in (rows.a, rows.b, rows.target))
    copied = [f"{first} {second}".strip() for first, second in zip(a, b, strict=True)]
    ruled = [
        _rule(OPERATIONS[code], first, second, copy)
        for code, first, second, copy in zip(rows.operation.tolist(), a, b, copied, strict=True)
    ]
    ours = encoder.text_of(written)
    exact = [list(ids) == store[number][1:-1].tolist() for ids, number in zip(written, rows.target.tolist(), strict=True)]
    columns: dict[str, Any] = {"written": ours, "exact": np.array(exact, np.bool_)}
    scorer = RougeScorer(list(ROUGE))
    lines = {"": ours, "copy_": copied, "rule_": ruled}
    if nearest is not None:
        lines["nearest_"] = encoder.text_of(nearest)
    for prefix, candidates in lines.items():
        scored = [scorer.score(gold, candidate) for gold, candidate in zip(target, candidates, strict=True)]
        columns |= {f"{prefix}{name}": np.array([score[name].fmeasure for score in scored]) for name in ROUGE}
    return columns


def _rule(operation: Operation, a: str, b: str, copied: str) -> str:
    if operation == "compression":
        return " ".join(_words(a)[:LEAD_WORDS])
    if operation != "difference":
        return copied
    # Each word of b takes away one such word of a, the first.
    taken = Counter(_words(b))
    kept: list[str] = []
    for word in _words(a):
        if taken[word]:
            taken[word] -= 1
        else:
            kept.append(word)
    return " ".join(kept)


def _words(text: str) -> list[str]:
    """The words as ROUGE sees them."""
    return re.findall("[a-z0-9]+", text.lower())


def _by_operation(rows: OperationSet) -> list[tuple[Operation, NDArray[np.int64]]]:
    """Each operation that occurs, with the numbers of its rows."""
    return [(OPERATIONS[code], np.flatnonzero(rows.operation == code)) for code in np.unique(rows.operation).tolist()]


def _index(numbers: NDArray[np.int32]) -> Tensor:
    return torch.from_numpy(numbers.astype(np.int64))
