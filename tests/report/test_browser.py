"""The page in a real browser: light, dark, on a phone, on paper; nothing fetched, nothing failing, every figure drawn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

from pipeline.config.params import Params
from pipeline.report.writing import HTML
from tests.chromium import PHONE, WIDE, Opened, chromium
from tests.report.conftest import report_of

if TYPE_CHECKING:
    from playwright.sync_api import Browser

BLUE, BLUE_ON_DARK = "rgb(0, 114, 178)", "rgb(86, 180, 233)"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def address(results: tuple[Path, Params], full: tuple[str, str]) -> str:
    return (results[0] / "report-full" / HTML).as_uri()


class Report(Opened):
    """Opened, with all figures drawn."""

    READY = "document.querySelectorAll('.canvas:not(.js-plotly-plot)').length === 0"

    def colour(self) -> str:
        """Of the first recipe's markers."""
        return self.page.evaluate("getComputedStyle(document.querySelector('#learning-dev-canvas .points path')).fill")

    def undrawn(self) -> list[str]:
        """Figures without axes, or without a line, marker or field in them."""
        return self.page.evaluate(
            """() => [...document.querySelectorAll('.canvas')].filter((canvas) => {
                const box = canvas.querySelector('svg.main-svg')?.getBoundingClientRect();
                const drawn = canvas.querySelectorAll('.plot path[d], .plot image').length;
                return !box || box.width < 200 || box.height < 200 || !drawn || !canvas.querySelector('.xtick, .ytick');
            }).map((canvas) => canvas.id)"""
        )


@pytest.mark.parametrize("mode", ["light", "dark", "phone", "print"])
def test_the_page_in_every_dress(browser: Browser, address: str, tmp_path: Path, mode: str) -> None:
    scheme: Literal["light", "dark"] = "dark" if mode == "dark" else "light"
    with Report(browser, address, PHONE if mode == "phone" else WIDE, scheme, touch=mode == "phone") as opened:
        page = opened.page
        if mode == "print":
            page.emulate_media(media="print")
            opened.until("[...document.querySelectorAll('details')].every((one) => one.open)")
            opened.until("document.querySelector('svg.main-svg').getBoundingClientRect().width < 700")
            assert page.locator("form.switches").is_hidden()
        assert page.locator(".canvas").count() > 10
        assert page.evaluate("document.documentElement.scrollWidth") <= page.viewport_size["width"]  # type: ignore[index]
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert paper == ("rgb(20, 23, 26)" if mode == "dark" else "rgb(255, 255, 255)")
        assert opened.colour() == (BLUE_ON_DARK if mode == "dark" else BLUE)
        if mode == "light":
            # The figures follow when the scheme changes.
            page.emulate_media(color_scheme="dark")
            opened.until(
                f"getComputedStyle(document.querySelector('#learning-dev-canvas .points path')).fill === '{BLUE_ON_DARK}'"
            )
        if mode == "phone":
            # A wide table scrolls in its own box.
            wider = "(box) => [box.scrollWidth > box.clientWidth, box.clientWidth <= 390]"
            assert page.eval_on_selector("#table-1 .scroll", wider) == [True, True]
        if mode == "print":
            page.pdf(path=tmp_path / "report.pdf", prefer_css_page_size=True)
            assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")
        assert opened.undrawn() == []
        assert opened.wrong == []
        assert opened.asked == [address]


def test_a_switch_for_the_seeds_and_one_for_each_recipe(browser: Browser, address: str) -> None:
    def drawn(figure: str) -> list[str]:
        return page.evaluate(f"document.getElementById('{figure}-canvas').data.map((t) => t.name + ':' + (t.meta.view || ''))")

    with Report(browser, address, WIDE) as opened:
        page = opened.page
        assert set(drawn("learning-dev")) == {"main recipe:mean", "ent:mean", "simcse:mean"}
        page.get_by_label("single seeds").check()
        assert sorted(drawn("learning-dev")) == sorted(3 * ["main recipe:seeds", "ent:seeds", "simcse:seeds"])
        page.get_by_label("simcse").uncheck()
        assert set(drawn("learning-dev")) == {"main recipe:seeds", "ent:seeds"}
        page.get_by_label("seed 1").uncheck()
        assert sorted(drawn("learning-dev")) == sorted(2 * ["main recipe:seeds", "ent:seeds"])
        # Each recipe still has its entry in the legend.
        assert page.locator("#learning-dev-canvas .legendtext").all_text_contents() == ["main recipe", "ent"]
        page.get_by_label("seed 1").check()
        assert set(drawn("precision-recall-0")) == {"main recipe:seeds", "ent:seeds", "chance:"}
        page.get_by_label("simcse").check()
        page.get_by_label("mean over seeds").check()
        assert set(drawn("learning-dev")) == {"main recipe:mean", "ent:mean", "simcse:mean"}
        assert page.get_by_label("seed 1").is_disabled()
        assert opened.undrawn() == []
        assert opened.wrong == []


def test_pointing_at_a_figure_shows_the_exact_value(browser: Browser, address: str) -> None:
    with Report(browser, address, WIDE) as opened:
        page = opened.page
        page.locator("#learning-dev").scroll_into_view_if_needed()
        point = page.locator("#learning-dev-canvas .points path.point").first
        box = point.bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        shown = page.locator("#learning-dev-canvas .hoverlayer .hovertext").first
        shown.wait_for()
        text = shown.text_content() or ""
        # The curves nearly meet at their first point, so it may be that of either recipe.
        values = page.evaluate(
            "document.getElementById('learning-dev-canvas').data.filter((t) => !t.meta.band).map((t) => t.y[0])"
        )
        assert [value for value in values if f"step 20development PR-AUC {value:.4f}" in text]
        titles = page.eval_on_selector_all(".modebar-btn", "(buttons) => buttons.map((one) => one.dataset.title)")
        assert titles
        assert not [title for title in titles if "loud" in title or "hare" in title]
        assert opened.asked == [address]


def test_without_variants_there_is_no_switch_for_recipes(browser: Browser, tmp_path: Path) -> None:
    from tests.report.results import write_results

    report_of(tmp_path, write_results(tmp_path, []))
    with Report(browser, (tmp_path / "report-ids" / HTML).as_uri(), WIDE) as opened:
        assert opened.page.locator("input[name=model]").count() == 0
        assert opened.undrawn() == []
        assert opened.wrong == []
