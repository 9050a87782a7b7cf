"""Cross-row checks: duplicates, contradictory labels and leaks; and the contradiction and neutral partner of each entailment.

The ledger holds no text. It represents a sentence by the MD5 of its text in Unicode's form NFC, without format characters and
with every run of white space replaced by one space (case counts). Among 2·10⁷ sentences the probability of any collision is below
10⁻²³. The database of `scratch` does all grouping, joining and sorting, in bounded memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.data import cleaning
from pipeline.data.cleaning import Reasons
from pipeline.data.schema import CONTRADICTION, DEV, ENTAILMENT, LABELS, NEUTRAL, PROMOTION
from pipeline.data.scratch import Database, in_order, quoted

# \s of RE2 covers only ASCII and lacks the vertical tab; U+0085 (next line) is white space but not in class Z.
WHITE_SPACE = r"\s\x0b\x{85}\pZ"
"""White space in a character class of DuckDB's regular expressions."""

# Label → table of the partners of entailment pairs.
_PARTNERS = {CONTRADICTION: "contradicted", NEUTRAL: "neutral"}


# Whether the labels of a pair, or those of the pair turned round (`turned`), cannot all be right. A contradiction holds in both
# orders, and a sentence entails itself.
_CONFLICT = """
    (pairs.s0::INT + pairs.s1::INT + pairs.s2::INT > 1 OR pairs.s2 AND (turned.s0 OR turned.s1)
     OR (pairs.s0 OR pairs.s1) AND turned.s2 OR pairs.p = pairs.h AND (pairs.s1 OR pairs.s2))
"""


def _said(rows: str) -> str:
    """A query for the labels that rows give to pairs. A reverse label is one of the pair turned round, without a row."""
    return f"SELECT row, p, h, label FROM {rows} UNION ALL SELECT NULL, h, p, back FROM {rows} WHERE back >= 0"


def _pairs(rows: str) -> str:
    """A query for the pairs of a table: number of rows and of their labels, the first row of each label, and whether a row or a
    reverse label gives each label (s0 to s2)."""
    return f"""
        SELECT p, h, count(row) AS n, min(row) FILTER (label = 0) AS r0, min(row) FILTER (label = 1) AS r1,
               min(row) FILTER (label = 2) AS r2, bool_or(label = 0) AS s0, bool_or(label = 1) AS s1, bool_or(label = 2) AS s2,
               (r0 IS NOT NULL)::INT + (r1 IS NOT NULL)::INT + (r2 IS NOT NULL)::INT AS labels
        FROM ({_said(rows)}) GROUP BY p, h
    """


# The two halves of a key, as files hold it, and the key again.
_SPLIT = "({0} >> 64)::UBIGINT AS {0}_high, ({0} & 18446744073709551615::UHUGEINT)::UBIGINT AS {0}_low"
_WHOLE = "({0}_high::UHUGEINT << 64 | {0}_low::UHUGEINT)"
_HALVES = f"{_SPLIT.format('p')}, {_SPLIT.format('h')}"
_KEYS = _WHOLE.format("p"), _WHOLE.format("h")


def _key(column: str) -> str:
    # To readers and tokenizers, neither the normal form nor format characters (such as soft hyphens) make another text.
    bare = f"regexp_replace(nfc_normalize({column}), '\\p{{Cf}}+', '', 'g')"
    return f"md5_number(regexp_replace({bare}, '[{WHITE_SPACE}]+', ' ', 'g'))"


