"""The profile of prepared data: every count against one made in plain Python, every oddity found, every warning given."""

from __future__ import annotations

import copy
import json
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.data.measure import FIRST_ROWS, define_macros, measure
from pipeline.data.schema import PAIRS, STS
from pipeline.data.scratch import Database, database
from pipeline.families.pairs.baselines import hypothesis_only_of, read_hypotheses
from pipeline.families.pairs.profile import profile
from pipeline.families.pairs.warn import warnings

Row = tuple[str, str, str]
PLAIN = "The dog runs on the beach."

ODD = {
    "long": ["the " * 300 + "end"],
    "no_letter": ["1984", "3.14 (15)", "..."],
    "control": ["A bell\x07 rings.", "A\x00 null.", "A curly \x93quote."],
    "html": ["Salt &amp; pepper.", "A &#39; sign.", "It is <b>bold</b>.", 'See <a href="x">this</a>.', "One<br/>two."],
    "treebank_bracket": ["A dog -LRB- brown -RRB- runs."],
    "replacement_character": ["A caf\ufffd is open."],
    "mojibake": ["A cafÃ© is open.", "It doesnâ€™t run.", "A noteÂ\u00a0here."],
    "no_function_word": ["Ein großer brauner Hund rennt schnell durch tiefen Schnee heute."],
    "other_script": ["Собака бежит.", "狗在跑。", "犬が走る。", "Σκύλος τρέχει.", "ძაღლი გარბის."],
}
LEGAL = [
    PLAIN,
    "A naïve café owner – “open” – isn’t here…",
    "AT&T and R&B; 3 < 5 > 2.",
    "She waits... and waits.",
    "NASA has 3 rockets.",
    'He said "no" to it.',
    "The .5 share.",
    "Don't run, it's late; the dogs' owner won't.",
    "It costs 5 € or £4, São Paulo time.",
    "Dogs run quickly.",
    "The word собака is Russian for dog.",
]


