"""What hangs on other rows: repeats, contradictory labels, leaks, and which contradiction and neutral pair an entailment gets.

The ledger holds no text. A sentence is the MD5 of its text with every run of white space made one space (case counts); among
2·10⁷ sentences the chance that any two share it is below 10⁻²³. Everything is grouped, joined and sorted by the database of
`scratch`, in bounded memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa

from pipeline.data import cleaning
from pipeline.data.cleaning import Reasons
from pipeline.data.schema import CONTRADICTION, DEV, ENTAILMENT, LABELS, NEUTRAL, PROMOTION
from pipeline.data.scratch import Database, in_order

# RE2's \s is ASCII only and lacks the vertical tab; U+0085 (next line) is white space but not of class Z.
_WHITE_SPACE = r"[\s\x0b\x{85}\pZ]+"

# Table of the partners that entailment pairs are given, by label.
_PARTNERS = {CONTRADICTION: "contradicted", NEUTRAL: "neutral"}


def _key(column: str) -> str:
    return f"md5_number(regexp_replace({column}, '{_WHITE_SPACE}', ' ', 'g'))"


class Ledger:
    """Keys of all rows that are kept as far as they themselves say. Fill it, `decide`, then ask.

    Development and test rows (`held`) are numbered by their set, training rows (`train`) by their place among those added.
    """

    def __init__(self, connection: Database) -> None:
        self._connection = connection
        self._trained = 0
        self._sets: dict[str, int] = {}
        connection.execute("CREATE TABLE train (row UBIGINT, p UHUGEINT, h UHUGEINT, label TINYINT)")
        connection.execute("CREATE TABLE held (part USMALLINT, p UHUGEINT, h UHUGEINT, label TINYINT)")

    def __len__(self) -> int:
        """Training rows added."""
        return self._trained

    def add_train(self, batch: pa.RecordBatch) -> None:
        """Append training rows (`premise`, `hypothesis`, `label`)."""
        self._execute(
            f"INSERT INTO train SELECT row, {_key('premise')}, {_key('hypothesis')}, label FROM rows",
            batch.append_column("row", pa.array(np.arange(len(self), len(self) + batch.num_rows))),
        )
        self._trained += batch.num_rows

    def add_held_out(self, name: str, batch: pa.RecordBatch, graded: bool = False) -> None:
        """Append rows of the set `name`; a graded one (`sentence1`, `sentence2`) has no labels."""
        first, second, label = ("sentence1", "sentence2", "NULL") if graded else ("premise", "hypothesis", "label")
        part = self._sets.setdefault(name, len(self._sets))
        self._execute(f"INSERT INTO held SELECT {part}, {_key(first)}, {_key(second)}, {label} FROM rows", batch)

    def decide(self) -> Reasons:
        """(n,) `KEPT` or the reason code of every training row, in order. Memory grows by one byte a row.

        A graded pair (label NULL) has no direction: it leaks in either order, and both its sentences leak as premises.
        """
        self._connection.execute(
            # The first row of each label of each pair; rows that are none of these repeat one.
            """
            CREATE TABLE firsts AS
            SELECT p, h, min(row) FILTER (label = 0) AS r0, min(row) FILTER (label = 1) AS r1, min(row) FILTER (label = 2) AS r2,
                   (r0 IS NOT NULL)::INT + (r1 IS NOT NULL)::INT + (r2 IS NOT NULL)::INT AS labels
            FROM train GROUP BY p, h
            """
        )
        self._connection.execute(
            f"""
            CREATE TABLE decided AS
            WITH pairs AS (SELECT p, h FROM held UNION SELECT h, p FROM held WHERE label IS NULL),
                 premises AS (SELECT DISTINCT p FROM pairs),
                 each AS (SELECT unnest([r0, r1, r2]) AS row, unnest([0, 1, 2])::TINYINT AS label, p, h, labels FROM firsts)
            SELECT row, label, each.p AS p, each.h AS h,
                   CASE WHEN labels > 1 THEN {cleaning.CONTRADICTORY}
                        WHEN pairs.p IS NOT NULL THEN {cleaning.LEAKED_PAIR}
                        WHEN premises.p IS NOT NULL THEN {cleaning.LEAKED_PREMISE}
                        ELSE {cleaning.KEPT} END::TINYINT AS reason
            FROM each LEFT JOIN pairs USING (p, h) LEFT JOIN premises ON each.p = premises.p
            WHERE row IS NOT NULL
            """
        )
        self._connection.execute("DROP TABLE firsts")
        self._connection.execute(f"CREATE VIEW kept AS SELECT row, label, p, h FROM decided WHERE reason = {cleaning.KEPT}")
        reason = np.full(len(self), cleaning.DUPLICATE, dtype=np.int8)
        for batch in self._connection.cursor().sql("SELECT row, reason FROM decided").to_arrow_reader():
            reason[batch["row"].to_numpy()] = batch["reason"].to_numpy()
        return reason

    def match(self, how: Literal["cycle", "random"], seed: int) -> None:
        """Give each kept entailment pair a contradiction and a neutral pair of its premise, if it has any.

        A premise has several entailments and m partners of a label. `cycle`: its k-th entailment takes its (k mod m)-th partner,
        both counted from 0 in the order of the rows. `random`: each entailment draws one of the m, by the MD5 of seed and row, so
        that a draw does not hang on what stands elsewhere in the data.
        """
        turn = "row_number() OVER (PARTITION BY p ORDER BY row) - 1"
        draw = turn if how == "cycle" else f"md5_number_lower('{seed}:' || row)"
        for label, table in _PARTNERS.items():
            self._connection.execute(
                f"""
                CREATE TABLE {table} AS
                WITH e AS (SELECT p, row, {draw} AS draw FROM kept WHERE label = {ENTAILMENT}),
                     c AS (SELECT p, row, {turn} AS place FROM kept WHERE label = {label}),
                     m AS (SELECT p, count(*) AS m FROM c GROUP BY p)
                SELECT e.row AS row, c.row AS partner, e.p AS p
                FROM e LEFT JOIN m USING (p) LEFT JOIN c ON c.p = e.p AND c.place = e.draw % m.m
                """
            )

    def partners(self, label: int, text: Path) -> Iterator[pa.RecordBatch]:
        """`partner`, null where there is none, of every kept entailment pair in the order of the rows.

        Args:
            label: CONTRADICTION or NEUTRAL.
            text: Parquet file with `row` and `hypothesis` of every training row added.
        """
        name, table = str(text).replace("'", "''"), _PARTNERS[label]
        # Joined first and sorted then: both at once would want more memory than the database may take.
        self._connection.execute(
            f"""
            CREATE TABLE told_{table} AS
            SELECT {table}.row AS row, t.hypothesis AS partner
            FROM {table} LEFT JOIN read_parquet('{name}') AS t ON t.row = {table}.partner
            """
        )
        return in_order(self._connection, f"SELECT partner FROM told_{table} ORDER BY row")

    def train_counts(self) -> dict[str, int]:
        """Of the kept training rows and their triplets."""
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
        """Rows of a development or test set that repeat an earlier one, and rows whose pair also stands with another label."""
        return self._row(
            f"""
            SELECT coalesce(sum(n - labels), 0)::BIGINT AS kept_duplicate,
                   coalesce(sum(n) FILTER (labels > 1), 0)::BIGINT AS kept_contradictory
            FROM (SELECT count(*) AS n, count(DISTINCT label) AS labels FROM held WHERE part = {self._sets[name]} GROUP BY p, h)
            """
        )

    def in_development(self, name: str) -> dict[str, int]:
        """Rows of a test set whose pair is in the development set too, in either part of it."""
        parts = ", ".join(str(self._sets[part]) for part in (DEV, PROMOTION))
        return self._row(
            f"""
            SELECT count(*) AS pairs_in_dev FROM held
            WHERE part = {self._sets[name]} AND (p, h) IN (SELECT (p, h) FROM held WHERE part IN ({parts}))
            """
        )

    def overlap(self, name: str) -> dict[str, int]:
        """Sentences of a set, and how many of them stand in the kept training rows too (on either side)."""
        part = self._sets[name]
        return self._row(
            f"""
            WITH own AS (SELECT p AS k FROM held WHERE part = {part} UNION SELECT h FROM held WHERE part = {part})
            SELECT (SELECT count(*) FROM own) AS sentences,
                   (SELECT count(DISTINCT k) FROM (SELECT p AS k FROM kept UNION ALL SELECT h FROM kept) SEMI JOIN own USING (k))
                   AS sentences_in_train
            """
        )

    def _execute(self, query: str, batch: pa.RecordBatch) -> None:
        self._connection.register("rows", pa.table(batch))
        self._connection.execute(query)
        self._connection.unregister("rows")

    def _row(self, query: str) -> dict[str, int]:
        result = self._connection.execute(query)
        names = [column[0] for column in result.description or ()]
        (row,) = result.fetchall()
        return dict(zip(names, row, strict=True))
