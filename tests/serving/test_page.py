"""The page at / in a real browser: what it shows is what the encoder computes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from pipeline.data.schema import RELATIONS, RelationName
from pipeline.gaussian.distribution import Gaussian
from pipeline.inference.corpus import read_gaussians
from pipeline.inference.entailment_index import EntailmentIndex
from pipeline.models.encoder import GaussianEncoder
from pipeline.models.model_dir import CARD, DEMONSTRATION
from pipeline.models.threshold import Calibration
from pipeline.utils.atomic_io import write_sums
from tests.chromium import WIDE, Opened
from tests.relations import drawn_relation
from tests.serving.server import SENTENCES, Registry, Server, serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.faults

TOKEN = "a-token-of-more-than-16"
A, B = "A dog runs.", "An animal sleeps; <b>nobody</b> sings."
# Shown as text, or else the test finds a request or an element that must not be.
MARKUP = '<img src="/nothing" onerror="document.title=1">'
# The relations of B and A, named as those of A and B.
ORDER: tuple[RelationName, ...] = ("reversed", "neutral", "contradiction", "entailment")
WORDS: dict[RelationName, str] = {
    "entailment": "A entails B",
    "reversed": "B entails A",
    "neutral": "Neither entails the other",
    "contradiction": "A and B contradict each other",
}


@pytest.fixture(scope="module")
def corpus(registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> str:
    def with_relation(encoder: GaussianEncoder) -> None:
        encoder.relation_head = drawn_relation()
        # So low that a pair may be called an entailment though another relation is likelier.
        encoder.calibration = Calibration(threshold=0.2, entailment_if=">=", swept_on="dev", pairs="d" * 64, accuracy=80.0)

    def with_card(folder: Path) -> None:
        (folder / CARD).write_text(f"# served\n\n{DEMONSTRATION}\n", encoding="utf-8")
        write_sums(folder)

    number = registry.add(1, with_relation, with_card)
    table = pa.table({"sentence": [*SENTENCES, MARKUP], "note": [f"n{k}" for k in range(len(SENTENCES) + 1)]})
    return registry.encode_corpus(number, table, tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def server(registry: Registry, corpus: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    options = ["--corpus", corpus, "--max-characters", "200"]
    with serving(registry, tmp_path_factory.mktemp("server"), options, token=TOKEN) as running:
        yield running


class Page(Opened):
    """The page with its token given."""

    READY = "!document.getElementById('access').hidden"

    def __init__(self, browser: Browser, server: Server) -> None:
        super().__init__(browser, f"http://127.0.0.1:{server.port}/", WIDE)
        assert self.text("#state") == "This server asks for a token."
        assert not self.page.locator("main").is_visible()
        self.page.fill("#token", TOKEN)
        self.page.click("#access button")
        self.until("!document.querySelector('main').hidden")
        # The first request had no token, which the browser's console notes.
        assert all("401" in line for line in self.wrong), self.wrong
        self.wrong.clear()

    def text(self, selector: str) -> str:
        return self.page.locator(selector).inner_text()

    def compare(self, a: str, b: str) -> None:
        self.page.fill("#a", a)
        self.page.fill("#b", b)
        self.page.click("#compare button >> nth=0")
        self.until("!document.querySelector('#compare button').disabled", 60)

    def rows(self) -> dict[str, str]:
        """The numbers by their words."""
        cells = self.page.locator("#bars tr").evaluate_all("(rows) => rows.map((row) => row.innerText.split('\\t'))")
        return {words.strip(): " ".join(number.strip() for number in numbers).strip() for words, *numbers in cells}

    def search(self, query: str, way: str) -> list[str]:
        self.page.fill("#query", query)
        self.page.check(f"[name=way][value={way}]")
        self.page.click("#search button")
        self.until("!document.querySelector('#search button').disabled", 60)
        return self.page.locator("#results li").all_inner_texts()


def test_the_numbers_and_the_verdict_are_the_encoders(registry: Registry, server: Server, browser: Browser) -> None:
    encoder = registry.encoder(1)
    chances, turned = ([float(chance) for chance in encoder.relation([a], [b])] for a, b in ((A, B), (B, A)))
    with Page(browser, server) as opened:
        opened.compare(A, B)
        rows = opened.rows()
        expected = dict(zip(RELATIONS, chances, strict=True))
        # The answer of the other order is in the row that says the same of A and B.
        other = dict(zip(ORDER, turned, strict=True))
        for name, words in WORDS.items():
            assert rows[words] == f"{100 * expected[name]:.1f} % {100 * other[name]:.1f} %"
        best = encoder.decide(A, B)
        assert opened.text("#verdict").startswith(f"{WORDS[best]} ({100 * expected[best]:.1f} %).")
        for words, first, second in (("A entails B", B, A), ("B entails A", A, B)):
            (sim,) = encoder.similarity([first], [second]).tolist()
            assert float(rows[f"Score of “{words}”"]) == pytest.approx(sim, abs=2e-4)
        assert opened.text("#state") == f"{registry.name}/1 answers. {DEMONSTRATION}"
        opened.page.click("#swap")
        opened.until("!document.querySelector('#compare button').disabled", 60)
        assert opened.page.input_value("#a") == B
        assert opened.rows()["Score of “A entails B”"] == rows["Score of “B entails A”"]
        assert opened.wrong == []
        assert {url.split("/")[2] for url in opened.asked if not url.startswith("data:")} == {f"127.0.0.1:{server.port}"}


def test_answers_that_change_with_the_order_are_called_so(registry: Registry, server: Server, browser: Browser) -> None:
    encoder = registry.encoder(1)
    turned = dict(zip(RELATIONS, ORDER, strict=True))
    pairs = [(a, b) for a in SENTENCES for b in SENTENCES if a < b]
    said: list[tuple[RelationName, RelationName]] = [(encoder.decide(a, b), encoder.decide(b, a)) for a, b in pairs]
    same = [turned[back] == forth for forth, back in said]
    with Page(browser, server) as opened:
        for row in (same.index(True), same.index(False)):
            opened.compare(*pairs[row])
            forth, back = said[row]
            doubt = f"Asked in the other order, it says: {WORDS[turned[back]]}. Trust neither."
            assert opened.text("#verdict").startswith(WORDS[forth])
            assert opened.text("#verdict").endswith(doubt) is not same[row]


def test_the_examples_show_what_the_model_says_of_each_right_or_wrong(
    registry: Registry, server: Server, browser: Browser
) -> None:
    encoder = registry.encoder(1)
    with Page(browser, server) as opened:
        opened.until("!document.getElementById('examples').hidden", 60)
        lines = opened.page.locator("#answered li").all_inner_texts()
        pairs = [re.findall("“(.*?)”", line) for line in lines]
        chances = np.stack(encoder.relation([a for a, _ in pairs], [b for _, b in pairs]), 1)
        assert len(lines) >= 10
        right = 0
        names = encoder.decide([a for a, _ in pairs], [b for _, b in pairs])
        assert any(name != RELATIONS[row.argmax()] for name, row in zip(names, chances, strict=True))
        for line, row, name in zip(lines, chances, names, strict=True):
            said, true = re.search(r"(?:Right|Wrong): (.*?) \(.*?\)(?:; true is: (.*))?\.$", line).groups()  # type: ignore[union-attr]
            assert said == WORDS[name]
            assert f"({100 * row[RELATIONS.index(name)]:.1f} %)" in line
            right += true is None
            assert ("Wrong" in line) == (true is not None) and true != said
        assert 0 < right < len(lines)
        assert f"{right} of {len(lines)} are right" in opened.text("#examples-note")
        row = names.index(next(name for name in names if name != "entailment"))
        opened.page.locator("#answered li button").nth(row).click()
        opened.until("!document.querySelector('#compare button').disabled && !document.getElementById('comparison').hidden", 60)
        assert (opened.page.input_value("#a"), opened.page.input_value("#b")) == tuple(pairs[row])
        assert opened.text("#verdict").startswith(WORDS[names[row]])
        # Nothing green: one entails the other in blue, a contradiction in orange.
        colours = opened.page.locator("#bars tr").evaluate_all(
            "(rows) => rows.map((row) => [row.className, getComputedStyle(row.querySelector('meter')).getPropertyValue('--bar')])"
        )
        assert dict(colours[:4]) == {
            "entailment": "#0072b2",
            "reversed": "#0072b2",
            "neutral": "#565c63",
            "contradiction": "#c44e00",
        }
        assert opened.wrong == []


def drawn(opened: Page) -> list[dict[str, float]]:
    ellipses: Any = opened.page.locator("ellipse").evaluate_all(
        "(all) => all.map((e) => Object.fromEntries(['cx', 'cy', 'rx', 'ry'].map((name) => [name, +e.getAttribute(name)])))"
    )
    return ellipses


def seen(gaussian: Gaussian) -> tuple[float, list[NDArray[np.float64]]]:
    """How far apart two means are, and the standard deviations along the axes of each ellipse, by numpy's eigenvectors."""
    mean, variance = gaussian.mean.double().numpy(), gaussian.variance.double().numpy()
    between = mean[1] - mean[0]
    x = between / np.linalg.norm(between)
    away = np.eye(len(x)) - np.outer(x, x)
    values, vectors = np.linalg.eigh(away @ np.diag(variance[0] - variance[1]) @ away)
    plane = np.stack([x, vectors[:, np.abs(values).argmax()]])
    covariances = [plane @ np.diag(row) @ plane.T for row in variance]
    return float(np.linalg.norm(between)), [np.sqrt(np.linalg.eigvalsh(c))[::-1] for c in covariances]