class Ledger:
    """Keys of all rows that pass the checks of `cleaning`. Add the rows, call `decide`, then use the other methods.

    Development and test rows (`held`) carry the number of their set. Training rows (`train`) are numbered in the order added.

    On a cluster there is a ledger for each partition of the sentences, with the training rows of which it holds a sentence. It
    decides on those whose premise it holds: all rows of that pair, and all that turn it round, are there.

    Args:
        partition: its number and the number of partitions, a power of two.
    """

    def __init__(self, connection: Database, partition: tuple[int, int] = (0, 1)) -> None:
        self._connection = connection
        number, partitions = partition
        # The remainder of a division takes 2 µs for such numbers.
        self._own = f"p & {partitions - 1}::UHUGEINT = {number}"
        self._sets: dict[str, int] = {}
        # Rows added, by set.
        self._added = Counter[str]()
        connection.execute("CREATE TABLE train (row UBIGINT, p UHUGEINT, h UHUGEINT, label TINYINT, back TINYINT)")
        connection.execute("CREATE TABLE held (part USMALLINT, row UBIGINT, p UHUGEINT, h UHUGEINT, label TINYINT, back TINYINT)")

    def __len__(self) -> int:
        """Number of training rows added."""
        return self._added["train"]

    def add_train(self, batch: pa.RecordBatch) -> None:
        """Add training rows (`premise`, `hypothesis`, `label`, `reverse_label`)."""
        self._insert("train", ("premise", "hypothesis", "label", "reverse_label"), batch, "train")

    def add_held_out(self, name: str, batch: pa.RecordBatch, graded: bool = False) -> None:
        """Add rows of the set `name`; a graded set (`sentence1`, `sentence2`) has no labels."""
        columns = ("sentence1", "sentence2", "NULL", "NULL") if graded else ("premise", "hypothesis", "label", "reverse_label")
        part = self._sets.setdefault(name, len(self._sets))
        self._insert("held", columns, batch, name, f"{part}, ")

    def halves(self, batch: pa.RecordBatch) -> pa.Table:
        """(n,) uint64 `p_high`, `p_low`, `h_high`, `h_low`: the keys of pairs (`premise`, `hypothesis`)."""
        cursor = self._connection.cursor()
        cursor.register("pairs_of", batch.append_column("row", pa.array(np.arange(batch.num_rows))))
        keys = f"SELECT row, {_key('premise')} AS p, {_key('hypothesis')} AS h FROM pairs_of"
        return cursor.sql(f"SELECT {_HALVES} FROM ({keys}) ORDER BY row").to_arrow_table()

    def add_keys(self, rows: pa.Table) -> None:
        """Add training rows by their keys (`halves`), `label` and `reverse_label`."""
        self._insert("train", (*_KEYS, "label", "reverse_label"), rows, "train", keyed=True)

    def write_held_out(self, file: Path) -> None:
        """Write the keys of all development and test rows, for `read_held_out` of another ledger."""
        self._connection.execute(f"COPY (SELECT part, row, {_HALVES}, label, back FROM held) TO {quoted(file)} (FORMAT parquet)")

    def read_held_out(self, file: Path) -> None:
        """Add what `write_held_out` wrote."""
        keys = ", ".join(_KEYS)
        self._connection.execute(f"INSERT INTO held SELECT part, row, {keys}, label, back FROM read_parquet({quoted(file)})")

    def kept_of_held_out(self) -> pa.Table:
        """`p_high`, `p_low`: the sentences of development and test rows that occur in the kept training rows."""
        query = """
            SELECT DISTINCT p FROM (SELECT p FROM kept UNION ALL SELECT h FROM kept)
            WHERE p IN (SELECT p FROM held UNION SELECT h FROM held)
        """
        return self._connection.cursor().sql(f"SELECT {_SPLIT.format('p')} FROM ({query})").to_arrow_table()

    def take_kept(self, sentences: pa.Table) -> None:
        """Take the answers of all partitions (`kept_of_held_out`) for `overlap`, in place of `decide`."""
        self._connection.register("sentences", sentences)
        self._connection.execute(f"CREATE TABLE kept AS SELECT {_WHOLE.format('p')} AS p, p AS h FROM sentences")

    def decide(self) -> Reasons:
        """(n,) `KEPT` or the reason code of every training row, in order. Takes one byte of memory per row.

        In a partition, only for rows whose premise it holds.

        A pair leaks in both orders. A graded pair (label NULL) has no direction, so both its sentences leak as premises.
        """
        # The first row of each pair and label. All other rows are duplicates.
        self._connection.execute(f"CREATE TABLE pairs AS {_pairs('train')}")
        self._connection.execute(
            f"""
            CREATE TABLE decided AS
            WITH leaked AS (SELECT p, h FROM held UNION SELECT h, p FROM held),
                 premises AS (SELECT p FROM held UNION SELECT h FROM held WHERE label IS NULL),
                 each AS (SELECT unnest([pairs.r0, pairs.r1, pairs.r2]) AS row, unnest([0, 1, 2])::TINYINT AS label,
                                 pairs.p, pairs.h, {_CONFLICT} AS conflict
                          FROM pairs LEFT JOIN pairs AS turned ON pairs.p = turned.h AND pairs.h = turned.p)
            SELECT row, label, each.p AS p, each.h AS h,
                   CASE WHEN conflict THEN {cleaning.CONTRADICTORY}
                        WHEN leaked.p IS NOT NULL THEN {cleaning.LEAKED_PAIR}
                        WHEN premises.p IS NOT NULL THEN {cleaning.LEAKED_PREMISE}
                        ELSE {cleaning.KEPT} END::TINYINT AS reason
            FROM each LEFT JOIN leaked USING (p, h) LEFT JOIN premises ON each.p = premises.p
            WHERE row IS NOT NULL
            """
        )
        self._connection.execute("DROP TABLE pairs")
        self._connection.execute(
            f"CREATE VIEW kept AS SELECT row, label, p, h FROM decided WHERE reason = {cleaning.KEPT} AND {self._own}"
        )
        reason = np.full(len(self), cleaning.DUPLICATE, dtype=np.int8)
        for batch in self._connection.cursor().sql("SELECT row, reason FROM decided").to_arrow_reader():
            reason[batch["row"].to_numpy()] = batch["reason"].to_numpy()
        return reason

    def leaked(self, pairs: pa.Table) -> npt.NDArray[np.bool_]:
        """(n,) true for pairs (`premise`, `hypothesis`) that `decide` would drop as leaked."""
        query = f"""
            WITH asked AS (SELECT row, {_key("premise")} AS p, {_key("hypothesis")} AS h FROM numbered)
            SELECT row FROM asked
            WHERE (p, h) IN (SELECT (p, h) FROM held UNION SELECT (h, p) FROM held)
               OR p IN (SELECT p FROM held UNION SELECT h FROM held WHERE label IS NULL)
        """
        leaked = np.zeros(len(pairs), np.bool_)
        cursor = self._connection.cursor()
        cursor.register("numbered", pairs.append_column("row", pa.array(np.arange(len(pairs)))))
        leaked[cursor.sql(query).fetchnumpy()["row"]] = True
        return leaked

    def sampled(self, pairs: Path, seed: int, most: int) -> list[str]:
        """Different sentences of the pairs in a Parquet file, in an order that depends on the seed and not on the rows."""
        query = f"""
            SELECT DISTINCT md5_number('{seed}:' || text) AS place, text
            FROM (SELECT unnest([premise, hypothesis]) AS text FROM read_parquet({quoted(pairs)})) ORDER BY place LIMIT {most}
        """
        return [text for batch in in_order(self._connection, query) for text in batch["text"].to_pylist()]

    def entailed_back(self, name: str | None = None) -> npt.NDArray[np.bool_]:
        """(n,) true where the reversed pair is an entailment by a row or a reverse label of training, or of the set `name`.

        For a part of the development set, the rows of both parts count. Rows with contradictory labels say nothing.
        """
        rows, known = (
            "kept",
            f"decided WHERE label = 0 AND reason <> {cleaning.CONTRADICTORY} UNION SELECT h, p FROM train WHERE back = 0",
        )
        if name is not None:
            parts = ", ".join(str(self._sets[part]) for part in ((DEV, PROMOTION) if name in (DEV, PROMOTION) else (name,)))
            rows = f"(SELECT * FROM held WHERE part = {self._sets[name]})"
            given = _said(f"(SELECT * FROM held WHERE part IN ({parts}))")
            known = f"({given}) GROUP BY p, h HAVING max(label) = 0"
        back = np.zeros(self._added[name or "train"], np.bool_)
        query = f"SELECT row FROM {rows} AS own SEMI JOIN (SELECT p, h FROM {known}) AS back ON own.p = back.h AND own.h = back.p"
        back[self._connection.cursor().sql(query).fetchnumpy()["row"]] = True
        return back

    def match(self) -> None:
        """Assign to each kept entailment pair a contradiction and a neutral pair with the same premise, if there are any.

        A premise may have several entailments, and m possible partners of a label: the k-th entailment takes the (k mod m)-th
        partner, both counted from 0 in row order.
        """
        turn = "row_number() OVER (PARTITION BY p ORDER BY row) - 1"
        for label, table in _PARTNERS.items():
            self._connection.execute(
                f"""
                CREATE TABLE {table} AS
                WITH e AS (SELECT p, row, {turn} AS turn FROM kept WHERE label = {ENTAILMENT}),
                     c AS (SELECT p, row, {turn} AS place FROM kept WHERE label = {label}),
                     m AS (SELECT p, count(*) AS m FROM c GROUP BY p)
                SELECT e.row AS row, c.row AS partner, e.p AS p
                FROM e LEFT JOIN m USING (p) LEFT JOIN c ON c.p = e.p AND c.place = e.turn % m.m
                """
            )

    def partners(self, label: int, text: Path) -> Iterator[pa.RecordBatch]:
        """Column `partner` with the partner's text, or null, for every kept entailment pair in row order.

        Args:
            label: CONTRADICTION or NEUTRAL.
            text: Parquet file with `row` and `hypothesis` of every training row added.
        """
        table = _PARTNERS[label]
        # Join first, then sort: both in one query would need more memory than the database may use.
        self._connection.execute(
            f"""
            CREATE TABLE text_of_{table} AS
            SELECT {table}.row AS row, t.hypothesis AS partner
            FROM {table} LEFT JOIN read_parquet({quoted(text)}) AS t ON t.row = {table}.partner
            """
        )
        return in_order(self._connection, f"SELECT partner FROM text_of_{table} ORDER BY row")

    def train_counts(self) -> dict[str, int]:
        """Counts of the kept training rows and their triplets."""
        return self._row(
            f"""
            SELECT (SELECT count(*) FROM contradicted) AS triplets,
                   (SELECT count(partner) FROM contradicted) AS triplets_with_contradiction,
                   (SELECT count(partner) FROM neutral) AS triplets_with_neutral,
                   (SELECT count(DISTINCT p) FROM kept) AS unique_premises,
                   (SELECT count(DISTINCT p) FROM contradicted) AS unique_premises_with_entailment,
                   (SELECT count(DISTINCT partner) FROM contradicted) AS distinct_contradictions_used,
                   (SELECT count(*) FROM kept WHERE label = {CONTRADICTION}) AS contradiction_pairs
            """
        )

    def labels(self) -> dict[str, int]:
        """Kept training rows by label."""
        filters = (f"count(*) FILTER (label = {code}) AS {name}" for code, name in enumerate(LABELS))
        return self._row(f"SELECT {', '.join(filters)} FROM kept")

    def repeats(self, name: str) -> dict[str, int]:
        """Rows of a development or test set that repeat an earlier row, and rows with contradictory labels, as in training."""
        return self._row(
            f"""
            WITH pairs AS ({_pairs(f"(SELECT * FROM held WHERE part = {self._sets[name]})")})
            SELECT count(DISTINCT pairs.p) AS premises, coalesce(sum(pairs.n - pairs.labels), 0)::BIGINT AS kept_duplicate,
                   coalesce(sum(pairs.n) FILTER ({_CONFLICT}), 0)::BIGINT AS kept_contradictory
            FROM pairs LEFT JOIN pairs AS turned ON pairs.p = turned.h AND pairs.h = turned.p
            """
        )

    def in_development(self, name: str) -> dict[str, int]:
        """Rows of a set whose pair also occurs in the development set, in either order, and in either part except the set
        itself."""
        parts = ", ".join(str(self._sets[part]) for part in (DEV, PROMOTION) if part in self._sets and part != name) or "NULL"
        return self._row(
            f"""
            WITH dev AS (SELECT p, h FROM held WHERE part IN ({parts}))
            SELECT count(*) AS pairs_in_dev FROM held
            WHERE part = {self._sets[name]} AND (p, h) IN (SELECT (p, h) FROM dev UNION SELECT (h, p) FROM dev)
            """
        )

    def overlap(self, name: str) -> dict[str, int]:
        """Number of sentences of a set, and of those that also occur in the kept training rows (on either side)."""
        part = self._sets[name]
        return self._row(
            f"""
            WITH own AS (SELECT p AS k FROM held WHERE part = {part} UNION SELECT h FROM held WHERE part = {part})
            SELECT (SELECT count(*) FROM own) AS sentences,
                   (SELECT count(DISTINCT k) FROM (SELECT p AS k FROM kept UNION ALL SELECT h FROM kept) SEMI JOIN own USING (k))
                   AS sentences_in_train
            """
        )

    def _insert(self, table: str, columns: Sequence[str], batch: Any, name: str, part: str = "", *, keyed: bool = False) -> None:
        (first, second, label, back), start = columns, self._added[name]
        keys = f"{first}, {second}" if keyed else f"{_key(first)}, {_key(second)}"
        self._added[name] += batch.num_rows
        self._connection.register("rows", batch.append_column("row", pa.array(np.arange(start, start + batch.num_rows))))
        self._connection.execute(f"INSERT INTO {table} SELECT {part}row, {keys}, {label}, {back} FROM rows")
        self._connection.unregister("rows")

    def _row(self, query: str) -> dict[str, int]:
        return self._connection.sql(query).to_arrow_table().to_pylist()[0]
