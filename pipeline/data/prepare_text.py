"""Running text of stage prepare: documents → sets of sentences in order; what was dropped and what repeats.

The text is streamed, twice. The first pass writes it to a scratch file and enters keys of documents and sentences in the
database of `scratch`. Then each document goes to a set or is dropped, and the second pass writes the sets. A document is known by
a hash of its sentences.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.config.data_params import DataParams, TextSpec
from pipeline.data.generated.documents import generate_documents
from pipeline.data.generated.premises import Split
from pipeline.data.readers import GENERATED
from pipeline.data.readers.documents import Document, read_documents
from pipeline.data.readers.opening import resolve
from pipeline.data.rows import BATCH_ROWS
from pipeline.data.schema import (
    DEV,
    DEV_TEXT,
    DOCUMENTS,
    PROMOTION,
    PROMOTION_TEXT,
    TEXT_SUFFIX,
)
from pipeline.data.scratch import Database, by_hash, database
from pipeline.data.split import FEWEST_GROUPS
from pipeline.data.table_io import ParquetFile, open_parquet
from pipeline.utils.errors import UserError

DEV_SHARE = 0.1
"""Share of the training documents, or operation rows, that become the development set unless section `data` names one."""
IN_DOCUMENTS = 3
"""A sentence that occurs in at least so many documents counts as boilerplate: a licence, a heading, a greeting."""
LEAST_PAIRS = 64
"""Pairs of neighbours that a set needs, because the next sentence is sought among so many."""
TRAIN = "train"

_Keyed = npt.NDArray[np.integer]
Counts = dict[str, Any]
"""Counts of one set, for prepare.json."""

# Of the database: less than for pairs, because only keys are in it. A second thread would need more to sort, and most of the time
# goes into reading text.
_MEMORY, _THREADS = "20MB", 1
# Rows of a row group. All sets are written at once, and each holds one group in memory.
_GROUP = 16_384
_TEXT = pa.schema([("document", pa.int64()), ("sentence", pa.string()), ("source", pa.string())])
_REASONS = ("single_sentence", "duplicate", "leaked")
_SINGLE, _DUPLICATE, _LEAKED = range(-1, -4, -1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSource:
    """A set of documents."""

    name: str
    """In messages."""
    documents: Callable[[], Iterable[Document]]


def text_sources(data: DataParams) -> dict[str, TextSource]:
    """The sets of running text that section `data` names, training first: set → documents; empty if it names none."""
    if data.source == "generated":
        number = data.generated.documents
        held_out = -(-number // 10)
        wanted: dict[str, tuple[Split, int]] = {
            TRAIN: ("train", number),
            DEV_TEXT: ("dev", held_out),
            "generated_text": ("test", held_out),
        }
        return {name: _generated(split, documents, data.seed) for name, (split, documents) in wanted.items() if number}
    if data.source != "files":
        return {}
    root, files = Path(data.root), data.files
    sources = {TRAIN: _files(root, files.text)} if files.text else {}
    if files.text_dev is not None:
        sources[DEV_TEXT] = _files(root, [files.text_dev])
    return sources | {name: _files(root, [spec]) for name, spec in sorted(files.text_tests.items())}


def _generated(split: Split, documents: int, seed: int) -> TextSource:
    def read() -> Iterator[Document]:
        for sentences in generate_documents(split, documents, seed):
            yield Document(GENERATED, sentences)

    return TextSource(name=GENERATED, documents=read)


def _files(root: Path, specs: Sequence[TextSpec]) -> TextSource:
    def read() -> Iterator[Document]:
        for spec in specs:
            yield from read_documents([resolve(root, spec.path)], text=spec.text, document=spec.document, form=spec)

    return TextSource(name=", ".join(spec.path for spec in specs), documents=read)


def prepare_text(sources: Mapping[str, TextSource], promotion_share: float, work: Path, scratch: Path) -> dict[str, Counts]:
    """Write each set of running text; returns set → counts, with the two development parts; empty without sources.

    Training text goes to train/documents.parquet, the others to dev/, promotion/ and tests/ as SET.text.parquet. Documents of one
    sentence are dropped, because nothing is before or after it. Of training documents, those that repeat an earlier one or one of
    another set are dropped, too.

    Args:
        work: folder of the stage's outputs.
        scratch: a new folder for a copy of the text and the database; the caller removes it.

    Raises:
        UserError: a source cannot be read, or a set has too little text.
    """
    if not sources:
        return {}
    with database(scratch, _MEMORY, _THREADS) as connection:
        text = scratch / "documents.parquet"
        keys = _Keys(connection, list(sources), promotion_share)
        with pq.ParquetWriter(text, _TEXT, compression="lz4", use_dictionary=False) as writer:
            for name, source in sources.items():
                _enter(name, source, keys, writer)
        place = keys.places()
        paths = {
            TRAIN: work / "train" / "documents.parquet",
            DEV_TEXT: work / DEV / f"{DEV_TEXT}{TEXT_SUFFIX}.parquet",
            PROMOTION_TEXT: work / PROMOTION / f"{PROMOTION_TEXT}{TEXT_SUFFIX}.parquet",
        }
        names = keys.sets
        _write(text, place, [paths.get(name, work / "tests" / f"{name}{TEXT_SUFFIX}.parquet") for name in names], keys)
        found = keys.counts(place)
    # The development parts have the name of the text they are cut from.
    cut_from = sources.get(DEV_TEXT) or sources.get(TRAIN)
    counts = {name: {"file": (sources.get(name) or cut_from or sources[name]).name, **found[name]} for name in names}
    drawn = sum(counts[part]["documents_out"] for part in (DEV_TEXT, PROMOTION_TEXT) if part in counts)
    for name, numbers in counts.items():
        _check(name, numbers, DEV_TEXT in sources, drawn)
    return counts


class _Keys:
    """Keys of all documents and sentences, in the order they were added."""

    def __init__(self, connection: Database, names: Sequence[str], promotion_share: float) -> None:
        self._connection, self._names, self._promotion_share = connection, names, promotion_share
        self.sets = [*names]
        """The names of the sets that are written: those that are added, and parts of the training text."""
        if TRAIN in names:
            self.sets += [name for name in (DEV_TEXT, PROMOTION_TEXT) if name not in names]
        self._training = names.index(TRAIN) if TRAIN in names else -1
        self.documents, self._occurrences = 0, 0
        # Documents by the set of their source and the reason why they are dropped.
        self._dropped = np.zeros((len(names), len(_REASONS)), np.int64)
        connection.execute("CREATE TABLE documents (number INTEGER, part SMALLINT, place SMALLINT, high UBIGINT, low UBIGINT)")
        connection.execute("CREATE TABLE occurrences (place SMALLINT, document BIGINT, k UBIGINT)")

    def add(self, name: str, documents: Sequence[Document]) -> pa.Table:
        """Add the keys of documents of a set; returns their sentences with the number of each document."""
        numbers = np.arange(self.documents, self.documents + len(documents))
        self.documents += len(documents)
        digests = [
            hashlib.sha256("\n".join(document.sentences).encode("utf-8", "surrogatepass")).digest() for document in documents
        ]
        sizes = np.array([len(document.sentences) for document in documents])
        part = self._names.index(name)
        self._insert(
            "documents",
            {
                "number": numbers.astype(np.int32),
                "part": np.full(len(documents), part, np.int16),
                "place": self._place(part, digests, sizes),
                # Columns of numbers: sorting bytes would need more memory.
                "high": _numbers(digests, 0),
                "low": _numbers(digests, 8),
            },
        )
        return pa.table(
            {
                "document": np.repeat(numbers, sizes),
                "sentence": pa.array([one for document in documents for one in document.sentences], pa.string()),
                "source": pa.array([document.name for document in documents], pa.string()).take(
                    np.repeat(np.arange(len(documents)), sizes)
                ),
            },
            schema=_TEXT,
        )

    def _place(self, part: int, digests: Sequence[bytes], sizes: npt.NDArray[np.integer]) -> npt.NDArray[np.int16]:
        """(documents,) the set of each document of source `part` that equals no other one, or `_SINGLE`."""
        place = np.full(len(digests), part, np.int16)
        if self._training >= 0:
            dev, promotion = self.sets.index(DEV_TEXT), self.sets.index(PROMOTION_TEXT)
            # Two numbers in [0, 1) that depend on the document's text alone.
            if part == self._training and DEV_TEXT not in self._names:
                place[_numbers(digests, 16) / 2.0**64 < DEV_SHARE] = dev
            place[(place == dev) & (_numbers(digests, 24) / 2.0**64 < self._promotion_share)] = promotion
        place[sizes < 2] = _SINGLE
        return place

    def places(self) -> npt.NDArray[np.int16]:
        """(documents,) the number of each document's set in `sets`, or a reason below 0 why it is dropped."""
        places = np.empty(self.documents, np.int16)
        # Equal documents together, held-out ones first.
        last_key, last_part, held = (0, 0), 0, False
        select = "SELECT high, low, number, part, place FROM documents"
        for batch in by_hash(self._connection, select, "high", "low, part = 0, number", self.documents):
            column = {name: batch[name].to_numpy() for name in batch.schema.names}
            part, key = column["part"], np.stack((column["high"], column["low"]), 1)
            new = np.concatenate(([tuple(key[0]) != last_key], (key[1:] != key[:-1]).any(1)))
            first = np.maximum.accumulate(np.where(new, np.arange(len(new)), -1))
            leaked = np.where(first < 0, held, part[first] > 0)
            repeats = ~new & (np.concatenate(([last_part], part[:-1])) == 0)
            last_key, last_part, held = tuple(key[-1]), part[-1], leaked[-1]
            place, trained = column["place"], (part == self._training) & (column["place"] != _SINGLE)
            place = np.where(trained & leaked, _LEAKED, place)
            place = np.where(trained & repeats, _DUPLICATE, place)
            places[column["number"]] = place
            dropped = place < 0
            np.add.at(self._dropped, (part[dropped], -1 - place[dropped]), 1)
        return places

    def add_sentences(self, place: int, sentences: pa.RecordBatch) -> None:
        """Add the keys of sentences of kept documents: 64 bits are enough to count them."""
        self._occurrences += sentences.num_rows
        self._connection.register("rows", pa.table(sentences))
        self._connection.execute(f"INSERT INTO occurrences SELECT {place}, document, md5_number_lower(sentence) FROM rows")
        self._connection.unregister("rows")

    def counts(self, place: npt.NDArray[np.int16]) -> dict[str, Counts]:
        """Set → counts. A dropped document counts in the set of its source, whatever part it would be in."""
        of_sentences = self._of_sentences()
        counts: dict[str, Counts] = {}
        for number, name in enumerate(self.sets):
            sentences, repeated, boilerplate, shared = of_sentences[number].tolist()
            kept = int((place == number).sum())
            of_source = self._dropped[number].tolist() if number < len(self._names) else [0] * len(_REASONS)
            dropped = dict(zip(_REASONS, of_source, strict=True))
            counts[name] = {
                "documents_in": kept + sum(dropped.values()),
                "documents_out": kept,
                "dropped": dropped,
                "sentences": sentences,
                "repeated_sentences": repeated,
                "boilerplate_sentences": boilerplate,
                **({} if number == self._training else {"sentences_in_train": shared}),
            }
        return counts

    def _of_sentences(self) -> npt.NDArray[np.int64]:
        """(sets, 4) numbers of sentences: all, repeats, those in `IN_DOCUMENTS` documents or more, those also in training text.

        Grouping in the database would take more memory for more sentences.
        """
        totals = np.zeros((len(self.sets), 4), np.int64)

        def add(k: _Keyed, place: _Keyed, n: _Keyed, d: _Keyed) -> None:
            columns = (n, n - 1, n * (d >= IN_DOCUMENTS), n * np.isin(k, k[place == self._training]))
            for column, numbers in enumerate(columns):
                np.add.at(totals[:, column], place, numbers)

        # A group is a key in a set: n times, in d documents. The groups of the last key may go on in the next batch.
        groups: list[_Keyed] = [np.zeros(0, kind) for kind in (np.uint64, np.int64, np.int64, np.int64)]
        last_document = -1
        select = "SELECT k, place, document FROM occurrences"
        for batch in by_hash(self._connection, select, "k", "place, document", self._occurrences):
            k, place, document = (batch[name].to_numpy() for name in ("k", "place", "document"))
            new = np.diff(document, prepend=last_document) != 0
            new[1:] |= k[1:] != k[:-1]
            new[0] |= not len(groups[0]) or k[0] != groups[0][-1]
            rows = [np.concatenate(pair) for pair in zip(groups, (k, place, np.ones_like(document), new), strict=True)]
            starts = np.flatnonzero(np.concatenate(([True], (np.diff(rows[0]) != 0) | (np.diff(rows[1]) != 0))))
            groups = [rows[0][starts], rows[1][starts], *(np.add.reduceat(column, starts) for column in rows[2:])]
            ended = groups[0] != groups[0][-1]
            add(*(column[ended] for column in groups))
            groups, last_document = [column[~ended] for column in groups], int(document[-1])
        add(*groups)
        return totals

    def _insert(self, name: str, columns: Mapping[str, Any]) -> None:
        self._connection.register("rows", pa.table(dict(columns)))
        self._connection.execute(f"INSERT INTO {name} SELECT * FROM rows")
        self._connection.unregister("rows")


