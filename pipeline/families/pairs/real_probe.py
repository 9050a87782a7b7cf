"""The part of `gausscse probe` that is made from real sentences: minimal pairs of the premises of a project's test sets."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from pipeline.config.paths import PREPARED
from pipeline.data.schema import ENTAILMENT, LABELS, MINIMAL_PAIRS, TRAIN_PAIRS
from pipeline.evaluation.metrics import average_precision
from pipeline.families.pairs.minimal_pairs import KINDS, MinimalPair, Words, exchanged, minimal_pairs
from pipeline.models.encoder import GaussianEncoder
from pipeline.models.relation_head import likeliest_labels

COLUMNS = (*KINDS, "all", "average precision")


def real_pairs(root: Path, of_a_kind: int, seed: int) -> list[MinimalPair]:
    """At most `of_a_kind` pairs of each kind; none if the project in `root` has no prepared test sets.

    A change of words from a lexicon is left out if a training pair or minimal pair has it.
    """
    train, tests = root / PREPARED / "train", sorted((root / PREPARED / "tests").glob("*.parquet"))
    premises = _texts([file for file in tests if "premise" in pq.read_schema(file).names], "premise")
    seen = [file for name in (MINIMAL_PAIRS, TRAIN_PAIRS) if (file := train / f"{name}.parquet").is_file()]
    tables = [pq.read_table(file, columns=["premise", "hypothesis"]).to_pydict().values() for file in seen]
    without = set[Words]().union(*(exchanged(*pair) for table in tables for pair in zip(*table, strict=True)))
    like = _texts(seen, "premise", "hypothesis")
    return minimal_pairs(premises, of_a_kind * len(KINDS), seed, like=like, without=without)


def _texts(files: Sequence[Path], *columns: str) -> list[str]:
    """The different texts of columns, in the order in which they come."""
    tables = [pq.read_table(file, columns=[column])[column] for file in files for column in columns]
    return list(dict.fromkeys(text for table in tables for text in table.to_pylist()))


def shares(encoder: GaussianEncoder, pairs: Sequence[MinimalPair]) -> dict[str, float]:
    """Percent of the pairs whose likeliest label is right (a reversed entailment counts as neutral), of each kind and of all; and
    the average precision of the score. Without a relation head there is only the latter."""
    premises, hypotheses = (encoder.encode([getattr(pair, side) for pair in pairs]) for side in ("premise", "hypothesis"))
    gold = np.array([LABELS.index(pair.label) for pair in pairs])
    found: dict[str, float] = {}
    if 0 < (gold == ENTAILMENT).mean() < 1:
        found["average precision"] = 100 * average_precision(gold == ENTAILMENT, encoder.score(premises, hypotheses).numpy())
    if encoder.relation_head is not None:
        right = (likeliest_labels(np.stack(encoder.relation(premises, hypotheses), 1)) == gold).tolist()
        of_kind = defaultdict[str, list[bool]](list, all=right)
        for pair, one in zip(pairs, right, strict=True):
            of_kind[pair.kind].append(one)
        found |= {kind: 100 * sum(ones) / len(ones) for kind, ones in of_kind.items()}
    return found
