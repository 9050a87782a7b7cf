"""The pairs that go most wrong, by row number, and with their sentences if the parameters allow it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipeline.evaluation import analysis
from pipeline.report.blocks import Block, Section, Table, Text, plain_table
from pipeline.report.content import Content
from pipeline.report.files import contents_of, read_table
from pipeline.report.numbers import NONE, count, percent
from pipeline.utils.errors import UserError

PAIRS = 5
"""Number of pairs shown for each kind of mistake and set."""


def examples_section(content: Content) -> Section | None:
    """The section on the worst pairs of the main recipe; None if the parameters hide them or there is no result."""
    if content.examples == "none" or not content.main.summary:
        return None
    blocks: list[Block] = [
        Text(
            "Of the main recipe, by the means over its seeds: not entailed, yet called entailment with the highest scores; "
            "entailed, yet with the lowest scores; entailed with the direction most wrong. A row is that of the set's file in "
            "data/prepared, the first is 1. Scores × 100; direction is the pair's score − that of the pair turned "
            "round, negative where it is wrong."
        )
    ]
    blocks += [_table(content, name, k) for k, name in enumerate(content.figure_sets)]
    return Section(id="examples", title="Which pairs go most wrong", blocks=tuple(blocks))


def _table(content: Content, set_name: str, number: int) -> Table:
    recipe = content.main
    paths = [recipe.scores / set_name / f"seed-{seed}.parquet" for seed in recipe.per_seed]
    thresholds = [sets[set_name]["threshold"] for sets in recipe.per_seed.values()]
    tables = [read_table(path) for path in paths]
    with contents_of(paths[0].parent):
        worst = analysis.worst_over_seeds(tables, thresholds, content.entailment_if, PAIRS)
    kinds = {
        "called entailment": worst.false_positives,
        "missed": worst.misses,
        "wrong direction": worst.wrong_direction or (),
    }
    shown = [(kind, pair) for kind, pairs in kinds.items() for pair in pairs]
    texts = (
        _sentences(content, set_name, tables[0].num_rows, [pair.row for _, pair in shown]) if content.examples == "full" else {}
    )
    rows = [
        [
            kind,
            count(pair.row + 1),
            pair.label,
            percent(100 * pair.score),
            NONE if pair.direction_error is None else percent(-100 * pair.direction_error, 3),
            f"{pair.premise_tokens} : {pair.hypothesis_tokens}",
            *texts.get(pair.row, ()),
        ]
        for kind, pair in shown
    ]
    header = ["what goes wrong", "row", "gold label", "score", "direction", "tokens p : h"]
    if content.examples == "full":
        header += ["premise", "hypothesis"]
    return plain_table(f"examples-{number}", f"Worst pairs of {set_name}", "", header, rows)


def _sentences(content: Content, set_name: str, pairs: int, rows: Sequence[int]) -> dict[int, tuple[str, str]]:
    path = _prepared(content.prepared, set_name)
    table = read_table(path, ("premise", "hypothesis"))
    if table.num_rows != pairs:
        raise UserError(
            f"{path}: {table.num_rows} rows, but {pairs} were scored; run `dvc repro` so that both are of the same data"
        )
    return {row: (table["premise"][row].as_py(), table["hypothesis"][row].as_py()) for row in rows}


def _prepared(prepared: Path, set_name: str) -> Path:
    return prepared / "dev" / "dev.parquet" if set_name == "dev" else prepared / "tests" / f"{set_name}.parquet"