def _numbers(digests: Sequence[bytes], start: int) -> npt.NDArray[np.uint64]:
    return np.array([int.from_bytes(digest[start : start + 8], "big") for digest in digests], np.uint64)


def _enter(name: str, source: TextSource, keys: _Keys, writer: pq.ParquetWriter) -> None:
    """First pass over one set."""
    held: list[Document] = []
    waiting = 0
    for document in source.documents():
        held.append(document)
        waiting += len(document.sentences)
        if waiting >= BATCH_ROWS:
            writer.write_table(keys.add(name, held))
            held, waiting = [], 0
    if held:
        writer.write_table(keys.add(name, held))


def _write(text: Path, place: npt.NDArray[np.int16], paths: Sequence[Path], keys: _Keys) -> None:
    """Second pass: write the sets, with documents and positions numbered from 0, and add their sentences to the keys."""
    files = [ParquetFile(path, DOCUMENTS, _GROUP) for path in paths]
    # For each set: the last document written, its new number, and the number of its sentences so far.
    last, number, written = ([-1] * len(files), [-1] * len(files), [0] * len(files))
    try:
        with open_parquet(text) as source:
            for batch in source.iter_batches(BATCH_ROWS):
                places = place[batch["document"].to_numpy()]
                for k in np.unique(places[places >= 0]).tolist():
                    part = batch.filter(pa.array(places == k))
                    keys.add_sentences(k, part)
                    document = part["document"].to_numpy()
                    new = np.diff(document, prepend=last[k]) != 0
                    numbers = number[k] + np.cumsum(new)
                    starts = np.maximum.accumulate(np.where(new, np.arange(len(new)), -1))
                    position = np.arange(len(new)) - starts + np.where(starts < 0, written[k] - 1, 0)
                    files[k].write(
                        pa.table(
                            {
                                "document": numbers.astype(np.int32),
                                "position": position.astype(np.int32),
                                "sentence": part["sentence"],
                                "source": part["source"],
                            }
                        )
                    )
                    last[k], number[k], written[k] = int(document[-1]), int(numbers[-1]), int(position[-1]) + 1
    except BaseException as error:
        for file in files:
            file.__exit__(type(error))
        raise
    for file in files:
        file.__exit__(None)


