"""Token stores made by hand, for tests that need no tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.data.schema import STS_SUFFIX
from pipeline.data.table_io import sha256_tree, write_batches
from pipeline.data.token_store import MANIFEST, MISSING, ROW_KINDS, TRIPLETS, Int32s, Rows, read_rows
from pipeline.utils.atomic_io import write_json


def write_table(columns: Mapping[str, Any], path: Path) -> None:
    """One record batch, so that each column is contiguous in the file."""
    write_batches(path, [pa.record_batch(dict(columns))])


def make_store(
    folder: Path,
    sentences: Sequence[Sequence[int]],
    *,
    triplets: Sequence[tuple[int, ...]] | None = None,
    rows: Mapping[str, Sequence[tuple[int, ...]]] | None = None,
    pairs: Mapping[str, Sequence[tuple[int, int, int]]] | None = None,
    graded: Mapping[str, Sequence[tuple[int, int, float]]] | None = None,
    numbers: Mapping[str, Mapping[str, Sequence[int]]] | None = None,
    shard_sentences: int = 1000,
) -> Path:
    """A store of token ids.

    triplets: (premise, entailment, contradiction[, neutral]). rows: by kind, sentences in the order of `ROW_KINDS`. pairs: by
    name, sets of (premise, hypothesis, label). graded: by name, sets of (sentence, sentence, score). numbers: by kind, what the
    rows have of `NUMBERS`.
    """
    (folder / "sentences").mkdir(parents=True)
    for number, start in enumerate(range(0, max(len(sentences), 1), shard_sentences)):
        shard = sentences[start : start + shard_sentences]
        ids = pa.array([list(s) for s in shard], type=pa.list_(pa.int32()))
        length = pa.array([len(s) for s in shard], type=pa.int32())
        write_table({"ids": ids, "length": length}, folder / f"sentences/{number:05d}.arrow")
    if triplets is not None:
        rows = {**(rows or {}), TRIPLETS: [(*row, MISSING)[:4] for row in triplets]}
    for kind, given in (rows or {}).items():
        columns = np.array(given, dtype=np.int32).reshape(-1, len(ROW_KINDS[kind])).T
        table = {n: pa.array(c) for n, c in zip(ROW_KINDS[kind], columns, strict=True)}
        table |= {name: pa.array(values) for name, values in (numbers or {}).get(kind, {}).items()}
        write_table(table, folder / f"{kind}.arrow")
    for name, labelled in (pairs or {}).items():
        premise, hypothesis, label = np.array(labelled, dtype=np.int32).T
        columns = {"premise": premise, "hypothesis": hypothesis, "label": label.astype(np.int8)}
        write_table(columns | {"reverse_label": np.full(len(labelled), -1, dtype=np.int8)}, folder / f"{name}.arrow")
    for name, scored in (graded or {}).items():
        first, second, score = zip(*scored, strict=True)
        columns = {"sentence1": pa.array(first, pa.int32()), "sentence2": pa.array(second, pa.int32()), "score": pa.array(score)}
        write_table(columns, folder / f"{name}{STS_SUFFIX}.arrow")
    write_json(
        folder / MANIFEST,
        {
            "pad_id": 0,
            "sentences": len(sentences),
            "shard_sentences": shard_sentences,
            "nli_sets": sorted(pairs or {}),
            "sts_sets": sorted(graded or {}),
            "row_kinds": {kind: list(ROW_KINDS[kind]) for kind in rows or {}},
            "sha256": sha256_tree(folder, "*.arrow"),
        },
    )
    return folder


def in_memory(columns: Mapping[str, npt.NDArray[Any]], directory: Path) -> Rows:
    """Rows in memory."""
    return Rows({name: [column] for name, column in columns.items()}, directory)


def read_triplets(directory: Path) -> Int32s:
    """(n, 4) sentence indices of premise, entailment, contradiction and neutral; the last two may be `MISSING`."""
    return read_rows(directory, TRIPLETS).stacked(*ROW_KINDS[TRIPLETS])


def random_stores(
    folder: Path,
    *,
    sentences: int = 60,
    triplets: int = 40,
    seed: int = 0,
    alone: int = 0,
    rows: Mapping[str, Sequence[tuple[int, ...]]] | None = None,
) -> tuple[Path, Path]:
    """A training and a development store of random sentences between 3 and 12 tokens; `alone` triplets have no contradiction.

    rows: further rows of the training store, as for `make_store`.
    """
    r = np.random.default_rng(seed)
    texts = [[2, *r.integers(5, 30, r.integers(1, 11)).tolist(), 3] for _ in range(sentences)]
    drawn = [tuple(r.integers(0, sentences, 3).tolist()) for _ in range(triplets)]
    # Every fourth has no neutral pair.
    drawn = [(*row, MISSING if k % 4 == 0 else (row[0] + 7) % sentences) for k, row in enumerate(drawn)]
    drawn[len(drawn) - alone :] = [(row[0], row[1], MISSING, row[3]) for row in drawn[len(drawn) - alone :]]
    pairs = [(*r.integers(0, sentences, 2).tolist(), int(k % 3)) for k in range(45)]
    return (
        make_store(folder / "train", texts, triplets=drawn, rows=rows),  # type: ignore[arg-type]
        make_store(folder / "dev", texts, pairs={"dev": pairs}),  # type: ignore[dict-item]
    )
