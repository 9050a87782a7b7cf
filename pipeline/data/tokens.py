"""The token store: every sentence as token ids, mapped into memory. This is the reading side, which training uses.

A store is a folder with `sentences/` (shards of ids and lengths), tables of rows that index into them, and `tokens.json`, which
names the sets and carries the SHA-256 of every Arrow file. Nothing here loops over sentences or tokens, and nothing is
copied on opening.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.data.schema import STS_SUFFIX
from pipeline.errors import UserError, passes
from pipeline.files import sha256_file

MANIFEST = "tokens.json"
SENTENCES = "sentences"
"""Folder of the shards 00000.arrow, 00001.arrow, …"""
SHARD = 2**18
"""Sentences of a shard: some 20 MB of tokens, which one of many readers can fetch or map by itself."""
TRIPLETS = "triplets.arrow"
MISSING = -1
"""Sentence index where a triplet has no contradiction, and reverse label where none is known."""

Int32s = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Shard:
    """Some sentences as token ids; the arrays are read-only views of the mapped file."""

    ids: Int32s
    """(tokens,) all sentences one after the other, special tokens included."""
    offsets: npt.NDArray[np.integer]
    """(n+1,) sentence i is ids[offsets[i]:offsets[i+1]]."""
    length: Int32s
    """(n,) tokens of each sentence before truncation, special tokens included."""


@dataclass(frozen=True, slots=True)
class TokenStore:
    """n sentences as token ids, `shard_sentences` in each shard but the last."""

    shards: tuple[Shard, ...]
    """One at least."""
    shard_sentences: int
    pad_id: int
    directory: Path

    def __len__(self) -> int:
        return (len(self.shards) - 1) * self.shard_sentences + len(self.shards[-1].length)

    def __getitem__(self, row: int) -> Int32s:
        """(length,) token ids of one sentence."""
        shard = self.shards[row // self.shard_sentences]
        start, stop = shard.offsets[row % self.shard_sentences :][:2]
        return shard.ids[start:stop]

    @property
    def length(self) -> Int32s:
        """(n,) tokens of each sentence before truncation, special tokens included."""
        return np.concatenate([shard.length for shard in self.shards])

    @property
    def lengths(self) -> npt.NDArray[np.integer]:
        """(n,) tokens of each sentence as stored, that is truncated."""
        return np.concatenate([np.diff(shard.offsets) for shard in self.shards])

    def lengths_of(self, rows: npt.NDArray[np.integer]) -> npt.NDArray[np.integer]:
        """(b,) stored tokens of some sentences.

        Raises:
            IndexError: a row is negative (`MISSING`) or n or more.
        """
        if len(rows) and (rows.min() < 0 or rows.max() >= len(self)):
            raise IndexError(f"{self.directory}: sentence indices must be in [0, {len(self)})")
        lengths = np.empty(len(rows), dtype=np.int64)
        for shard, at, local in self._by_shard(rows):
            lengths[at] = shard.offsets[local + 1] - shard.offsets[local]
        return lengths

    def lay_out(
        self, rows: npt.NDArray[np.integer], widths: npt.NDArray[np.integer]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Sentences one after the other, each followed by padding up to its width.

        Args:
            rows: (b,) sentence indices, in [0, n).
            widths: (b,) tokens each sentence is to take, its length or more.

        Returns:
            ids: (Σ widths,) `pad_id` after the end of a sentence.
            mask: (Σ widths,) True where there is a token.

        Raises:
            IndexError: a row is negative (`MISSING`) or n or more.
        """
        lengths, starts = self.lengths_of(rows), np.cumsum(widths) - widths
        ids = np.full(int(widths.sum()), self.pad_id, dtype=np.int64)
        mask = np.zeros(len(ids), dtype=np.bool_)
        for shard, at, local in self._by_shard(rows):
            here = lengths[at]
            # Token t of all these sentences, in sentence s, is at offsets[s] + t − first[s] in the file.
            first = np.cumsum(here) - here
            tokens = np.arange(int(here.sum()))
            source = tokens + np.repeat(shard.offsets[local] - first, here)
            target = tokens + np.repeat(starts[at] - first, here)
            ids[target], mask[target] = shard.ids[source], True
        return ids, mask

    def _by_shard(
        self, rows: npt.NDArray[np.integer]
    ) -> Iterator[tuple[Shard, npt.NDArray[np.integer] | slice, npt.NDArray[np.integer]]]:
        """Shard, the places in `rows` of those it holds, and their indices in it."""
        if len(self.shards) == 1:
            yield self.shards[0], slice(None), rows
            return
        shard, local = np.divmod(rows, self.shard_sentences)
        for number in np.unique(shard):
            at = np.flatnonzero(shard == number)
            yield self.shards[number], at, local[at]


@dataclass(frozen=True, slots=True)
class PairSet:
    """n labelled pairs as sentence indices."""

    name: str
    premise: Int32s
    hypothesis: Int32s
    label: npt.NDArray[np.int8]
    """(n,) 0 entailment, 1 neutral, 2 contradiction."""
    reverse_label: npt.NDArray[np.int8]
    """(n,) the same for the pair read the other way round; -1 where unknown."""

    def __len__(self) -> int:
        return len(self.label)


