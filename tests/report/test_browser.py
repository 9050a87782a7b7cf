"""The page in a real browser, wide and on a phone: nothing fetched, nothing failing, every figure drawn in its place."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pipeline.config.params import Params
from pipeline.report.writing import HTML
from tests.chromium import Opened

if TYPE_CHECKING:
    from playwright.sync_api import Browser


class Report(Opened):
    """Opened, with all figures drawn."""

    READY = "document.querySelectorAll('.plotly-graph-div:not(.js-plotly-plot)').length === 0"


@pytest.mark.parametrize("size", [(1366, 900), (390, 844)], ids=["wide", "phone"])
def test_the_page_fits_and_every_figure_is_drawn(
    browser: Browser, results: tuple[Path, Params], full: tuple[str, str], size: tuple[int, int]
) -> None:
    address = (results[0] / "report-full" / HTML).as_uri()
    with Report(browser, address, size, touch=size[0] < 400) as opened:
        page = opened.page
        assert page.locator(".plotly-graph-div").count() > 10
        assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
        # A wide table scrolls in its own box.
        table = page.eval_on_selector("#table-2-1 .scroll", "(box) => [box.scrollWidth > box.clientWidth, box.clientWidth]")
        assert table[0]
        assert table[1] <= size[0]
        # Every such table says so, and no other.
        wrong = page.eval_on_selector_all(
            "figure.table:not(details *)",
            """(all) => all.filter((figure) => {
                const box = figure.querySelector('.scroll'), cue = figure.querySelector('.cue');
                return (box.scrollWidth > box.clientWidth) !== (cue.offsetHeight > 0);
            }).map((figure) => figure.id)""",
        )
        assert wrong == []
        # The first screen has the verdict; a wide one also what to try next, and a phone the confusion without scrolling aside.
        ends = {name: page.locator(name).first.bounding_box() for name in (".verdict", ".try-next", "nav")}
        shown = {name: box["y"] + box["height"] for name, box in ends.items() if box}
        assert shown[".verdict"] < 400 < shown["nav"] and (size[0] < 400 or shown[".try-next"] < size[1])
        assert page.locator("#confusion-0 .cue").is_hidden()
        # Two figures share a row of a wide page; on a phone each has the whole width.
        columns = page.eval_on_selector(".figures", "(box) => getComputedStyle(box).gridTemplateColumns.split(' ').length")
        assert columns == (2 if size[0] > 1000 else 1)
        undrawn = page.evaluate(
            """() => [...document.querySelectorAll('.plotly-graph-div')].filter((div) => {
                const box = div.querySelector('svg.main-svg')?.getBoundingClientRect();
                const outside = box && Math.abs(box.width - div.parentElement.getBoundingClientRect().width) > 2;
                const drawn = div.querySelectorAll('.scatterlayer path[d], .barlayer path[d]').length;
                // The area of the plot, between its axes.
                const used = div.querySelector('.nsewdrag')?.getBoundingClientRect().width > 0.6 * box?.width;
                return !box || outside || box.width < 300 || !drawn || !used || !div.querySelector('.xtick');
            }).map((div) => div.id)"""
        )
        assert undrawn == []
        assert opened.wrong == []
        assert opened.asked == [address]