def _check(name: str, counts: Counts, has_dev: bool, drawn: int) -> None:
    """`drawn`: documents of the development parts."""
    pairs = counts["sentences"] - counts["documents_out"]
    cut = name in (DEV_TEXT, PROMOTION_TEXT)
    if name == TRAIN:
        if not counts["documents_out"] and drawn and not has_dev:
            raise UserError(
                f"{counts['file']}: no document is left to train on: a hash of the text chose all {drawn} for development; add "
                "documents, or name data.files.text_dev"
            )
        if not counts["documents_out"]:
            dropped = ", ".join(f"{reason} {n}" for reason, n in counts["dropped"].items() if n) or "there is none"
            raise UserError(
                f"{counts['file']}: no document is left to train on ({dropped}); a document needs two sentences in a row. A "
                "table with a row for each sentence needs document: (data.files.text)"
            )
        return
    few = name == PROMOTION_TEXT and counts["documents_out"] < FEWEST_GROUPS
    if pairs >= LEAST_PAIRS and not few:
        return
    remedy = "add documents" if has_dev or not cut else "add documents, or name data.files.text_dev"
    if cut and has_dev:
        # A user who named one book may not expect that it is divided.
        remedy += "; data.promotion_share keeps some of them for promotion, and a book's chapters can be files of their own"
    needs = f"{FEWEST_GROUPS} documents" if few else f"{LEAST_PAIRS} pairs, among which the next sentence is sought"
    raise UserError(
        f"{counts['file']}: {'its part' if cut else 'the set'} {name} has {counts['documents_out']} documents with {pairs} pairs "
        f"of neighbouring sentences; it needs {needs}: {remedy}"
    )
