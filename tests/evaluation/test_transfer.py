"""Transfer tasks: which files can be read, and both classifiers against scikit-learn's own loops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_score

from pipeline.families.text import command_transfer as command
from pipeline.families.text.running_text import Features
from pipeline.families.text.tasks import Task, read_task
from pipeline.families.text.transfer import TEST, TRAIN, answers, check, joined
from pipeline.utils.errors import UserError
from tests.trial_of import tiny_encoder

SEARCHED_C = [0.25, 0.5, 1, 2, 4, 8, 16, 32]


def world(n: int, classes: int, seed: int, split: tuple[int, ...] = ()) -> tuple[Task, Features]:
    random = np.random.default_rng(seed)
    label = np.arange(n) % classes
    # Small and noisy, so that C matters.
    features = (0.1 * random.normal(size=(classes, 12))[label] + 0.2 * random.normal(size=(n, 12))).astype(np.float32)
    names = tuple(f"class {k}" for k in range(classes))
    parts = np.array(split, np.int8)[random.integers(0, len(split), n)] if split else None
    return Task("world", ([f"text {k}" for k in range(n)],), label, names, parts), features


def transfer(task: Task, features: Features, *, search: bool, seed: int) -> dict[str, float]:
    found = answers(task.label, task.part, features, search=search, seed=seed)
    shares = {name: 100 * found[name].to_numpy().mean() for name in ("logistic", "mean_classifier", "majority")}
    return {"rows": len(found), **shares}


@pytest.mark.parametrize("classes", [2, 5])
def test_ten_folds_are_those_of_scikit_learn(classes: int) -> None:
    task, x = world(303, classes, 1)
    folds = StratifiedKFold(10, shuffle=True, random_state=7)
    found = transfer(task, x, search=False, seed=7)
    each = cross_val_score(LogisticRegression(max_iter=1000), x, task.label, cv=folds)
    sizes = [len(test) for _, test in folds.split(x, task.label)]
    assert found["logistic"] == pytest.approx(100 * np.average(each, weights=sizes))
    assert found["rows"] == 303
    right = frequent = 0
    for train, test in folds.split(x, task.label):
        means = [x[[row for row in train if task.label[row] == k]].mean(0) for k in range(classes)]
        for row in test:
            products = [float(mean @ x[row]) for mean in means]
            right += products.index(max(products)) == task.label[row]
        counts = [int((task.label[train] == k).sum()) for k in range(classes)]
        frequent += int((task.label[test] == counts.index(max(counts))).sum())
    assert found["mean_classifier"] == pytest.approx(100 * right / 303)
    assert found["majority"] == pytest.approx(100 * frequent / 303)


def test_a_search_without_development_rows_is_nested_in_the_training_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    # Fewer fits: four folds, all of one size, and three values of C.
    searched = (0.25, 2.0, 16.0)
    monkeypatch.setattr("pipeline.families.text.transfer.FOLDS", 4)
    monkeypatch.setattr("pipeline.families.text.transfer.SEARCHED_C", searched)
    task, x = world(128, 4, 4)
    x *= 0.2
    found = transfer(task, x, search=True, seed=3)
    folds = StratifiedKFold(4, shuffle=True, random_state=3)
    right = 0
    for train, test in folds.split(x, task.label):
        inner = StratifiedKFold(4, shuffle=True, random_state=3)
        models = [LogisticRegression(C=c, max_iter=1000) for c in searched]
        # Rounded, so that equally many right answers are a tie.
        scores = [round(cross_val_score(model, x[train], task.label[train], cv=inner).mean(), 9) for model in models]
        best = models[scores.index(max(scores))].fit(x[train], task.label[train])
        right += int((best.predict(x[test]) == task.label[test]).sum())
    assert found["logistic"] == pytest.approx(100 * right / 128)
    assert found != transfer(task, x, search=False, seed=3)


def test_a_fixed_split_is_kept_and_its_development_rows_choose() -> None:
    task, x = world(400, 4, 4, (0, 1, 2))
    assert task.part is not None
    # A class that nobody learns is never right, and moves no other.
    task.part[(task.label == 0) & (task.part == TRAIN)] = TEST
    train, dev, test = (task.part == part for part in range(3))
    models = [LogisticRegression(C=c, max_iter=1000).fit(x[train], task.label[train]) for c in SEARCHED_C]
    scores = [model.score(x[dev], task.label[dev]) for model in models]
    best = models[scores.index(max(scores))]
    found = transfer(task, x, search=True, seed=1)
    assert found["logistic"] == pytest.approx(100 * best.score(x[test], task.label[test]))
    assert found["rows"] == test.sum()
    fixed = LogisticRegression(max_iter=1000).fit(x[train], task.label[train])
    assert transfer(task, x, search=False, seed=1)["logistic"] == pytest.approx(100 * fixed.score(x[test], task.label[test]))
    products = {k: x[test] @ x[train & (task.label == k)].mean(0) for k in (1, 2, 3)}
    by_means = [max(products, key=lambda k, row=row: float(products[k][row])) for row in range(int(test.sum()))]
    assert found["mean_classifier"] == pytest.approx(100 * np.mean(np.array(by_means) == task.label[test]))
    counts = [int((task.label[train] == k).sum()) for k in range(4)]
    assert found["majority"] == pytest.approx(100 * np.mean(task.label[test] == counts.index(max(counts))))


def test_two_texts_of_a_row_are_compared() -> None:
    vectors = {"a": [1.0, 2.0], "b": [3.0, -1.0], "c": [0.0, 5.0]}
    found = joined("pairs", [np.array([vectors[text] for text in texts], np.float32) for texts in (["a", "b"], ["c", "a"])])
    np.testing.assert_array_equal(found, [[1, 3, 0, 10], [2, 3, 3, -2]])


def write(path: Path, **columns: list[Any]) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


def test_files_of_both_shapes_and_any_labels(tmp_path: Path) -> None:
    one = read_task(write(tmp_path / "one.parquet", text=["a", "b", "c"], label=[10, 9, 10]))
    assert (one.name, one.texts, one.label.tolist(), one.part) == ("one", (["a", "b", "c"],), [0, 1, 0], None)
    assert one.classes == ("10", "9")
    numbers = read_task(write(tmp_path / "numbers.parquet", text=["a", "b", "c"], label=["1", "1.0", "2"]))
    assert (numbers.label.tolist(), numbers.classes) == ([0, 0, 1], ("1", "2"))
    yes = read_task(write(tmp_path / "yes.parquet", text=["a", "b"], label=[True, False]))
    assert (yes.label.tolist(), yes.classes) == ([1, 0], ("false", "true"))
    (tmp_path / "two.csv").write_text("sentence1,sentence2,label,split\na,b,yes ,train\nc,d, no,train \ne,f,yes,test\n")
    two = read_task(tmp_path / "two.csv")
    assert (two.texts, two.label.tolist(), two.classes) == ((["a", "c", "e"], ["b", "d", "f"]), [1, 0, 1], ("no", "yes"))
    assert two.part is not None
    assert two.part.tolist() == [TRAIN, TRAIN, TEST]


WRONG: dict[str, tuple[dict[str, list[Any]], str]] = {
    "no label": ({"text": ["a"]}, r"no label\.parquet: needs a column label, and either .* it has text$"),
    "three texts": (
        {"text": ["a"], "sentence1": ["a"], "sentence2": ["b"], "label": [1]},
        r"it has text, sentence1, sentence2, label; leave text or the other two out$",
    ),
    "empty text": ({"text": ["a", " \u200b"], "label": [0, 1]}, r"row 2: text is empty"),
    "no value": ({"text": ["a", "b"], "label": [0, None]}, r"row 2: label is empty"),
    "a fraction": ({"text": ["a", "b"], "label": [0.5, 1.0]}, r"column 'label' holds fractions, which are not classes"),
    "one class to learn": (
        {"text": ["a", "b", "c"], "label": [1, 1, 2], "split": ["train", "train", "test"]},
        r"all rows to learn from have the label 1",
    ),
    "no rows": ({"text": [], "label": []}, r"has no rows"),
    "strange split": ({"text": ["a", "b"], "label": [0, 1], "split": ["train", "valid"]}, r"split is 'valid'; it must be train"),
    "no test rows": ({"text": ["a", "b"], "label": [0, 1], "split": ["train", "dev"]}, r"no row has split test"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_file_is_one_line(what: str, tmp_path: Path) -> None:
    columns, message = WRONG[what]
    with pytest.raises(UserError, match=message) as caught:
        read_task(write(tmp_path / f"{what}.parquet", **columns))
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match=r"is not a file; name a Parquet, csv or jsonl file$"):
        read_task(tmp_path)


def test_a_class_that_is_too_rare_for_folds_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    check(world(20, 2, 1)[0], search=False)
    with pytest.raises(UserError, match=r"^world: label class 1 has 9 rows to learn from; 10 folds need at least 10$"):
        check(world(19, 2, 1)[0], search=False)
    check(world(24, 2, 1)[0], search=True)
    monkeypatch.setattr("pipeline.families.text.transfer.SEARCHED_C", (1.0,))
    transfer(*world(24, 2, 1), search=True, seed=1)
    with pytest.raises(UserError, match=r"class 1 has 11 rows to learn from; 10 folds with a search need at least 12$"):
        check(world(23, 2, 1)[0], search=True)
    check(world(40, 2, 1, (0, 2))[0], search=False)
    with pytest.raises(UserError, match=r"10 folds with a search need at least 10$"):
        check(world(24, 2, 1, (0, 2))[0], search=True)
    check(world(24, 2, 1, (0, 1, 2))[0], search=True)


def test_an_embedding_that_is_not_finite_is_one_line() -> None:
    with pytest.raises(UserError, match=r"^mr: row 2: the model's embedding is not finite"):
        joined("mr", [np.array([[1.0], [np.nan]], np.float32)])


def test_the_command_prints_what_the_classifiers_get_right(
    tiny_backbone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.families.text.transfer.SEARCHED_C", (0.25, 32.0))
    encoder = tiny_encoder(tiny_backbone)
    encoder.save_pretrained(tmp_path / "model")
    texts = [f"{noun} number {k}" for k in range(20) for noun in ("A dog", "The house")]
    task = write(tmp_path / "nouns.parquet", text=texts, label=["animal", "building"] * 20)
    for options, search, seed in (([], False, 1111), (["--search", "--seed", "2"], True, 2)):
        command.main([str(tmp_path / "model"), str(task), *options])
        found = transfer(read_task(task), encoder.encode(texts).mean.numpy(), search=search, seed=seed)
        line = f"nouns\t40\t{found['logistic']:.1f}\t{found['mean_classifier']:.1f}\t{found['majority']:.1f}"
        assert capsys.readouterr().out.splitlines() == ["task\trows\tlogistic\tmean classifier\tmajority", line]
    with pytest.raises(UserError, match=r"--seed: '-1' is not a whole number from 0 to 4294967295"):
        command.main(["model", "task.csv", "--seed", "-1"])
