"""Which documents are kept, and which sentences repeat, from keys in a database.

A document is known by a hash of its sentences.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.data.schema import DEV_TEXT, PROMOTION_TEXT
from pipeline.data.scratch import Database, by_hash, insert
from pipeline.families.prepare import DEV_SHARE, TRAIN
from pipeline.families.text.documents import Document

IN_DOCUMENTS = 3
"""A sentence that occurs in at least so many documents counts as boilerplate: a licence, a heading, a greeting."""
SENTENCES = pa.schema([("document", pa.int64()), ("sentence", pa.string()), ("source", pa.string())])
"""All sentences, with the number of their document."""

Counts = dict[str, Any]
"""Counts of one set, for prepare.json."""

_Keyed = npt.NDArray[np.integer]
_REASONS = ("single_sentence", "duplicate", "leaked")
_SINGLE, _DUPLICATE, _LEAKED = range(-1, -4, -1)


class Keys:
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
        digests = (hashlib.sha256("\n".join(one.sentences).encode("utf-8", "surrogatepass")).digest() for one in documents)
        # Columns of numbers: sorting bytes would need more memory.
        hashes = np.frombuffer(b"".join(digests), ">u8").astype(np.uint64).reshape(-1, 4)
        sizes = np.array([len(document.sentences) for document in documents])
        part = self._names.index(name)
        columns = {
            "number": numbers.astype(np.int32),
            "part": np.full(len(documents), part, np.int16),
            "place": self._place(part, hashes, sizes),
            "high": hashes[:, 0],
            "low": hashes[:, 1],
        }
        insert(self._connection, "documents", "*", pa.table(columns))
        return pa.table(
            {
                "document": np.repeat(numbers, sizes),
                "sentence": pa.array([one for document in documents for one in document.sentences], pa.string()),
                "source": pa.array([document.name for document in documents], pa.string()).take(
                    np.repeat(np.arange(len(documents)), sizes)
                ),
            },
            schema=SENTENCES,
        )

    def _place(self, part: int, hashes: npt.NDArray[np.uint64], sizes: npt.NDArray[np.integer]) -> npt.NDArray[np.int16]:
        """(documents,) the set of each document of source `part` that equals no other one, or `_SINGLE`."""
        place = np.full(len(hashes), part, np.int16)
        if self._training >= 0:
            dev, promotion = self.sets.index(DEV_TEXT), self.sets.index(PROMOTION_TEXT)
            # Two numbers in [0, 1) that depend on the document's text alone.
            if part == self._training and DEV_TEXT not in self._names:
                place[hashes[:, 2] / 2.0**64 < DEV_SHARE] = dev
            place[(place == dev) & (hashes[:, 3] / 2.0**64 < self._promotion_share)] = promotion
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
        insert(self._connection, "occurrences", f"{place}, document, md5_number_lower(sentence)", pa.table(sentences))

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
