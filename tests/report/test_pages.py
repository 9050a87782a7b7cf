"""What stands on the pages, for every kind of results."""

from __future__ import annotations

import json
import re
import shutil
from hashlib import sha256
from pathlib import Path

import pytest
from plotly.offline import get_plotlyjs, get_plotlyjs_version  # pyright: ignore[reportMissingTypeStubs]

from pipeline.config.params import Params
from pipeline.report import paper
from pipeline.report.page import PLOTLY
from pipeline.utils.errors import UserError
from tests.report.conftest import content_of, report_of
from tests.report.reading import HtmlPage, Rows, read_html, read_markdown
from tests.report.results import Asked, write_results

STYLE = Path(__file__).parents[2] / "pipeline/report/style.css"


def row(rows: Rows, name: str) -> list[str]:
    return next(row for row in rows if row[0] == name)


def test_untrusted_text_is_text_on_both_pages(full: tuple[str, str], page: HtmlPage) -> None:
    html, markdown = full
    reason = "loss is not finite at step 3: <script>alert('reason')</script> | **bold** & more"
    assert row(page.tables["failures"], "hot") == ["hot", "–", reason]
    assert "<script>alert('premise')</script> is what the | sign says." in page.text
    # The figures' data, plotly.js and the page's own script.
    assert page.count("script") == 3
    assert page.count("b") == page.count("img") == 0
    assert "<" not in page.scripts[0]
    assert "<script" not in markdown
    assert "alert(" not in "".join(page.scripts)
    for table in read_markdown(markdown):
        assert {len(cells) for cells in table} == {len(table[0])}
    assert "<b>four" not in html + markdown


def test_names_are_text_in_tables_and_figures(tmp_path: Path) -> None:
    name = 'x<img src=y onerror="z">&'
    html, markdown = report_of(tmp_path, write_results(tmp_path, [Asked(name=name)]))
    page = read_html(html)
    assert page.count("img") == 0
    assert row(page.tables["table-1"], name)
    assert "<img" not in markdown
    named = {trace["name"] for figure in json.loads(page.scripts[0]) for trace in figure["data"] if trace["meta"].get("model")}
    assert named == {'x&lt;img src=y onerror="z"&gt;&amp;'}


