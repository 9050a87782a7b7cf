"""Stage tokenize: prepared text → token stores. The only part of data/ that meets a tokenizer, and it is handed one."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.data.files import all_or_nothing, sha256_tree, write_arrow
from pipeline.data.schema import LABELS, STS_SUFFIX
from pipeline.data.tokens import MANIFEST, MISSING, SENTENCES, TRIPLETS
from pipeline.errors import UserError
from pipeline.files import write_json

if TYPE_CHECKING:
    from transformers.tokenization_utils_tokenizers import TokenizersBackend

OUTPUTS = ("train", "dev", "tests")

# Sentences handed to the tokenizer at once: bounds memory, and is more than enough for its threads.
_CHUNK = 16_384
_INT32_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    """A tokenizer, where it comes from, and how long a sentence may be."""

    name: str
    revision: str | None
    tokenizer: TokenizersBackend
    max_length: int
    """In tokens, special tokens included."""

    def __post_init__(self) -> None:
        """Raises `UserError` if the tokenizer cannot do what the store needs."""
        if self.tokenizer.pad_token_id is None:
            raise UserError(f"model.backbone: the tokenizer of {self.name} has no padding token; choose an encoder that has one")
        if self.max_length > self.tokenizer.model_max_length:
            raise UserError(
                f"model.max_length: {self.max_length} is more than {self.name} takes; "
                f"set it to {self.tokenizer.model_max_length} or less"
            )
        if self.max_length <= (special := self.tokenizer.num_special_tokens_to_add(pair=False)):
            raise UserError(
                f"model.max_length: {self.max_length} leaves no token beside the special ones of {self.name}; "
                f"set it to {special + 1} or more"
            )

    def encode(self, sentences: Sequence[str]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """Token ids (all sentences one after the other), stored length and untruncated length of each sentence."""
        backend = self.tokenizer.backend_tokenizer
        # The files of a tokenizer may carry a padding and a truncation of their own, and calling it sets them again.
        backend.no_padding()
        backend.no_truncation()
        encodings = backend.encode_batch_fast(list(sentences))
        full = np.array([len(encoding) for encoding in encodings], dtype=np.int32)
        cut = np.flatnonzero(full > self.max_length).tolist()
        if cut:  # The tokenizer itself truncates, since it knows where its special tokens stand.
            backend.enable_truncation(self.max_length, direction=self.tokenizer.truncation_side)
            for i, encoding in zip(cut, backend.encode_batch_fast([sentences[i] for i in cut]), strict=True):
                encodings[i] = encoding
        stored = np.minimum(full, self.max_length)
        # `ids` makes a list at every call. One at a time: thousands kept would set the garbage collector going again and again.
        rows = (encoding.ids for encoding in encodings)
        ids = np.fromiter(chain.from_iterable(rows), dtype=np.int32, count=int(stored.sum()))
        return ids, stored, full

    def digest(self) -> str:
        """SHA-256 of the tokenizer's serialisation: vocabulary, normalisation, special tokens."""
        backend = self.tokenizer.backend_tokenizer
        backend.no_padding()
        backend.no_truncation()
        return hashlib.sha256(backend.to_str().encode()).hexdigest()


def tokenize(prepared: Path, out: Path, encoder: Encoder) -> dict[str, dict[str, Any]]:
    """Write the stores `train`, `dev` and `tests` of what stage prepare wrote; same input, same bytes.

    Returns:
        The content of each store's tokens.json.

    Raises:
        UserError: a file of stage prepare is missing or unreadable; `out` is then as it was.
    """
    described = {
        "backbone": encoder.name,
        "revision": encoder.revision,
        "tokenizer_sha256": encoder.digest(),
        "max_length": encoder.max_length,
        "pad_id": encoder.tokenizer.pad_token_id,
    }
    manifests: dict[str, dict[str, Any]] = {}
    with all_or_nothing(out, OUTPUTS) as work:
        for store in OUTPUTS:
            (work / store).mkdir()
            tables = _tables(prepared, store)
            counts = _write_store(tables, work / store, encoder)
            names = [name for name in tables if name != "triplets"]
            manifests[store] = {
                **described,
                **counts,
                "nli_sets": [name for name in names if not name.endswith(STS_SUFFIX)],
                "sts_sets": [name.removesuffix(STS_SUFFIX) for name in names if name.endswith(STS_SUFFIX)],
                "rows": {name: table.num_rows for name, table in tables.items()},
                "sha256": sha256_tree(work / store, "*.arrow"),
            }
            write_json(work / store / MANIFEST, manifests[store])
    return manifests


