"""A real browser, and a page in it with whatever it complained of."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar, Self

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

REQUIRED = "GAUSSCSE_REQUIRE_CHROMIUM"
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
WIDE = 1200, 900


@contextmanager
def chromium() -> Iterator[Browser]:
    """Headless Chromium; without one the test is skipped, or fails where one is required."""
    # Debian's by its path first: a wrapper of the same name may stand before it.
    names = ("/usr/bin/chromium", "chromium", "chromium-browser", "google-chrome")
    executable = next(filter(None, map(shutil.which, names)), None)
    if executable is None or importlib.util.find_spec("playwright") is None:
        why = f"no Chromium, or playwright is not installed (set {REQUIRED}=1 to make this a failure)"
        if os.environ.get(REQUIRED) == "1":
            pytest.fail(why)
        pytest.skip(why)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=executable, args=list(ARGUMENTS))
        yield started
        started.close()


class Opened:
    """The page, and whatever it complained of or asked for."""

    READY: ClassVar[str] = "document.readyState === 'complete'"
    """Holds once the page is there."""

    def __init__(self, browser: Browser, address: str, size: tuple[int, int], *, touch: bool = False) -> None:
        width, height = size
        self._context = browser.new_context(viewport={"width": width, "height": height}, has_touch=touch)
        self.page: Page = self._context.new_page()
        self.wrong: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.wrong.append(message.text) if message.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(address)
        self.until(self.READY)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._context.close()

    def until(self, condition: str, seconds: float = 60) -> None:
        """Wait for what follows an event; playwright's own waiting needs eval, which the pages forbid."""
        for _ in range(int(10 * seconds)):
            if self.page.evaluate(condition):
                return
            self.page.wait_for_timeout(100)
        pytest.fail(f"not within {seconds:g} seconds: {condition}")