def nli(path: Path, rows: list[Row]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = [*map(list, zip(*rows, strict=True)), ["here"] * len(rows), [None] * len(rows)]
    pq.write_table(pa.table(columns, schema=PAIRS), path, row_group_size=1000)
    return path


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    with database(tmp_path_factory.mktemp("scratch") / "db") as connection:
        define_macros(connection)
        yield connection


def measured(connection: Database, path: Path, rows: list[Row]) -> dict[str, Any]:
    return measure(connection, nli(path, rows), ("premise", "hypothesis"), "label")


def test_every_oddity_is_found_in_its_row_and_side(connection: Database, tmp_path: Path) -> None:
    texts = [(kind, text) for kind, examples in ODD.items() for text in examples]
    found = measured(connection, tmp_path / "x.parquet", [(PLAIN, text, "neutral") for _, text in texts])["oddities"]
    assert set(found) == set(ODD)
    for kind, examples in ODD.items():
        own = [row for row, (of, _) in enumerate(texts, 1) if of == kind]
        number = len(examples)
        assert found[kind] == {"rows": number, "premise": 0, "hypothesis": number, "first_rows": own[:FIRST_ROWS]}, kind
    legal = [(text, PLAIN + " It is so.", "neutral") for text in LEGAL]
    assert measured(connection, tmp_path / "y.parquet", legal)["oddities"] == {}


def test_first_rows_are_the_first_and_a_pair_counts_once(connection: Database, tmp_path: Path) -> None:
    odd = "A dog &amp; a cat."
    rows = [(odd, odd, "neutral") if i % 700 == 3 else (PLAIN, "Dogs run.", "neutral") for i in range(5000)]
    found = measured(connection, tmp_path / "x.parquet", rows)["oddities"]
    expected = {"rows": 8, "premise": 8, "hypothesis": 8, "first_rows": [4, 704, 1404, 2104, 2804]}
    assert found == {"html": expected}


def test_the_script_of_a_set_decides_what_is_odd_in_it(connection: Database, tmp_path: Path) -> None:
    rows = [("Собака бежит по пляжу рано утром в тёплый день.", "Собака бежит.", "neutral")] * 3
    rows.append(("Собака бежит.", "Ein großer brauner Hund rennt schnell durch tiefen Schnee heute.", "neutral"))
    rows.append(("Собака бежит.", "Слово dog.", "neutral"))
    got = measured(connection, tmp_path / "x.parquet", rows)
    assert got["scripts"] == {"Cyrillic": 9, "Latin": 1}
    assert got["oddities"] == {"other_script": {"rows": 1, "premise": 0, "hypothesis": 1, "first_rows": [4]}}


def test_direction_and_labels_are_those_of_plain_python(connection: Database, tmp_path: Path) -> None:
    r = random.Random(1)
    spaces = [" ", " ", " ", "  ", "\t", "\u00a0", "\u3000 ", "\x0b"]

    def sentence() -> str:
        words = r.choices(["dog", "été", "a", "犬", "x" * 30], k=r.randint(1, 40))
        return words[0] + "".join(r.choice(spaces) + word for word in words[1:])

    rows = [(sentence(), sentence(), r.choice(["entailment", "neutral"])) for _ in range(1200)]
    got = measured(connection, tmp_path / "x.parquet", rows)
    entailed = [(len(p.split()), len(h.split())) for p, h, label in rows if label == "entailment"]
    right = sum(1.0 if p > h else 0.5 if p == h else 0.0 for p, h in entailed)
    assert got["direction"] == {
        "pairs": len(entailed),
        "length_only": round(100 * right / len(entailed), 4),
        "premise_not_longer": round(100 * sum(p <= h for p, h in entailed) / len(entailed), 4),
    }
    assert got["labels"] == {"contradiction": 0} | Counter(label for _, _, label in rows)


def test_length_is_counted_in_letters_where_there_are_no_spaces(connection: Database, tmp_path: Path) -> None:
    """By white space both sides would be one word, a tie."""
    pairs = [("犬が公園を走っている。", "犬が走る。"), ("สุนัขวิ่ง", "สุนัขวิ่งในสวน"), ("猫 dog", "猫が寝る")]
    got = measured(connection, tmp_path / "x.parquet", [(*pair, "entailment") for pair in pairs])["direction"]
    assert (got["length_only"], got["premise_not_longer"]) == (pytest.approx(100 / 3, abs=1e-3), pytest.approx(200 / 3, abs=1e-3))


def test_hypotheses_are_picked_evenly_over_the_whole_file(tmp_path: Path) -> None:
    n = 70_000
    labels = ["entailment" if i % 3 == 0 else "neutral" for i in range(n)]
    path = nli(tmp_path / "x.parquet", [("p", str(i), label) for i, label in enumerate(labels)])
    for most in (7, 10_000, n, n + 5):
        picked = np.linspace(0, n - 1, min(most, n)).astype(int)
        got = read_hypotheses(path, most)
        assert got.texts == [str(i) for i in picked]
        assert (got.label == 0).tolist() == (picked % 3 == 0).tolist()


def counts_of(rows: int, **more: Any) -> dict[str, Any]:
    return {"rows_in": rows, "rows_out": rows, "dropped": {"empty": 0}, "sentences": 2 * rows, "sentences_in_train": 0, **more}


BASELINE = partial(hypothesis_only_of, step=0.001, entailment_if=">=")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Data without surprises: labels that no shortcut tells."""
    folder = tmp_path_factory.mktemp("prepared")
    r = random.Random(2)
    words = ["dog", "cat", "tree", "house", "boat", "hill", "the", "a"]

    def text(length: int) -> str:
        return "the " + " ".join(r.choices(words, k=length))

    def rows(n: int) -> list[Row]:
        return [
            (text(r.randint(3, 12)), text(r.randint(3, 12)), ("entailment", "neutral", "contradiction")[i % 3]) for i in range(n)
        ]

    nli(folder / "train/pairs.parquet", rows(900))
    for name in ("dev/dev", "promotion/promotion", "tests/some"):
        nli(folder / f"{name}.parquet", rows(600))
    graded = [["the dog"] * 3, ["a dog"] * 3, [1.0, 2.0, 3.0], ["here"] * 3]
    pq.write_table(pa.table(graded, schema=STS), folder / "tests/graded.sts.parquet")
    held_out = {"kept_duplicate": 0, "kept_contradictory": 0}
    triplets = {"triplets": 300, "triplets_with_contradiction": 150}
    counts = {
        "train": {"rows_in": 900, "rows_out": 900, "dropped": {"duplicate": 0}, "labels": {}, **triplets},
        "dev": counts_of(600, **held_out),
        "promotion": counts_of(600, **held_out, premises=20, pairs_in_dev=0),
        "tests": {"some": counts_of(600, **held_out, pairs_in_dev=0)},
        "sts": {"graded": counts_of(3)},
    }
    return folder, counts


@pytest.fixture(scope="module")
def clean(prepared: tuple[Path, dict[str, Any]]) -> dict[str, Any]:
    folder, counts = prepared
    return profile(folder, counts | {"hypothesis_only": BASELINE(folder, ["some"])})


def test_clean_data_gives_the_same_profile_again_and_no_text_or_warning(
    prepared: tuple[Path, dict[str, Any]], clean: dict[str, Any]
) -> None:
    folder, counts = prepared
    before = sorted(folder.rglob("*"))
    # It must survive JSON as it is: the stages after it read the file.
    page = json.dumps(profile(folder, counts | {"hypothesis_only": BASELINE(folder, ["some"])}))
    assert json.loads(page) == json.loads(json.dumps(clean)) == clean
    assert sorted(folder.rglob("*")) == before
    assert "dog" not in page and "hill" not in page
    assert warnings(clean) == []


def odd(rows: int) -> dict[str, Any]:
    return {"rows": rows, "premise": rows, "hypothesis": 0, "first_rows": [1]}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda p: p["dev"]["labels"].update(contradiction=0), "dev: 0 of 400 rows (0.0 %) are contradiction"),
        (lambda p: p["hypothesis_only"]["some"].update(pr_auc=50.0), "some 50.0 (always-no 33.3)"),
        (lambda p: p["tests"]["some"]["direction"].update(length_only=12.0), "right on some 12.0 % of the pairs"),
        (lambda p: p["train"]["counts"].update(triplets_with_contradiction=9), "train: 9 of 300 entailment pairs (3.0 %) have a"),
        (lambda p: p["sts"]["graded"]["counts"].update(sentences_in_train=5), "graded (graded) 5 of 6 (83.3 %)"),
        (lambda p: p["tests"]["some"]["counts"].update(pairs_in_dev=9), "in the development set: some 9 of 600 (1.5 %)"),
        (lambda p: p["promotion"]["counts"].update(pairs_in_dev=9), "in the development set: promotion 9 of 600 (1.5 %)"),
        (lambda p: p["promotion"]["counts"].update(premises=19), "the set promotion has 19 premises; the rule of promotion"),
        (lambda p: p["dev"].update(dominant_script="Greek"), "training is in Latin script, but dev Greek"),
        (lambda p: p["train"]["oddities"].update(very_long=odd(1)), "more than 10,000 characters: train 1 of 900 (0.1 %) rows"),
    ],
)
def test_each_surprise_is_one_warning(clean: dict[str, Any], change: Callable[[dict[str, Any]], None], said: str) -> None:
    changed = copy.deepcopy(clean)
    change(changed)
    (warning,) = warnings(changed)
    assert said in warning
    assert "\n" not in warning


def test_training_of_one_class_has_no_baseline_and_a_warning(prepared: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    folder, counts = prepared
    shutil.copytree(folder, tmp_path / "one")
    nli(tmp_path / "one/train/pairs.parquet", [("the dog runs", "a dog", "entailment")] * 20)
    got = profile(tmp_path / "one", counts | {"hypothesis_only": BASELINE(tmp_path / "one", ["some"])})
    assert got["hypothesis_only"] == {}
    assert any("train: 0 of 20 rows (0.0 %) are neutral" in line for line in warnings(got))