def _tables(prepared: Path, store: str) -> dict[str, pa.Table]:
    """The tables a store indexes, by name: the triplets (other pairs are not trained on), dev, or every test set."""
    folder = prepared / store
    if store == "tests":
        if not folder.is_dir():
            raise UserError(f"{folder}: no such folder; run dvc repro prepare")
        paths = sorted(folder.glob("*.parquet"))
    else:
        paths = [folder / {"train": "triplets.parquet", "dev": "dev.parquet"}[store]]
    return {path.name.removesuffix(".parquet"): _read(path) for path in paths}


def _read(path: Path) -> pa.Table:
    try:
        return pq.read_table(path)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; run dvc repro prepare") from None
    except (pa.ArrowException, OSError):
        raise UserError(f"{path}: cannot be read as Parquet; run dvc repro -f prepare") from None


def _write_store(tables: Mapping[str, pa.Table], folder: Path, encoder: Encoder) -> dict[str, int]:
    """Write sentences.arrow and one Arrow file a table; sentences are numbered table by table, column by column."""
    columns = [(name, column) for name, table in tables.items() for column in _text_columns(table)]
    chunks = [chunk for name, column in columns for chunk in tables[name][column].cast(pa.large_string()).chunks]
    encoded = pa.chunked_array(chunks, pa.large_string()).dictionary_encode()
    sentences = encoded.chunk(encoded.num_chunks - 1).dictionary if encoded.num_chunks else pa.array([], pa.large_string())
    indices = pc.fill_null(pa.chunked_array([chunk.indices for chunk in encoded.chunks], pa.int32()), MISSING).to_numpy()
    ends = np.cumsum([tables[name].num_rows for name, _ in columns])
    by_column = dict(zip(columns, np.split(indices, ends[:-1]) if len(ends) else [], strict=True))

    for name, table in tables.items():
        rows = {column: pa.array(by_column[name, column], pa.int32()) for column in _text_columns(table)}
        if "score" in table.column_names:
            rows["score"] = table["score"].combine_chunks()
        elif "label" in table.column_names:
            rows["label"] = _label_codes(table, "label")
            rows["reverse_label"] = _label_codes(table, "reverse_label")
        write_arrow(rows, folder / (TRIPLETS if name == "triplets" else f"{name}.arrow"))
    return _write_sentences(sentences, folder / SENTENCES, encoder)


def _write_sentences(sentences: pa.Array, path: Path, encoder: Encoder) -> dict[str, int]:
    parts = [encoder.encode(sentences.slice(start, _CHUNK).to_pylist()) for start in range(0, max(len(sentences), 1), _CHUNK)]
    ids, stored, full = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    offsets = np.concatenate([[0], np.cumsum(stored, dtype=np.int64)])
    # 32-bit offsets as long as they hold the number of tokens.
    small = len(ids) <= _INT32_MAX
    rows = (pa.ListArray if small else pa.LargeListArray).from_arrays(
        pa.array(offsets, pa.int32() if small else pa.int64()), pa.array(ids, pa.int32())
    )
    write_arrow({"ids": rows, "length": pa.array(full, pa.int32())}, path)
    return {
        "sentences": len(full),
        "tokens": len(ids),
        "truncated": int((full > encoder.max_length).sum()),
        "longest": int(full.max(initial=0)),
    }


def _text_columns(table: pa.Table) -> list[str]:
    """Columns whose cells are sentences, in the table's order."""
    return [
        name
        for name in ("premise", "hypothesis", "entailment", "contradiction", "sentence1", "sentence2")
        if name in table.column_names
    ]


def _label_codes(table: pa.Table, column: str) -> pa.Array:
    """(n,) int8 positions in `LABELS`, `MISSING` for null or if there is no such column."""
    if column not in table.column_names:
        return pa.array(np.full(table.num_rows, MISSING, dtype=np.int8))
    codes = pc.index_in(table[column].cast(pa.string()), value_set=pa.array(LABELS, pa.string()))
    return pc.fill_null(codes, MISSING).cast(pa.int8()).combine_chunks()
