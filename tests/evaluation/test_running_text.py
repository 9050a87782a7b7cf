"""The next sentence and CURL's bound, against loops over every draw that can happen."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

from pipeline.families.text import command_curl as command
from pipeline.families.text.documents import Document
from pipeline.families.text.running_text import Text, by_cosine, curl, embedded, neighbours, next_sentence
from pipeline.utils.errors import UserError
from tests.trial_of import tiny_encoder

SIZES = (2, 4, 3)


@pytest.fixture
def text() -> Text:
    random = np.random.default_rng(1)
    document = np.repeat(np.arange(len(SIZES)), SIZES)
    topic = random.normal(size=(len(SIZES), 5))[document]
    return Text((topic + 0.8 * random.normal(size=topic.shape)).astype(np.float32), document)


def loss(margin: float) -> float:
    return math.log2(1 + math.exp(-margin))


def by_every_draw(text: Text, b: int) -> float:
    """The unsupervised loss over every sentence, every block of its document, and every block of every document."""
    x, document = text.features.astype(np.float64), text.document
    rows = [np.flatnonzero(document == c) for c in range(len(SIZES))]
    total = 0.0
    for i, c in enumerate(document):
        for other in document:
            blocks = itertools.product(itertools.product(rows[c], repeat=b), itertools.product(rows[other], repeat=b))
            losses = [loss(x[i] @ (x[list(yes)].mean(0) - x[list(no)].mean(0))) for yes, no in blocks]
            total += sum(losses) / len(losses)
    return total / len(document) ** 2


def by_every_run(text: Text, b: int) -> float:
    """The same where a block is what follows a sentence."""
    x, document = text.features.astype(np.float64), text.document
    allowed = [i for i in range(len(document)) if i + b < len(document) and document[i + b] == document[i]]
    means = {i: x[i + 1 : i + b + 1].mean(0) for i in allowed}
    losses = [loss(x[i] @ (means[i] - means[j])) for i in allowed for j in allowed]
    return sum(losses) / len(losses)


def supervised(text: Text) -> float:
    x, document = text.features.astype(np.float64), text.document
    means = [x[document == c].mean(0) for c in range(len(SIZES))]
    losses = [
        loss(x[i] @ (means[document[i]] - means[document[j]]))
        for i in range(len(document))
        for j in range(len(document))
        if document[i] != document[j]
    ]
    return sum(losses) / len(losses)


@pytest.mark.parametrize("b", [1, 2])
def test_the_losses_are_those_of_all_draws(text: Text, b: int) -> None:
    (found,) = curl(text, [b], 200_000, seed=1)
    same = sum(i == j for i in text.document for j in text.document)
    assert found.drawn.collision == pytest.approx(same / len(text.document) ** 2)
    assert found.supervised == pytest.approx(supervised(text), abs=1e-6)
    assert found.drawn.loss == pytest.approx(by_every_draw(text, b), abs=4 * found.drawn.error)
    assert found.following.loss == pytest.approx(by_every_run(text, b), abs=4 * found.following.error)
    assert 0 < found.drawn.error < 0.004
    # The theorem, on every draw and so without an error of sampling.
    exact = (by_every_draw(text, b) - found.drawn.collision) / (1 - found.drawn.collision)
    assert found.supervised <= exact


def test_the_standard_error_is_that_of_repeated_runs(text: Text) -> None:
    runs = [next(curl(text, [2], 500, seed)) for seed in range(60)]
    for loss_name in ("drawn", "following"):
        spread = np.std([getattr(run, loss_name).loss for run in runs], ddof=1)
        errors = np.mean([getattr(run, loss_name).error for run in runs])
        assert errors == pytest.approx(spread, rel=0.35)


def test_where_a_block_follows_the_collision_is_that_of_the_sentences_that_take_part(text: Text) -> None:
    (two, three) = curl(text, [2, 3], 100, seed=1)
    # Blocks of two follow the first two sentences of the second document, and the first one of the third.
    assert two.following.collision == pytest.approx((2 / 3) ** 2 + (1 / 3) ** 2)
    assert two.following.bound == pytest.approx((two.following.loss - 5 / 9) / (4 / 9))
    # Blocks of three follow sentences of one document only.
    assert math.isnan(three.following.loss) and math.isnan(three.following.bound) and not math.isnan(three.drawn.loss)


def test_the_supervised_loss_is_the_same_in_slices(text: Text, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.families.text.running_text._GATHERED", 6)
    (found,) = curl(text, [1], 10, seed=1)
    assert found.supervised == pytest.approx(supervised(text), abs=1e-6)


def by_loop(features: NDArray[np.float32], document: NDArray[np.int64], among: int) -> list[bool]:
    def cosine(a: int, b: int) -> float:
        x, y = features[a].astype(np.float64), features[b].astype(np.float64)
        return float(x @ y / np.linalg.norm(x) / np.linalg.norm(y))

    pairs = [(i, i + 1) for i in range(len(document) - 1) if document[i] == document[i + 1]]
    right: list[bool] = []
    for start in range(0, len(pairs) - among + 1, among):
        group = pairs[start : start + among]
        for i, following in group:
            others = [cosine(i, j) for _, j in group if j not in (i, following)]
            right.append(cosine(i, following) > max(others))
    return right


def test_the_next_sentence_is_looked_for_among_those_of_its_group() -> None:
    random = np.random.default_rng(3)
    document = np.repeat(np.arange(9), random.integers(1, 12, 9))
    features = np.cumsum(random.normal(size=(len(document), 4)), axis=0).astype(np.float32)
    expected = by_loop(features, document, 7)
    assert 0 < sum(expected) < len(expected)
    assert next_sentence(neighbours(document, 7), by_cosine(features)).tolist() == expected


def test_equally_similar_candidates_are_wrong() -> None:
    features = np.ones((6, 3), np.float32)
    assert not next_sentence(neighbours(np.zeros(6, np.int64), 4), by_cosine(features)).any()


def encode(sentences: list[str]) -> NDArray[np.float32]:
    return np.array([[len(sentence), 1] for sentence in sentences], np.float32)


def test_documents_become_rows_in_order_and_empty_ones_are_left_out() -> None:
    documents = [Document("a", ["1", "22", "333"]), Document("b", []), Document("c", ["4444", "55555"])]
    text = embedded(documents, encode, most=2)
    assert text.features[:, 0].tolist() == [1, 2, 4, 5]
    assert text.document.tolist() == [0, 0, 1, 1]
    with pytest.raises(UserError, match="1 document with sentences"):
        embedded(documents[:2], encode)
    with pytest.raises(UserError, match="no document has two sentences in a row"):
        embedded(documents, encode, most=1)
    with pytest.raises(UserError, match="not finite"):
        embedded(documents, lambda sentences: encode(sentences) * np.nan)


def test_the_command_prints_the_table(tmp_path: Path, tiny_backbone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    encoder = tiny_encoder(tiny_backbone)
    encoder.save_pretrained(tmp_path / "model")
    said = [[f"This is sentence {k} of text {name}." for k in range(25)] for name in ("one", "two", "three")]
    rows = [{"body": sentence, "book": number} for number, sentences in enumerate(said) for sentence in sentences]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "t.parquet")
    options = ["--column", "body", "--document", "book", "--most", "24", "--norm", "7", "--seed", "3"]
    blocks = ["--blocks", "1", "3", "--draws", "500"]
    command.main([str(tmp_path / "model"), str(tmp_path / "t.parquet"), *options, *blocks])
    first, following, header, *printed = capsys.readouterr().out.splitlines()
    assert first == "3 documents, 72 sentences"
    means = encoder.encode([sentence for sentences in said for sentence in sentences[:24]]).mean.numpy()
    text = Text(means * (7 / (means**2).sum(1, keepdims=True)) ** 0.5, np.repeat(np.arange(3), 24))
    share = 100 * np.mean(by_loop(text.features, text.document, 64))
    assert following == f"next sentence among 64: {share:.1f} % of 64; chance 1.6 %"
    assert len(header.split("\t")) == 10
    for line, found in zip(printed, curl(text, [1, 3], 500, seed=3), strict=True):
        numbers = [float(number) for number in line.split("\t")]
        drawn, following = found.drawn, found.following
        expected = [found.block, drawn.collision, found.supervised, drawn.bound, drawn.loss, drawn.error]
        expected += [following.collision, following.bound, following.loss, following.error]
        assert numbers == pytest.approx(expected, abs=2e-4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--blocks", "0"], "--blocks: '0' is not a whole number from 1 to"),
        (["--norm", "nan"], "--norm: 'nan' is not a number above 0"),
        (["--most", "1"], "--most: '1' is not a whole number from 2 to"),
    ],
)
def test_options_that_make_no_sense_are_refused(arguments: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        command.main(["nowhere", "nothing.txt", *arguments])
