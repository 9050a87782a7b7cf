"""The same numbers everywhere: both pages and the metrics of each seed, which tests/evaluation checks by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.config.params import Params
from pipeline.utils.atomic_io import read_json
from tests.report.reading import HtmlPage, Rows
from tests.report.results import HYPOTHESIS_ONLY, SETS

FOLDERS = {"main recipe": "evaluate", "ent": "experiments", "simcse": "experiments"}
OF_SET = {
    "accuracy": "accuracy",
    "threshold": "threshold",
    "average precision": "average_precision",
    "directed PR-AUC": "directed_pr_auc",
    "directed average precision": "directed_average_precision",
    "hard pairs: directed PR-AUC": "hard.directed_pr_auc",
}
SUBSETS = {
    "all": "",
    "premise not longer": "not_longer_",
    "one-way": "one_way_",
    "one-way, premise not longer": "one_way_not_longer_",
    "two-way": "two_way_",
    "hard pairs": "hard_",
    "neutral pairs": "neutral_",
}


def column(rows: Rows, heading: str) -> dict[str, str]:
    """Name of the row → cell under the heading."""
    at = rows[0].index(heading)
    return {row[0]: row[at] for row in rows[1:]}


def shown(values: list[float], places: int = 1) -> str:
    """Mean ± sd with n − 1, worked out here; four places first, which is what DVC's metrics have."""
    if not values:
        return "–"
    mean = sum(values) / len(values)
    sd = (sum((v - mean) ** 2 for v in values) / (len(values) - 1)) ** 0.5
    return f"{round(mean, 4):.{places}f} ± {round(sd, 4):.{places}f}"


def seeds_of(root: Path, recipe: str, set_name: str) -> list[dict[str, float]]:
    """Metric → value of each seed."""
    seeds = [sets[set_name] for sets in read_json(root / f"results/{FOLDERS[recipe]}/per_seed.json")[recipe].values()]
    assert len(seeds) == 3
    return seeds


def test_report_md_has_the_tables_of_the_page_cell_by_cell(page: HtmlPage, tables: list[Rows]) -> None:
    folded = {"seeds", "parameters"}
    assert folded < set(page.tables)
    of_html = {name: rows for name, rows in page.tables.items() if name not in folded}
    assert len(of_html) == len(tables) > 15
    for (name, rows), of_markdown in zip(of_html.items(), tables, strict=True):
        # Markdown has a line for a row, so line breaks and runs of spaces are one space there.
        assert [[" ".join(cell.split()) for cell in row] for row in rows] == of_markdown, name


@pytest.mark.parametrize("recipe", list(FOLDERS))
def test_tables_1_and_2_are_those_of_the_seeds(results: tuple[Path, Params], page: HtmlPage, recipe: str) -> None:
    for k, name in enumerate(SETS):
        seeds = seeds_of(results[0], recipe, name)
        expected = {("table-1", f"{name}: PR-AUC"): "pr_auc", ("table-1", f"{name}: hard pairs"): "hard.pr_auc"}
        expected |= {(f"table-1-{k}", heading): metric for heading, metric in OF_SET.items()}
        for heading, subset in SUBSETS.items():
            if pairs := seeds[0].get(f"direction.{subset}pairs"):
                named = f"{heading} ({pairs:,.0f})"
                expected |= {(f"table-2-{k}", f"{named}: {by}"): f"direction.{subset}{by}" for by in ("sim", "var")}
        for (table, heading), metric in expected.items():
            values = [seed[metric] for seed in seeds if metric in seed]
            assert column(page.tables[table], heading)[recipe] == shown(values, 3 if heading == "threshold" else 1), heading
        for table in (f"table-1-{k}", f"table-2-{k}"):
            assert set(page.tables[table][0][1:]) == {heading for of, heading in expected if of == table}


def test_the_baselines_are_what_the_data_give(results: tuple[Path, Params], page: HtmlPage) -> None:
    for k, name in enumerate(SETS):
        seed = seeds_of(results[0], "main recipe", name)[0]
        areas, hard_areas = (column(page.tables["table-1"], f"{name}: {heading}") for heading in ("PR-AUC", "hard pairs"))
        chance, hard_chance = (100 * seed[f"{of}entailments"] / seed[f"{of}pairs"] for of in ("", "hard."))
        assert (areas["always-no"], areas["hypothesis-only"]) == (f"{chance:.1f}", f"{HYPOTHESIS_ONLY['pr_auc'] - 0.01:.1f}")
        assert (hard_areas["always-no"], hard_areas["hypothesis-only"]) == (f"{hard_chance:.1f}", "–")
        accuracy = column(page.tables[f"table-1-{k}"], "accuracy")
        assert (accuracy["always-no"], accuracy["hypothesis-only"]) == (f"{100 - chance:.1f}", "63.5")
        assert areas["length-only"] == f"{seed['pr_auc_length_only']:.1f}"
        directed = column(page.tables[f"table-1-{k}"], "directed average precision")
        assert directed["length-only"] == f"{seed['directed_average_precision_length_only']:.1f}"
        direction = column(page.tables[f"table-2-{k}"], f"all ({seed['direction.pairs']:,.0f}): sim")
        assert (direction["length-only"], direction["chance"]) == (f"{seed['direction.length_only']:.1f}", "50.0")
    # The paper's figures are those of its own sets, and its directions those of all entailment pairs; SimCSE has none.
    rows = {row[0]: row[1:3] for row in page.tables["table-2-2"]}
    assert rows["the paper's ent+con+rev"] == ["97.1", "97.2"]
    assert "the paper's simcse" not in rows
