"""The pages of docs/ as `make docs` has built them, opened as files in a real browser. `make docs` runs this."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.chromium import WIDE, Opened
from tests.copies import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Browser

SITE = ROOT / "build/site"


@pytest.mark.parametrize(("words", "page"), [("shadow check", "serving.html"), ("pairwise_similarity", "reference.html")])
def test_the_search_works_without_a_server_and_a_network(browser: Browser, words: str, page: str) -> None:
    with Opened(browser, f"file://{SITE}/index.html", WIDE) as opened:
        # Key by key: the page looks at the field when a key is released, so text put in at once may go unseen.
        opened.page.locator("[data-md-component=search-query]").press_sequentially(words)
        hit = f"document.querySelector('[data-md-component=search-result] a[href*=\"{page}\"]') !== null"
        opened.until(hit)
        assert opened.wrong == []
        assert all(address.startswith(("file://", "about:", "data:")) for address in opened.asked), opened.asked
