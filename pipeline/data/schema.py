"""Labels, rows of the readers and table schemas: the contract between the stages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import pyarrow as pa

Operation = Literal["fusion", "difference", "compression", "reconstruction"]
"""The task of an operator on sentences; InterSent, section 3."""
OPERATIONS: tuple[Operation, ...] = get_args(Operation)
"""The operations; the position is the code used in tables and in the token store."""
TWO_INPUTS: frozenset[Operation] = frozenset(("fusion", "difference"))
"""The operations that have a second input."""

LABELS = ("entailment", "neutral", "contradiction")
"""Label names; the position is the code used in arrays and in the token store."""
ENTAILMENT, NEUTRAL, CONTRADICTION = range(3)
RelationName = Literal["entailment", "neutral", "contradiction", "reversed"]
RELATIONS: tuple[RelationName, ...] = get_args(RelationName)
"""The classes of a relation head: the labels, with the same codes, and "reversed", where the hypothesis entails the premise.
NLI data call such a pair neutral."""
NO_LABEL = -1
"""Code of a missing gold label."""

_READ = [("selected", pa.bool_()), ("source", pa.string())]
RAW_PAIRS = pa.schema(
    [("premise", pa.string()), ("hypothesis", pa.string()), ("label", pa.int8()), ("reverse_label", pa.int8()), *_READ]
)
"""All rows of a reader, without nulls: stripped text, label codes (positions in `LABELS`, or `NO_LABEL`), whether the row is in
the selected part of the file, and its source."""
RAW_STS = pa.schema([("sentence1", pa.string()), ("sentence2", pa.string()), ("score", pa.float64()), *_READ])
"""The same for graded similarity; a missing `score` is NaN."""
BATCH_ROWS = 65_536
"""The most rows of a batch. Together with the length of sentences it bounds the memory for reading."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RawRows:
    """The rows of one source, in schema `RAW_PAIRS` or `RAW_STS`; iterating reads the source, always in the same order."""

    name: str
    """Name of the source in messages and counts: the path from params.yaml, the name on the hub, or `generated`."""
    batches: Callable[[], Iterator[pa.RecordBatch]]
    """Opens the source again. Any batch may raise a `UserError` that names the source and the row (the first is 1)."""

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self.batches()


PAIRS = pa.schema([(name, pa.string()) for name in ("premise", "hypothesis", "label", "source", "reverse_label")])
"""Pairs; `reverse_label` is the label of the pair turned round, null if unknown."""
TRIPLETS = pa.schema(
    [*((name, pa.string()) for name in ("premise", "entailment", "contradiction", "source", "neutral")), ("two_way", pa.int8())]
)
"""One row per training entailment pair; `contradiction` and `neutral` are null if the premise has none. `two_way` is 1 if it is
known to hold both ways, and 0 otherwise."""
REVERSED = pa.schema([(name, pa.string()) for name in ("premise", "hypothesis", "source")])
"""The entailment pairs turned round, without those that are known to hold both ways."""
STS = pa.schema([("sentence1", pa.string()), ("sentence2", pa.string()), ("score", pa.float64()), ("source", pa.string())])
DOCUMENTS = pa.schema([("document", pa.int32()), ("position", pa.int32()), ("sentence", pa.string()), ("source", pa.string())])
"""Running text: a row for each sentence, in order. `document` counts from 0, `position` from 0 within the document, and `source`
is the file, with the row or the name of the document if the file has several."""
OPERATION_ROWS = pa.schema([("operation", pa.int8()), *((name, pa.string()) for name in ("a", "b", "target", "source"))])
"""Rows for sentence operators: the operation (a position in `OPERATIONS`), its inputs and its result; `b` is null for an
operation of one input."""

TARGETS = pa.schema([("operation", pa.int8()), ("sentence", pa.string())])
"""Targets of training rows, with their operation; the nearest one is a line that decoded sentences are compared with."""
MOST_TARGETS = 20_000
"""Targets that are kept for each operation."""
TASK_TEXTS = (("text",), ("sentence1", "sentence2"))
"""The columns of texts that a transfer task may have."""
TASK = pa.schema([("label", pa.string()), ("class", pa.int32()), ("part", pa.int8())])
"""The other columns of a transfer task: the label, its number among the task's labels in sorted order, and the part of its fixed
split (a position in `TASK_PARTS`), or `NO_PART` if it has none."""
TASK_PARTS = ("train", "dev", "test")
NO_PART = -1
HARD = pa.schema([("hard", pa.bool_())])
"""For each pair of a set, in its order, whether the hypothesis-only classifier gets it wrong."""
HARD_FOLDER = "hard"
"""Folder of stage prepare with SET.parquet of `HARD` for the development set and every test set."""
DEV, PROMOTION = "dev", "promotion"
"""Names of the two parts of the development set (see `pipeline.data.split`), and of their folders and token stores."""
DEV_TEXT, PROMOTION_TEXT = f"{DEV}_text", f"{PROMOTION}_text"
"""Names of the sets of running text in the same two folders and stores."""
DEV_OPERATIONS, PROMOTION_OPERATIONS = f"{DEV}_operations", f"{PROMOTION}_operations"
"""The same for operation rows."""
TRAIN_PAIRS, MINIMAL_PAIRS = "pairs", "minimal_pairs"
"""Name of the set of all labelled training pairs, in the training folder and its token store."""
STS_SUFFIX = ".sts"
"""`<name>.sts.parquet` and `<name>.sts.arrow` hold graded similarity. Set names have no dot."""
TEXT_SUFFIX = ".text"
"""The same for running text."""
TASK_SUFFIX = ".task"
"""The same for transfer tasks."""
OPERATIONS_SUFFIX = ".operations"
"""The same for operation rows."""
TARGETS_SUFFIX = ".targets"
"""The same for targets of training rows."""