def test_nothing_is_fetched_and_nothing_can_be(page: HtmlPage) -> None:
    for element in page.elements:
        assert "src" not in element.attributes
        href = element.attributes.get("href")
        assert href is None or href.startswith("#") or href == "data:,"
    (policy,) = (e.attributes["content"] for e in page.elements if e.attributes.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    # plotly would otherwise offer to upload a figure's data.
    assert "showSendToCloud: false" in page.scripts[2]
    style = STYLE.read_text(encoding="utf-8")
    assert "url(" not in style
    assert "@import" not in style


def test_the_bundle_is_of_plotly_s_version_and_draws_every_trace(full: tuple[str, str], page: HtmlPage) -> None:
    bundle = PLOTLY.read_text(encoding="utf-8")
    # If this fails after `make constraints`: `npm pack plotly.js-cartesian-dist-min@VERSION` has the file to put there.
    assert f"plotly.js (cartesian - minified) v{get_plotlyjs_version()}\n" in bundle
    assert sha256(bundle.encode()).hexdigest() == "79542150855a52c567260e3137095dbe2b744e6d702a5cabe67da246942fba7a"
    # No maps, no third dimension; the whole page is smaller than plotly.js.
    assert len(full[0]) < len(get_plotlyjs()) / 2
    drawn = {trace["type"] for figure in json.loads(page.scripts[0]) for trace in figure["data"]}
    assert drawn == {"scatter", "heatmap"}
    assert all(f'name:"{kind}"' in bundle for kind in drawn)
    assert not any(f'name:"{kind}"' in bundle for kind in ("scattermap", "surface"))


def test_equal_results_give_equal_bytes(results: tuple[Path, Params], full: tuple[str, str], tmp_path: Path) -> None:
    root, params = results
    again = tmp_path / "again"
    shutil.copytree(root, again, ignore=shutil.ignore_patterns("report-*"))
    assert report_of(again, params, "full") == full


def test_sections_stand_in_the_order_they_are_read(full: tuple[str, str], page: HtmlPage) -> None:
    order = ["summary", "registered", "runs", "nli", "direction", "grid", "sts", "similarity", "precision-recall", "learning"]
    order += ["direction-by-length", "variance", "calibration", "examples", "data"]
    assert [e.attributes["id"] for e in page.elements if e.tag == "section"] == order
    assert re.findall(r"^## (.*)$", full[1], re.MULTILINE)[:3] == ["In short", "What was registered, and why", "What was run"]
    ids = [e.attributes["id"] for e in page.elements if e.attributes.get("id")]
    assert len(ids) == len(set(ids))
    assert "gausscse version 3 is the challenger: development PR-AUC 61.00 against 61.50: a gain of" in page.text


def test_tables_say_what_their_rows_and_columns_are(page: HtmlPage) -> None:
    heads = [e for e in page.elements if e.tag == "th"]
    assert {e.attributes.get("scope") for e in heads} == {"col", "row"}
    assert page.count("table") == page.count("thead") == len(page.tables)
    captioned = {e.attributes["id"] for e in page.elements if e.tag == "figcaption"}
    labelled = [e.attributes.get("aria-labelledby") for e in page.elements if e.tag == "table" or e.attributes.get("role")]
    assert set(labelled) <= captioned
    canvases = [e for e in page.elements if e.attributes.get("class") == "canvas"]
    assert len(canvases) == len(json.loads(page.scripts[0])) > 10


def test_a_failed_variant_is_shown_with_its_reason(page: HtmlPage) -> None:
    failed = row(page.tables["table-1"], "hot")
    assert failed[2] == "–"
    assert set(failed[3:]) == {"failed"}
    assert "hot has no result: loss is not finite at step 3" in page.text
    assert [r[1] for r in page.tables["failures"] if r[0] == "main recipe"] == ["ent+con+rev-lr1e-05-b32-s1"]
    grid = page.tables["table-3"]
    assert grid[0] == ["learning rate", "batch 32", "batch 64"]
    assert row(grid, "1e-05")[1:] == ["1 failed, 2 finished", "2 finished, 1 stopped"]
    heat = next(f for f in json.loads(page.scripts[0]) if f["id"] == "heat-map-0")
    assert heat["data"][0]["z"][0] == [None, None]


def test_what_has_no_variance_has_no_direction(page: HtmlPage) -> None:
    assert set(row(page.tables["table-2a"], "simcse")[3:]) == {"not defined"}
    assert row(page.tables["table-4"], "simcse")[4] == "not defined"
    assert re.fullmatch(r"\d+\.\d ± \d+\.\d", row(page.tables["table-4"], "simcse")[3])


def test_the_best_of_a_column_is_bold_where_more_is_better(page: HtmlPage) -> None:
    for name in ("table-1", "table-1b", "table-2b", "table-4"):
        rows = page.tables[name]
        for at, heading in enumerate(rows[0]):
            numbers = {i: float(r[at].partition(" ")[0]) for i, r in enumerate(rows) if re.match(r"\d+\.\d", r[at])}
            numbers = {i: n for i, n in numbers.items() if rows[i][0] != "the paper's"}
            best = {i for i, n in numbers.items() if n == max(numbers.values())}
            bold = {i for i, k in page.bold[name] if k == at}
            assert bold == (set() if re.match("two-way|neutral|threshold", heading) or len(numbers) < 2 else best), (
                name,
                heading,
            )


def test_the_paper_stands_beside_its_own_sets_only(page: HtmlPage) -> None:
    header, *rows = page.tables["table-1"]
    said = [r for r in rows if r[0] == paper.ROW]
    assert [r[1] for r in said] == list(paper.OBJECTIVES)
    shown = {heading: cell for heading, cell in zip(header, said[-1], strict=True) if heading.partition(":")[2]}
    assert {heading: cell for heading, cell in shown.items() if cell != "–"} == {
        "sick_test: PR-AUC": "78.92",
        "snli_test: PR-AUC": "69.33",
    }
    accuracy = [dict(zip(page.tables[name][0], page.tables[name][-1], strict=True)) for name in ("table-1b", "table-1c")]
    assert [last["accuracy"] for last in accuracy] == ["84.37", "77.51"]
    assert "arXiv 2305.12990, Tables 1 and 2" in page.text
    # Its directions are those of all entailment pairs.
    for table in [name for name in page.tables if re.fullmatch("table-2.", name)]:
        for r in page.tables[table]:
            if r[0] == paper.ROW:
                given = {h for h, cell in zip(page.tables[table][0][3:], r[3:], strict=True) if cell != "–"}
                assert {re.sub(r" \([\d,]+\)", "", h) for h in given} == {"all: sim", "all: var"}
    assert page.tables["table-3-paper"][1] == ["1e-05", "64.39", "63.21", "60.79", "59.93", "58.86"]


@pytest.mark.parametrize("examples", ["full", "ids", "none"])
def test_the_worst_pairs_show_what_they_are_allowed_to(results: tuple[Path, Params], tmp_path: Path, examples: str) -> None:
    root, params = results
    copy = tmp_path / "copy"
    shutil.copytree(root, copy, ignore=shutil.ignore_patterns("report-*"))
    html, markdown = report_of(copy, params, examples)  # type: ignore[arg-type]
    page = read_html(html)
    sentence = "Nobody *sleeps* [here](there)."
    assert (sentence in page.text) == (examples == "full")
    assert ("Nobody" in html + markdown) == (examples == "full")
    assert ("examples" in {e.attributes.get("id") for e in page.elements}) == (examples != "none")
    if examples == "full":
        rows = page.tables["examples-0"]
        assert {r[0] for r in rows[1:]} == {"called entailment", "missed", "wrong direction"}
        # The fixture writes the row, counted from 0, behind every premise.
        assert all(r[6].endswith(f"({int(r[1]) - 1})") for r in rows[1:])
        assert all(float(r[4]) <= 0 for r in rows[1:] if r[0] == "wrong direction")


def test_the_device_of_every_final_model_is_shown(page: HtmlPage) -> None:
    heading, *shown = page.tables["seeds"]
    devices = {(r[heading.index("recipe")] == "main recipe", r[heading.index("device")]) for r in shown}
    assert devices == {(True, "cpu, 4 threads"), (False, "NVIDIA H200")}


def test_without_variants_there_is_one_row_and_no_switch_for_it(tmp_path: Path) -> None:
    html, markdown = report_of(tmp_path, write_results(tmp_path, []))
    page = read_html(html)
    names = ["recipe", "main recipe", "hypothesis-only", "chance", *[paper.ROW] * 5]
    assert [r[0] for r in page.tables["table-1"]] == names
    inputs = [e.attributes["name"] for e in page.elements if e.tag == "input"]
    assert inputs == ["view", "view", "seed", "seed", "seed"]
    assert "variants" not in markdown.partition("## What was run")[0].partition("\n\n")[2].partition("\n\n")[0]


def test_a_main_recipe_without_variances(tmp_path: Path) -> None:
    html, _ = report_of(tmp_path, write_results(tmp_path, [], objective="simcse"))
    page = read_html(html)
    assert set(row(page.tables["table-2a"], "main recipe")[3:]) == {"not defined"}
    assert "the main recipe's objective has no variances" in page.text
    assert not [e for e in page.elements if (e.attributes.get("id") or "").startswith(("similarity-0", "variance-0"))]


def test_curves_are_lean_and_have_their_spread(page: HtmlPage) -> None:
    figures = {figure["id"]: figure["data"] for figure in json.loads(page.scripts[0])}
    for traces in figures.values():
        for trace in traces:
            # A band has the upper and the lower line.
            assert len(trace["x"]) <= (404 if trace["meta"].get("band") else 200)
    views = [trace["meta"].get("view") for trace in figures["precision-recall-0"]]
    assert views.count("seeds") > views.count("mean") > 0
    assert any(trace["meta"].get("band") for trace in figures["learning-dev"])


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda root: (root / "results/evaluate/summary.json").unlink(), "summary.json: no such file; run `dvc repro`"),
        (lambda root: (root / "results/tune/trials.csv").write_text("seed\n1\n"), "trials.csv: not what its stage writes"),
        (
            lambda root: (root / "results/evaluate/scores/main recipe/dev/seed-2.parquet").write_text("x"),
            "seed-2.parquet: cannot be read",
        ),
        (lambda root: (root / "results/experiments/variants.json").write_text('[{"name": "x"}]'), "variants.json: not what its"),
    ],
)
def test_damaged_results_are_told_in_one_line(results: tuple[Path, Params], tmp_path: Path, damage: object, said: str) -> None:
    root, params = results
    copy = tmp_path / "copy"
    shutil.copytree(root, copy, ignore=shutil.ignore_patterns("report-*"))
    damage(copy)  # type: ignore[operator]
    with pytest.raises(UserError, match=re.escape(said)):
        report_of(copy, params)


