"""The token store: all sentences as token ids, memory-mapped. This module reads it, for training and evaluation.

A store is a folder with `sentences/` (shards of ids and lengths), tables of sentence indices, and `tokens.json`, which names the
sets and the kinds of rows, and contains the SHA-256 of every Arrow file. Nothing here loops over sentences or tokens, and opening
copies nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.utils.atomic_io import sha256_file
from pipeline.utils.errors import RunError, UserError, passes

MANIFEST = "tokens.json"
SENTENCES = "sentences"
"""Folder of the shards 00000.arrow, 00001.arrow, …"""
SHARD = 2**18
"""Sentences in a shard: about 20 MB of tokens, which one of many readers can fetch or map alone."""
MISSING = -1
"""The index of a sentence that a row does not have (such as the contradiction of a triplet), and the code of an unknown reverse
label."""
TRIPLETS = "triplets"
DOCUMENTS = "documents"
OPERATION_ROWS = "operations"
ROW_KINDS: dict[str, tuple[str, ...]] = {
    TRIPLETS: ("premise", "entailment", "contradiction", "neutral"),
    DOCUMENTS: ("sentence",),
    OPERATION_ROWS: ("a", "b", "target"),
}
"""The kinds of rows that objectives train on: for each kind, its columns of sentences.

Stage tokenize reads a kind from KIND.parquet in the folder of the training set or of a development part, and writes KIND.arrow.
"""
NUMBERS = ("document", "position", "class", "part", "operation", "two_way")
"""Columns of whole numbers of a table, where it has them; the others are sentences."""

Int32s = npt.NDArray[np.int32]
MOST = np.iinfo(np.int32).max
"""The largest number of a sentence, or of a document."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Sentences as token ids; the arrays are read-only views of the mapped file."""

    ids: Int32s
    """(tokens,) all sentences end to end, special tokens included."""
    offsets: npt.NDArray[np.integer]
    """(n+1,) sentence i is ids[offsets[i]:offsets[i+1]]."""
    length: Int32s
    """(n,) tokens of each sentence before truncation, special tokens included."""