@dataclass(frozen=True, slots=True)
class StsSet:
    """n pairs with a graded similarity, as sentence indices."""

    name: str
    sentence1: Int32s
    sentence2: Int32s
    score: npt.NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.score)


def open_store(directory: Path, verify: bool = True) -> TokenStore:
    """Map the sentences of a store into memory.

    Args:
        directory: data/tokens/train, dev or tests.
        verify: compare every Arrow file of the store with its SHA-256 in tokens.json first.

    Raises:
        UserError: there is no store, or it is not what stage tokenize wrote.
    """
    manifest = read_manifest(directory)
    if verify:
        for name, expected in manifest["sha256"].items():
            if not (directory / name).is_file() or sha256_file(directory / name) != expected:
                raise _broken(directory / name)
    numpy = partial(pa.Array.to_numpy, zero_copy_only=True)
    shards: list[Shard] = []
    for name in sorted(name for name in manifest["sha256"] if name.startswith(f"{SENTENCES}/")):
        sentences = _read_whole(directory / name)
        # Values and offsets as they lie in the file: the batch starts at row 0, so the offsets count from 0.
        ids = sentences["ids"]
        shards.append(Shard(numpy(ids.values), numpy(ids.offsets), numpy(sentences["length"])))
    store = TokenStore(tuple(shards), manifest["shard_sentences"], int(manifest["pad_id"]), directory)
    full = all(len(shard.length) == store.shard_sentences for shard in shards[:-1])
    if not shards or not full or len(store) != manifest["sentences"]:
        raise _broken(directory / SENTENCES)
    return store


def read_triplets(directory: Path) -> Int32s:
    """(n, 4) sentence indices of premise, entailment, contradiction and neutral; `MISSING` for none of the last two."""
    columns = _read(directory / TRIPLETS)
    try:
        return np.stack([columns[name] for name in ("premise", "entailment", "contradiction", "neutral")], axis=1)
    except KeyError:
        raise _broken(directory / TRIPLETS) from None


def read_pairs(directory: Path, name: str) -> PairSet:
    """The NLI set `name` (`dev` in data/tokens/dev); `UserError` if the store does not have it."""
    _require(directory, name, set_names(directory)[0])
    columns = _read(directory / f"{name}.arrow")
    fields = ("premise", "hypothesis", "label", "reverse_label")
    return PairSet(name, *(columns[field] for field in fields))


def read_sts(directory: Path, name: str) -> StsSet:
    """The STS set `name`; `UserError` if the store does not have it."""
    _require(directory, name, set_names(directory)[1])
    columns = _read(directory / f"{name}{STS_SUFFIX}.arrow")
    return StsSet(name, *(columns[field] for field in ("sentence1", "sentence2", "score")))


def set_names(directory: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of the NLI sets and of the STS sets of a store, sorted."""
    manifest = read_manifest(directory)
    return tuple(manifest["nli_sets"]), tuple(manifest["sts_sets"])


def digest(directory: Path) -> str:
    """SHA-256 over the SHA-256s in tokens.json: equal for stores with the same content, wherever they lie."""
    sums: dict[str, str] = read_manifest(directory)["sha256"]
    return hashlib.sha256("".join(f"{name} {sums[name]}\n" for name in sorted(sums)).encode()).hexdigest()


def read_manifest(directory: Path) -> dict[str, Any]:
    """Content of tokens.json; `UserError` if it is missing or not whole."""
    path = directory / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; run dvc repro tokenize") from None
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and passes(error):
            raise
        raise _broken(path) from None
    expected = {"sha256": dict, "pad_id": int, "sentences": int, "shard_sentences": int, "nli_sets": list, "sts_sets": list}
    if not isinstance(manifest, dict) or not all(isinstance(manifest.get(key), kind) for key, kind in expected.items()):
        raise _broken(path)
    return manifest


def _read(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Columns of an Arrow file; copied where it has more batches than one."""
    with _opened(path) as reader:
        table = reader.read_all()
        return {name: table[name].to_numpy() for name in table.column_names}


def _read_whole(path: Path) -> dict[str, pa.Array]:
    """Columns of an Arrow file of one record batch, mapped, not read."""
    with _opened(path) as reader:
        if reader.num_record_batches != 1:
            raise _broken(path)
        batch = reader.get_batch(0)
        return dict(zip(batch.schema.names, batch.columns, strict=True))


@contextmanager
def _opened(path: Path) -> Iterator[pa.RecordBatchFileReader]:
    try:
        with pa.ipc.open_file(pa.memory_map(str(path))) as reader:
            yield reader
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; run dvc repro tokenize") from None
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and passes(error):
            raise
        raise _broken(path) from None


def _require(directory: Path, name: str, known: tuple[str, ...]) -> None:
    if name not in known:
        raise UserError(f"{directory}: has no set {name!r}; it has {', '.join(known) or 'none of this kind'}")


def _broken(path: Path) -> UserError:
    return UserError(f"{path}: is not what stage tokenize wrote (missing, changed or cut short); run dvc repro -f tokenize")