def test_sentences_of_other_data_are_not_shown(results: tuple[Path, Params], tmp_path: Path) -> None:
    root, params = results
    copy = tmp_path / "copy"
    shutil.copytree(root, copy, ignore=shutil.ignore_patterns("report-*"))
    shutil.copy(copy / "data/prepared/dev/dev.parquet", copy / "data/prepared/tests/snli_test.parquet")
    with pytest.raises(UserError, match=r"snli_test\.parquet: 240 rows, but 260 were scored"):
        report_of(copy, params, "full")


def test_test_sets_come_after_the_development_set(results: tuple[Path, Params]) -> None:
    content = content_of(*results)
    assert content.nli_sets == ("dev", "sick_test", "snli_test")
    assert content.sts_sets == ("stsb_test",)
    assert content.figure_sets == ("sick_test", "snli_test")


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_colours_can_be_told_from_their_background(scheme: int) -> None:
    block = STYLE.read_text(encoding="utf-8").split(":root {")[1 + scheme].partition("}")[0]
    colours = dict(re.findall(r"--(\w+): (#\w{6})", block))

    def contrast(one: str, other: str) -> float:
        light, dark = sorted((luminance(colours[one]), luminance(colours[other])), reverse=True)
        return (light + 0.05) / (dark + 0.05)

    for text in ("fg", "soft", "link", "warn", "muted"):
        assert min(contrast(text, "bg"), contrast(text, "shade")) >= 4.5, text
    for series in range(8):
        assert contrast(f"s{series}", "bg") >= 3, series