@dataclass(frozen=True, slots=True)
class TokenStore:
    """n sentences as token ids, `shard_sentences` in each shard except the last."""

    shards: Sequence[Shard]
    """At least one."""
    shard_sentences: int
    pad_id: int
    directory: Path
    sentences: int | None = None
    """Their number n, where the shards are not all here."""

    @staticmethod
    def of(sentences: Sequence[Sequence[int]], pad_id: int) -> TokenStore:
        """A store in memory."""
        length = np.array([len(ids) for ids in sentences], dtype=np.int32)
        ids = np.fromiter(chain.from_iterable(sentences), dtype=np.int32, count=int(length.sum()))
        shard = Shard(ids=ids, offsets=np.concatenate(([0], np.cumsum(length))), length=length)
        return TokenStore((shard,), max(len(length), 1), pad_id, directory=Path())

    def __len__(self) -> int:
        if self.sentences is not None:
            return self.sentences
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
        """(n,) tokens of each sentence as stored, after truncation."""
        return np.concatenate([np.diff(shard.offsets) for shard in self.shards])

    def lengths_of(self, rows: npt.NDArray[np.integer]) -> npt.NDArray[np.integer]:
        """(b,) number of stored tokens of some sentences.

        Raises:
            IndexError: a row is negative (`MISSING`) or n or more.
        """
        if len(rows) and (rows.min() < 0 or rows.max() >= len(self)):
            raise IndexError(f"{self.directory}: sentence indices must be in [0, {len(self)})")
        lengths = np.empty(len(rows), dtype=np.int64)
        for shard, positions, local in self._by_shard(rows):
            lengths[positions] = shard.offsets[local + 1] - shard.offsets[local]
        return lengths

    def lay_out(
        self, rows: npt.NDArray[np.integer], widths: npt.NDArray[np.integer]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Sentences end to end, each padded to its width.

        Args:
            rows: (b,) sentence indices, in [0, n).
            widths: (b,) padded length of each sentence, not less than its length.

        Returns:
            ids: (Σ widths,) token ids, `pad_id` as padding.
            mask: (Σ widths,) True on tokens, False on padding.

        Raises:
            IndexError: a row is negative (`MISSING`) or n or more.
        """
        lengths, starts = self.lengths_of(rows), np.cumsum(widths) - widths
        ids = np.full(int(widths.sum()), self.pad_id, dtype=np.int64)
        mask = np.zeros(len(ids), dtype=np.bool_)
        for shard, positions, local in self._by_shard(rows):
            shard_lengths = lengths[positions]
            # Count the tokens of these sentences by t. Token t, in sentence s, is at offsets[s] + t − first[s] in the file.
            first = np.cumsum(shard_lengths) - shard_lengths
            tokens = np.arange(int(shard_lengths.sum()))
            source = tokens + np.repeat(shard.offsets[local] - first, shard_lengths)
            target = tokens + np.repeat(starts[positions] - first, shard_lengths)
            ids[target], mask[target] = shard.ids[source], True
        return ids, mask

    def only(self, *columns: Int32s) -> tuple[TokenStore, list[Int32s]]:
        """The sentences that some columns of rows name, in their order here; and the columns, with the new sentence numbers."""
        used = self.used_by(*columns)
        if used.all():
            return self, list(columns)
        ids, lengths, length = (np.concatenate(parts) for parts in zip(*self.parts_of(used), strict=True))
        shard = Shard(ids, np.concatenate(([0], np.cumsum(lengths))), length)
        # The last is that of `MISSING`.
        number = np.append(np.cumsum(used) - 1, MISSING).astype(np.int32)
        return TokenStore((shard,), max(len(length), 1), self.pad_id, self.directory), [number[column] for column in columns]

    def used_by(self, *columns: Int32s) -> npt.NDArray[np.bool_]:
        """(n,) true for the sentences that some columns of rows name."""
        used = np.zeros(len(self), dtype=np.bool_)
        for column in columns:
            used[column[column != MISSING]] = True
        return used

    def parts_of(self, used: npt.NDArray[np.bool_]) -> Iterator[tuple[Int32s, npt.NDArray[np.integer], Int32s]]:
        """For each shard, of its sentences in `used`: token ids end to end, lengths as stored, and lengths before truncation."""
        for k, shard in enumerate(self.shards):
            own = used[k * self.shard_sentences :][: len(shard.length)]
            lengths = np.diff(shard.offsets)
            yield shard.ids[np.repeat(own, lengths)], lengths[own], shard.length[own]

    def _by_shard(self, rows: npt.NDArray[np.integer]) -> Iterator[tuple[Shard, npt.NDArray[np.intp], npt.NDArray[np.integer]]]:
        """For each shard in use: the shard, the positions in `rows` of its sentences, and their indices in the shard."""
        shard, local = np.divmod(rows, self.shard_sentences)
        for number in np.unique(shard):
            positions = np.flatnonzero(shard == number)
            yield self.shards[number], positions, local[positions]


@dataclass(frozen=True, slots=True)
class Rows:
    """n rows of one kind, as sentence indices."""

    pieces: Mapping[str, Sequence[npt.NDArray[Any]]]
    """Column → its (n,) sentence indices, or numbers if it is one of `NUMBERS`, in the pieces in which the file is mapped."""
    directory: Path

    def __len__(self) -> int:
        return sum(map(len, next(iter(self.pieces.values()))))

    def column(self, name: str) -> npt.NDArray[Any]:
        """(n,) a column; copied if it has several pieces."""
        return np.concatenate(pieces) if len(pieces := self.pieces[name]) > 1 else pieces[0]

    def stacked(self, *names: str) -> Int32s:
        """(n, names) some columns, copied."""
        return np.stack([self.column(name) for name in names], axis=1)

    def at(self, rows: npt.NDArray[np.integer], *names: str) -> Int32s:
        """(b, names) some columns of the rows with these numbers; nothing else is read."""
        order, values = np.argsort(rows), np.empty((len(rows), len(names)), np.int32)
        starts = np.cumsum([0, *map(len, self.pieces[names[0]])])
        ascending = rows[order]
        ends = np.searchsorted(ascending, starts)
        for k in np.flatnonzero(np.diff(ends)).tolist():
            part = slice(ends[k], ends[k + 1])
            within = ascending[part] - starts[k]
            for column, name in enumerate(names):
                values[order[part], column] = self.pieces[name][k][within]
        return values


def as_int32(numbers: npt.NDArray[np.integer]) -> Int32s:
    """Numbers of sentences or documents, as they are stored.

    Raises:
        UserError: there are more of them than that.
    """
    if numbers.max(initial=0) > MOST:
        raise UserError(f"the data has more than {MOST:,} different sentences or documents, which is the most; take fewer rows")
    return numbers.astype(np.int32)


def open_store(directory: Path) -> TokenStore:
    """Map the sentences of a store into memory, after comparing its Arrow files with their SHA-256 in tokens.json.

    Args:
        directory: data/tokens/train, dev, promotion or tests.

    Raises:
        UserError: there is no store, or it differs from what stage tokenize wrote.
    """
    manifest = read_manifest(directory)
    for name, expected in manifest["sha256"].items():
        if not (directory / name).is_file() or sha256_file(directory / name) != expected:
            raise _broken(directory / name)
    shards = [map_shard(directory / name) for name in shard_names(manifest)]
    store = TokenStore(shards, manifest["shard_sentences"], int(manifest["pad_id"]), directory)
    if not shards or len(store) != manifest["sentences"]:
        raise _broken(directory / SENTENCES)
    return store


def shard_names(manifest: Mapping[str, Any]) -> list[str]:
    """The files of the shards of a store with this tokens.json, in their order."""
    return sorted(name for name in manifest["sha256"] if name.startswith(f"{SENTENCES}/"))


def map_shard(path: Path) -> Shard:
    """Map a file of sentences into memory; the arrays keep it mapped.

    Raises:
        UserError: it is not such a file.
    """
    sentences, numpy = _mapped(path), partial(pa.Array.to_numpy, zero_copy_only=True)
    # The only batch starts at row 0, so the offsets in the file count from 0 and can be used directly.
    ids = sentences["ids"].chunk(0)
    return Shard(numpy(ids.values), numpy(ids.offsets), numpy(sentences["length"].chunk(0)))


class Reading:
    """A store while it is read, whose files are mapped: who changes one changes what is read.

    A file that is replaced or removed does no harm, since the mapped one stays.

    Raises:
        UserError: the store is not complete.
    """

    def __init__(self, directory: Path, *, shards: bool = True) -> None:
        """Note what the files are now, or only those other than shards, before the store is opened."""
        manifest = read_manifest(directory)
        left_out = set[str]() if shards else set(shard_names(manifest))
        self.directory, self._sums = directory, {name: key for name, key in manifest["sha256"].items() if name not in left_out}
        try:
            self._files = {name: _stamp(directory / name) for name in self._sums}
        except FileNotFoundError as error:
            raise _broken(Path(error.filename)) from None

    def check(self, *, whole: bool = False) -> None:
        """Check that no file has changed.

        Args:
            whole: read the files again, and not only their sizes and times.

        Raises:
            RunError: one has changed.
        """
        for name, before in self._files.items():
            file = self.directory / name
            with suppress(FileNotFoundError):
                inode, *now = _stamp(file)
                if inode == before[0] and (now != [*before[1:]] or (whole and sha256_file(file) != self._sums[name])):
                    raise RunError(f"{file}: has changed while it was read, so no result counts; run dvc repro -f tokenize")


def _stamp(file: Path) -> tuple[int, int, int]:
    found = file.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


def read_rows(directory: Path, kind: str) -> Rows:
    """The rows of one kind (such as `triplets` in data/tokens/train).

    Raises:
        UserError: the store has no rows of this kind, or differs from what stage tokenize wrote.
    """
    kinds: dict[str, list[str]] = read_manifest(directory)["row_kinds"]
    if kind not in kinds:
        raise UserError(f"{directory}: has no rows of kind {kind!r}; it has {', '.join(kinds) or 'no rows of any kind'}")
    path = directory / f"{kind}.arrow"
    table = _mapped(path)
    if set(table.column_names) - set(NUMBERS) != set(kinds[kind]):
        raise _broken(path)
    pieces = {name: [chunk.to_numpy() for chunk in table[name].chunks] or [table[name].to_numpy()] for name in table.column_names}
    return Rows(pieces, directory)


def digest(directory: Path) -> str:
    """SHA-256 over the SHA-256 sums in tokens.json: equal for stores with the same content, wherever they are."""
    sums: dict[str, str] = read_manifest(directory)["sha256"]
    return hashlib.sha256("".join(f"{name} {sums[name]}\n" for name in sorted(sums)).encode()).hexdigest()


def read_manifest(directory: Path) -> dict[str, Any]:
    """The content of tokens.json.

    Raises:
        UserError: the file is missing or incomplete.
    """
    path = directory / MANIFEST
    with _reading(path):
        manifest = json.loads(path.read_text(encoding="utf-8"))
    keys = {"sha256", "pad_id", "sentences", "shard_sentences", "nli_sets", "sts_sets", "row_kinds"}
    if not isinstance(manifest, dict) or not keys <= manifest.keys():
        raise _broken(path)
    return manifest


def read_table(path: Path) -> dict[str, npt.NDArray[Any]]:
    """The columns of an Arrow file; copied if it has more than one batch."""
    table = _mapped(path)
    return {name: table[name].to_numpy() for name in table.column_names}


def _mapped(path: Path) -> pa.Table:
    with _reading(path), pa.ipc.open_file(pa.memory_map(str(path))) as reader:
        return reader.read_all()


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; run dvc repro tokenize") from None
    except (pa.ArrowException, OSError, ValueError) as error:
        if isinstance(error, OSError) and passes(error):
            raise
        raise _broken(path) from None


def _broken(path: Path) -> UserError:
    return UserError(f"{path}: is not what stage tokenize wrote (missing, changed or cut short); run dvc repro -f tokenize")
