"""Both pages, for every kind of results: untrusted text is text, nothing is fetched, failures are shown."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.config.params import Params
from pipeline.utils.errors import UserError
from tests.report.conftest import report_of
from tests.report.reading import HtmlPage, Rows, read_html, read_markdown
from tests.report.results import Asked, write_results


def row(rows: Rows, name: str) -> list[str]:
    return next(row for row in rows if row[0] == name)


def copy_of(results: tuple[Path, Params], tmp_path: Path) -> Path:
    return shutil.copytree(results[0], tmp_path / "copy", ignore=shutil.ignore_patterns("report-*"))


def test_untrusted_text_is_text_on_both_pages(full: tuple[str, str], page: HtmlPage) -> None:
    html, markdown = full
    reason = "loss is not finite at step 3: <script>alert('reason')</script> | **bold** & more"
    assert row(page.tables["failures"], "hot") == ["hot", "all", reason]
    assert "<script>alert('premise')</script> is what the | sign says." in page.text
    # plotly.js, one for each figure, and the cue of wide tables.
    assert page.count("script") == 2 + len(page.figures)
    assert page.count("b") == page.count("img") == 0
    assert "<script" not in markdown
    assert "alert(" not in "".join(page.scripts[1:])
    for table in read_markdown(markdown):
        assert {len(cells) for cells in table} == {len(table[0])}
    assert "<b>four" not in html + markdown


def test_names_are_text_in_tables_and_figures(tmp_path: Path) -> None:
    name = 'x</script><img src=y onerror="z">&'
    html, markdown = report_of(tmp_path, write_results(tmp_path, [Asked(name=name)]))
    page = read_html(html)
    assert page.count("img") == 0
    assert page.count("script") == 2 + len(page.figures)
    assert row(page.tables["table-1"], name)
    assert "<img" not in markdown
    shown = {trace["name"] for data, _ in page.figures.values() for trace in data}
    shown |= {str(y) for data, _ in page.figures.values() for trace in data for y in trace["y"]}
    assert {text for text in shown if "x" in text and "src" in text} == {'x&lt;/script&gt;&lt;img src=y onerror="z"&gt;&amp;'}


def test_nothing_can_be_fetched(page: HtmlPage) -> None:
    (policy,) = (given["content"] for _, given in page.elements if given.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    # plotly would otherwise offer to upload a figure's data.
    assert all('"modeBarButtons"' in script for script in page.scripts[1:-1])


def test_equal_results_give_equal_bytes(results: tuple[Path, Params], full: tuple[str, str], tmp_path: Path) -> None:
    assert report_of(copy_of(results, tmp_path), results[1], "full") == full


def test_a_failed_variant_is_shown_with_its_reason(page: HtmlPage) -> None:
    assert set(row(page.tables["table-1"], "hot")[1:]) == {"–"}
    failed = [r[1:] for r in page.tables["failures"] if r[0] == "main recipe"]
    assert failed == [["rate 1e-05, batch 32, seed 1", "a worker was killed (signal 9) <b>four</b> times"]]
    grid = page.tables["table-3-0"]
    assert grid[0] == ["learning rate", "batch 32", "batch 64"]
    assert row(grid, "1e-05")[1:] == ["1 failed, 2 finished", "2 finished, 1 stopped"]


@pytest.mark.parametrize("examples", ["full", "ids", "none"])
def test_the_worst_pairs_show_what_they_are_allowed_to(results: tuple[Path, Params], tmp_path: Path, examples: str) -> None:
    html, markdown = report_of(copy_of(results, tmp_path), results[1], examples)  # type: ignore[arg-type]
    page = read_html(html)
    assert ("Nobody *sleeps* [here](there)." in page.text) == (examples == "full")
    assert ("Nobody" in html + markdown) == (examples == "full")
    assert ("examples" in {given.get("id") for _, given in page.elements}) == (examples != "none")
    assert ("set report.examples: full in params.yaml and run: dvc repro -s report" in page.text) == (examples != "full")
    assert ("worst" in page.tables) == (examples == "full")
    if examples == "full":
        rows = page.tables["examples-table"][1:]
        assert {r[0].partition(", ")[2] for r in rows} == {"called entailment", "missed", "wrong direction"}
        # The fixture writes the row, counted from 0, behind every premise.
        for table in ("worst", "examples-table"):
            assert all(r[1].endswith(f"({int(r[-1].split()[-1]) - 1})") for r in page.tables[table][1:])
        assert all(float(r[4]) <= 0 for r in rows if r[0].endswith("wrong direction"))


def test_a_main_recipe_without_variances_has_no_direction(tmp_path: Path) -> None:
    html, _ = report_of(tmp_path, write_results(tmp_path, [], objective="simcse"))
    page = read_html(html)
    assert not [
        name for name in (*page.tables, *page.figures) if name.startswith(("table-2", "similarity", "direction", "variance"))
    ]
    assert {row[0] for row in page.tables["table-1"]} >= {"main recipe", "hypothesis-only", "always-no"}


@pytest.mark.parametrize(
    ("name", "damage", "said"),
    [
        ("results/evaluate/summary.json", Path.unlink, "no such file; run `dvc repro`"),
        ("results/tune/trials.csv", lambda file: file.write_text("seed\n1\n"), "not what its stage writes"),
        ("results/experiments/variants.json", lambda file: file.write_text('[{"name": "x"}]'), "not what its stage writes"),
        ("results/evaluate/scores/main recipe/dev/seed-2.parquet", lambda file: file.write_text("x"), "cannot be read"),
        (
            "data/prepared/tests/snli_test.parquet",
            lambda file: shutil.copy(file.parents[1] / "dev/dev.parquet", file),
            "240 rows, but 260 were scored",
        ),
    ],
)
def test_damaged_results_give_one_line(
    results: tuple[Path, Params], tmp_path: Path, name: str, damage: Callable[[Path], object], said: str
) -> None:
    file = copy_of(results, tmp_path) / name
    damage(file)
    with pytest.raises(UserError, match=re.escape(f"{file.name}: {said}")):
        report_of(tmp_path / "copy", results[1], "full")
