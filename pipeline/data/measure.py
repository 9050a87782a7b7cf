"""Statistics of one prepared set, computed by DuckDB in bounded memory: lengths, direction, oddities, groups by premise.

The text of a set is read once, into a table with a few small numbers per row; all statistics come from that table. Row numbers
count from 1, in the order of the set's Parquet file.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.data.oddities import ODDITIES, SCRIPTS
from pipeline.data.scratch import Database

FIRST_ROWS = 5
"""Number of row numbers to keep for each kind of finding."""
QUANTILES = (1, 25, 50, 75, 99)
_IDENTICAL = "premise_is_hypothesis"
_OTHER_SCRIPT = "other_script"

MEANINGS = {kind.name: kind.meaning for kind in ODDITIES} | {
    _OTHER_SCRIPT: "mostly in another script than the set",
    _IDENTICAL: "both sentences are the same",
}
"""Name of every kind of finding in `oddities` → its meaning."""

Counts = Sequence[tuple[int, int]]
"""(value, number of occurrences), sorted by value."""


class Measure:
    """The table of one set. Made by `measured`; a connection holds one set at a time."""

    def __init__(self, connection: Database, sides: tuple[str, str]) -> None:
        self._connection = connection
        self._sides = sides

    def lengths(self) -> dict[str, Any]:
        """Side → unit (words, characters) → `spread`."""
        return {
            side: {
                unit: spread(self._rows(f"SELECT {unit}_{k}, count(*) FROM measured GROUP BY 1 ORDER BY 1"))
                for unit in ("words", "characters")
            }
            for k, side in enumerate(self._sides)
        }

    def labels(self) -> dict[str, int]:
        """Rows by label."""
        return dict(self._rows("SELECT label, count(*) FROM measured GROUP BY 1 ORDER BY 1"))

    def direction(self) -> dict[str, Any]:
        """Length and direction of the entailment pairs: `pairs` is their number; `length_only` and `premise_not_longer` are the
        percentages in which "the longer sentence entails" is right (ties count half) and the premise is not longer.
        """
        ((pairs, longer, ties),) = self._rows(
            "SELECT count(*), count_if(words_0 > words_1), count_if(words_0 = words_1) FROM measured WHERE label = 'entailment'"
        )
        if not pairs:
            return {"pairs": 0}
        return {
            "pairs": pairs,
            "length_only": percent(longer + ties / 2, pairs),
            "premise_not_longer": percent(pairs - longer, pairs),
        }

    def scripts(self) -> dict[str, int]:
        """Number of sentences (both sides) by the script of most of their letters."""
        sides = " UNION ALL ".join(f"SELECT script_{k} AS script FROM measured" for k in range(2))
        return {SCRIPTS[k]: n for k, n in self._rows(f"SELECT script, count(*) FROM ({sides}) GROUP BY 1 ORDER BY 1")}

    def oddities(self, dominant: str) -> dict[str, Any]:
        """Kind → number of rows, number of sentences on each side, first row numbers. Kinds that do not occur are left out.

        Args:
            dominant: the script of the set. Missing function words count only if it is Latin.
        """
        conditions = {
            kind.name: tuple(f"odd_{side} & {1 << k} <> 0" for side in range(2))
            for k, kind in enumerate(ODDITIES)
            if kind.name != "no_function_word" or dominant == "Latin"
        }
        usual_scripts = (SCRIPTS.index(dominant), SCRIPTS.index("none"))
        conditions[_OTHER_SCRIPT] = tuple(f"script_{side} NOT IN {usual_scripts}" for side in range(2))
        conditions[_IDENTICAL] = ("identical", "identical")
        findings = {kind: self._finding(*sides) for kind, sides in conditions.items()}
        return {kind: finding for kind, finding in findings.items() if finding["rows"]}

    def _finding(self, first: str, second: str) -> dict[str, Any]:
        ((rows, left, right, numbers),) = self._rows(
            f"SELECT count(*), count_if({first}), count_if({second}), min(row, {FIRST_ROWS}) "
            f"FROM measured WHERE ({first}) OR ({second})"
        )
        return {"rows": rows, self._sides[0]: left, self._sides[1]: right, "first_rows": numbers or []}

    def _rows(self, query: str) -> list[tuple[Any, ...]]:
        return self._connection.execute(query).fetchall()


def measured(connection: Database, path: Path, sides: tuple[str, str], label: str | None) -> Measure:
    """Read the text of a Parquet file of pairs.

    Args:
        connection: a database in which the macros of `oddities` are defined.
        path: a file that stage prepare wrote.
        sides: its two columns of sentences.
        label: its column of labels, if it has one.
    """
    columns = ", ".join(
        f"{side} AS t_{k}, length({side}) AS characters_{k}, words({side}) AS words_{k}, "
        f"strlen({side}) = length({side}) AS ascii_{k}, script({side}, strlen({side}) = length({side})) AS script_{k}"
        for k, side in enumerate(sides)
    )
    stored_columns = ", ".join(
        f"characters_{k}::INTEGER AS characters_{k}, words_{k}::INTEGER AS words_{k}, script_{k}::UTINYINT AS script_{k}, "
        f"oddities(t_{k}, ascii_{k}, words_{k}, script_{k})::INTEGER AS odd_{k}"
        for k in range(2)
    )
    rows = (
        f"SELECT file_row_number + 1 AS row, {label or 'NULL'} AS label, {columns} "
        "FROM read_parquet($path, file_row_number = true)"
    )
    connection.execute(
        f"CREATE OR REPLACE TEMP TABLE measured AS SELECT row, label, t_0 = t_1 AS identical, {stored_columns} FROM ({rows})",
        {"path": str(path)},
    )
    return Measure(connection, sides)


def premise_groups(connection: Database, triplets: Path) -> list[tuple[int, int, int]]:
    """(number of entailments, number of them with a contradiction, number of premises that have these numbers), sorted."""
    return connection.execute(
        "SELECT every, complete, count(*) FROM (SELECT count(*) AS every, count(contradiction) AS complete "
        "FROM read_parquet($path) GROUP BY sentence_key(premise)) GROUP BY 1, 2 ORDER BY 1, 2",
        {"path": str(triplets)},
    ).fetchall()


def spread(counts: Counts) -> dict[str, Any]:
    """Mean, quantiles (nearest rank), maximum, and a histogram of [from, to, rows] with bins that double in width."""
    total = sum(n for _, n in counts)
    bins: dict[int, int] = {}
    for value, n in counts:
        # 0, 1, 2, 3–4, 5–8, …
        power = 0 if value < 1 else 1 + (value - 1).bit_length()
        bins[power] = bins.get(power, 0) + n
    return {
        "mean": round(sum(value * n for value, n in counts) / total, 2),
        "quantiles": {str(q): _quantile(counts, q / 100 * total) for q in QUANTILES},
        "max": counts[-1][0],
        "bins": [[*_bounds(power), n] for power, n in sorted(bins.items())],
    }


def percent(part: float, whole: float) -> float:
    """`part` of `whole` in percent, rounded; 0 of 0 is 0."""
    return round(100 * part / whole, 4) if whole else 0.0


def _bounds(power: int) -> tuple[int, int]:
    if power < 2:
        return power, power
    return 2 ** (power - 2) + 1, 2 ** (power - 1)


def _quantile(counts: Counts, rank: float) -> int:
    seen = 0
    for value, n in counts:
        seen += n
        if seen >= math.ceil(rank):
            return value
    return counts[-1][0]