def test_the_ellipses_are_those_of_the_gaussians(registry: Registry, server: Server, browser: Browser) -> None:
    distance, axes = seen(registry.encoder(1).encode([A, B]))
    with Page(browser, server) as opened:
        opened.compare(A, B)
        first, second = drawn(opened)
        scale = (second["cx"] - first["cx"]) / distance
        assert first["cy"] == second["cy"]
        for ellipse, (long, short) in zip((first, second), axes, strict=True):
            assert ellipse["rx"] == pytest.approx(max(1, long * scale), rel=0.01)
            assert ellipse["ry"] == pytest.approx(max(1, short * scale), rel=0.01)
        assert opened.page.get_attribute("#gaussians", "aria-label").startswith(  # type: ignore[union-attr]
            f"Two ellipses. The means are {distance:.3f} apart"
        )
        # One is called broader only if its standard deviation is larger by a tenth.
        for pair in ((A, B), (SENTENCES[0], SENTENCES[5])):
            opened.compare(*pair)
            log_var = registry.encoder(1).encode(pair).log_var.double().mean(1) / 2
            ratio = float(log_var[0] - log_var[1])
            words = "neither is clearly broader" if abs(ratio) < 0.1 else f"{'A' if ratio > 0 else 'B'} is the broader one"
            assert words in opened.text("#gaussians-note")
        # Nothing to divide by, and still two ellipses.
        opened.compare(A, A)
        assert all(np.isfinite(list(ellipse.values())).all() and ellipse["rx"] > 1 for ellipse in drawn(opened))
        assert opened.wrong == []


def test_the_corpus_is_searched_both_ways(registry: Registry, corpus: str, server: Server, browser: Browser) -> None:
    index, encoder = EntailmentIndex.build(read_gaussians(corpus).gaussians), registry.encoder(1)
    with Page(browser, server) as opened:
        for way in ("entails", "entailed"):
            matches = index.search(encoder.encode([A]), way, 10)
            lines = opened.search(A, way)
            assert [int(re.search(r"n(\d+)", line)[1]) for line in lines] == matches.rows[0].tolist()  # type: ignore[index]
        assert opened.search(MARKUP, "entails")[0].startswith(f"{MARKUP} · n{len(SENTENCES)}")
        assert opened.page.locator("#results img").count() == 0
        assert opened.page.title().startswith("GaussCSE")
        assert opened.text("#found") == f"Best first, by {registry.name}/1:"
        assert opened.wrong == []
