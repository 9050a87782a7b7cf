"""Transfer tasks: which files can be read, and both classifiers against scikit-learn's own loops."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import PLAIN
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_score

from pipeline.config.load import load_params
from pipeline.families.text import command_transfer as command
from pipeline.families.text.tasks import Task, read_task
from pipeline.families.text.transfer import Features, Transfer, check, features_of, transfer
from pipeline.models.encoder import GaussianEncoder
from pipeline.utils.errors import UserError

SEARCHED_C = [0.25, 0.5, 1, 2, 4, 8, 16, 32]


def world(n: int, classes: int, seed: int, split: list[str] | None = None) -> tuple[Task, Features]:
    random = np.random.default_rng(seed)
    label = np.arange(n) % classes
    # Small and noisy, so that C matters.
    features = (0.1 * random.normal(size=(classes, 12))[label] + 0.2 * random.normal(size=(n, 12))).astype(np.float32)
    names = tuple(f"class {k}" for k in range(classes))
    parts = None if split is None else np.array(split)[random.integers(0, len(split), n)]
    return Task("world", ([f"text {k}" for k in range(n)],), label, names, parts), features


@pytest.mark.parametrize("classes", [2, 5])
def test_ten_folds_are_those_of_scikit_learn(classes: int) -> None:
    task, x = world(303, classes, 1)
    folds = StratifiedKFold(10, shuffle=True, random_state=7)
    found = transfer(task, x, search=False, seed=7)
    each = cross_val_score(LogisticRegression(max_iter=1000), x, task.label, cv=folds)
    sizes = [len(test) for _, test in folds.split(x, task.label)]
    assert found.logistic == pytest.approx(100 * np.average(each, weights=sizes))
    assert found.rows == 303
    right = frequent = 0
    for train, test in folds.split(x, task.label):
        means = [x[[row for row in train if task.label[row] == k]].mean(0) for k in range(classes)]
        for row in test:
            products = [float(mean @ x[row]) for mean in means]
            right += products.index(max(products)) == task.label[row]
        counts = [int((task.label[train] == k).sum()) for k in range(classes)]
        frequent += int((task.label[test] == counts.index(max(counts))).sum())
    assert found.mean_classifier == pytest.approx(100 * right / 303)
    assert found.majority == pytest.approx(100 * frequent / 303)


def test_a_search_without_development_rows_is_nested_in_the_training_rows() -> None:
    task, x = world(200, 4, 2)
    x *= 0.2
    found = transfer(task, x, search=True, seed=3)
    folds = StratifiedKFold(10, shuffle=True, random_state=3)
    right = 0
    for train, test in folds.split(x, task.label):
        inner = StratifiedKFold(10, shuffle=True, random_state=3)
        models = [LogisticRegression(C=c, max_iter=1000) for c in SEARCHED_C]
        # Rounded, so that equally many right answers are a tie.
        scores = [round(cross_val_score(model, x[train], task.label[train], cv=inner).mean(), 9) for model in models]
        best = models[scores.index(max(scores))].fit(x[train], task.label[train])
        right += int((best.predict(x[test]) == task.label[test]).sum())
    assert found.logistic == pytest.approx(100 * right / 200)
    assert found != transfer(task, x, search=False, seed=3)


def test_a_fixed_split_is_kept_and_its_development_rows_choose() -> None:
    task, x = world(400, 4, 4, ["train", "dev", "test"])
    assert task.split is not None
    # A class that nobody learns is never right, and moves no other.
    task.split[(task.label == 0) & (task.split == "train")] = "test"
    train, dev, test = (task.split == part for part in ("train", "dev", "test"))
    models = [LogisticRegression(C=c, max_iter=1000).fit(x[train], task.label[train]) for c in SEARCHED_C]
    scores = [model.score(x[dev], task.label[dev]) for model in models]
    best = models[scores.index(max(scores))]
    found = transfer(task, x, search=True, seed=1)
    assert found.logistic == pytest.approx(100 * best.score(x[test], task.label[test]))
    assert found.rows == test.sum()
    fixed = LogisticRegression(max_iter=1000).fit(x[train], task.label[train])
    assert transfer(task, x, search=False, seed=1).logistic == pytest.approx(100 * fixed.score(x[test], task.label[test]))
    products = {k: x[test] @ x[train & (task.label == k)].mean(0) for k in (1, 2, 3)}
    by_means = [max(products, key=lambda k, row=row: float(products[k][row])) for row in range(int(test.sum()))]
    assert found.mean_classifier == pytest.approx(100 * np.mean(np.array(by_means) == task.label[test]))
    counts = [int((task.label[train] == k).sum()) for k in range(4)]
    assert found.majority == pytest.approx(100 * np.mean(task.label[test] == counts.index(max(counts))))


def test_the_number_of_threads_changes_nothing() -> None:
    task, x = world(120, 2, 5)
    assert transfer(task, x, search=True, seed=1, threads=2) == transfer(task, x, search=True, seed=1)


def test_two_texts_of_a_row_are_compared() -> None:
    vectors = {"a": [1.0, 2.0], "b": [3.0, -1.0], "c": [0.0, 5.0]}
    task = Task("pairs", (["a", "b"], ["c", "a"]), np.array([0, 1]), ("no", "yes"), None)
    found = features_of(task, lambda texts: np.array([vectors[text] for text in texts], np.float32))
    np.testing.assert_array_equal(found, [[1, 3, 0, 10], [2, 3, 3, -2]])


def write(path: Path, **columns: list[Any]) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


def test_files_of_both_shapes_and_any_labels(tmp_path: Path) -> None:
    one = read_task(write(tmp_path / "one.parquet", text=["a", "b", "c"], label=[10, 9, 10]))
    assert (one.name, one.texts, one.label.tolist(), one.split) == ("one", (["a", "b", "c"],), [0, 1, 0], None)
    assert one.classes == ("10", "9")
    yes = read_task(write(tmp_path / "yes.parquet", text=["a", "b"], label=[True, False]))
    assert (yes.label.tolist(), yes.classes) == ([1, 0], ("false", "true"))
    many = pa.array(["x ", "y", "x", "y"]).dictionary_encode()
    assert read_task(write(tmp_path / "many.parquet", text=["a", "b", "c", "d"], label=many)).label.tolist() == [0, 1, 0, 1]
    padded = tmp_path / "padded.csv"
    padded.write_text("text,label,split\na, 1,train\nb,2,train \nc,1,test\n", encoding="utf-8")
    assert read_task(padded).classes == ("1", "2")
    two = tmp_path / "two.jsonl"
    rows = [
        {"sentence1": "a", "sentence2": "b", "label": "yes", "split": "train"},
        {"sentence1": "c", "sentence2": "d", "label": "no", "split": "train"},
        {"sentence1": "e", "sentence2": "f", "label": "yes", "split": "test"},
    ]
    two.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    task = read_task(two)
    assert (task.texts, task.label.tolist(), task.classes) == ((["a", "c", "e"], ["b", "d", "f"]), [1, 0, 1], ("no", "yes"))
    assert task.split is not None
    assert task.split.tolist() == ["train", "train", "test"]


WRONG = {
    "no label": ({"text": ["a"]}, r"no label\.parquet: needs a column label, and either .* it has text$"),
    "one text": ({"sentence1": ["a"], "label": [1]}, r"needs a column label, and either text or sentence1 and sentence2"),
    "three texts": (
        {"text": ["a"], "sentence1": ["a"], "sentence2": ["b"], "label": [1]},
        r"it has text, sentence1, sentence2, label; leave text or the other two out$",
    ),
    "empty text": ({"text": ["a", " \u200b"], "label": [0, 1]}, r"row 2: text is empty"),
    "no value": ({"text": ["a", "b"], "label": [0, None]}, r"row 2: label is empty"),
    "no text": ({"text": [1.5, 2.5], "label": [0, 1]}, r"column 'text' holds double, not text"),
    "a fraction": ({"text": ["a", "b"], "label": [0.5, 1.0]}, r"column 'label' holds fractions, which are not classes"),
    "one class": ({"text": ["a", "b"], "label": [1, 1]}, r"all rows to learn from have the label 1"),
    "one class to learn": (
        {"text": ["a", "b", "c"], "label": [1, 1, 2], "split": ["train", "train", "test"]},
        r"all rows to learn from have the label 1",
    ),
    "no rows": ({"text": pa.array([], pa.string()), "label": pa.array([], pa.int64())}, r"has no rows"),
    "strange split": ({"text": ["a", "b"], "label": [0, 1], "split": ["train", "valid"]}, r"split is 'valid'; it must be train"),
    "no test rows": ({"text": ["a", "b"], "label": [0, 1], "split": ["train", "dev"]}, r"no row has split test"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_file_is_one_line(what: str, tmp_path: Path) -> None:
    columns, message = WRONG[what]
    with pytest.raises(UserError, match=message) as caught:
        read_task(write(tmp_path / f"{what}.parquet", **columns))
    assert "\n" not in str(caught.value)


def test_a_file_that_is_none_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nothing\.csv: no such file$"):
        read_task(tmp_path / "nothing.csv")
    with pytest.raises(UserError, match=r"is not a file; name a Parquet, csv or jsonl file$"):
        read_task(tmp_path)
    (tmp_path / "twice.csv").write_text("text,label,label\na,1,2\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"twice\.csv: more than one column 'label'"):
        read_task(tmp_path / "twice.csv")


def test_a_class_that_is_too_rare_for_folds_is_one_line() -> None:
    check(world(20, 2, 1)[0], search=False)
    with pytest.raises(UserError, match=r"^world: label class 1 has 9 rows to learn from; 10 folds need at least 10$"):
        check(world(19, 2, 1)[0], search=False)
    check(world(24, 2, 1)[0], search=True)
    transfer(*world(24, 2, 1), search=True, seed=1)
    with pytest.raises(UserError, match=r"class 1 has 11 rows to learn from; 10 folds with a search need at least 12$"):
        check(world(23, 2, 1)[0], search=True)
    split, _ = world(40, 2, 1, ["train", "test"])
    check(split, search=False)
    with pytest.raises(UserError, match=r"10 folds with a search need at least 10$"):
        check(world(24, 2, 1, ["train", "test"])[0], search=True)
    check(world(24, 2, 1, ["train", "dev", "test"])[0], search=True)


def test_an_embedding_that_is_not_finite_is_one_line() -> None:
    task = Task("mr", (["a", "b"],), np.array([0, 1]), ("no", "yes"), None)
    with pytest.raises(UserError, match=r"^mr: row 2: the model's embedding is not finite"):
        features_of(task, lambda texts: np.array([[1.0], [np.nan]], np.float32))


def test_the_command_prints_what_the_classifiers_get_right(
    tiny_backbone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    params = load_params(PLAIN).model.encoder.model_copy(update={"backbone": str(tiny_backbone), "max_length": 24})
    encoder = GaussianEncoder.from_backbone(params, seed=1).eval()
    encoder.save_pretrained(tmp_path / "model")
    texts = [f"{noun} number {k}" for k in range(20) for noun in ("A dog", "The house")]
    task = write(tmp_path / "nouns.parquet", text=texts, label=["animal", "building"] * 20)
    x = encoder.encode(texts).mean.numpy()
    asked: list[dict[str, Any]] = []

    def noted(task: Task, features: Features, **how: Any) -> Transfer:
        np.testing.assert_allclose(features, x, atol=1e-6)
        asked.append(how)
        return transfer(task, features, **how)

    monkeypatch.setattr("pipeline.families.text.transfer.transfer", noted)
    for options in (["--threads", "1"], ["--search", "--seed", "2", "--threads", "2"]):
        command.main([str(tmp_path / "model"), str(task), *options])
        header, line = capsys.readouterr().out.splitlines()
        assert header.split("\t") == ["task", "rows", "logistic", "mean classifier", "majority"]
        found = transfer(read_task(task), x, **asked[-1])
        assert line == f"nouns\t40\t{found.logistic:.1f}\t{found.mean_classifier:.1f}\t{found.majority:.1f}"
    assert asked == [{"search": False, "seed": 1111, "threads": 1}, {"search": True, "seed": 2, "threads": 2}]


def test_wrong_options_are_one_line(tmp_path: Path) -> None:
    for options, message in ((["--threads", "0"], r"^--threads is 0"), (["--seed", "-1"], r"^--seed is -1: it must be from 0")):
        with pytest.raises(UserError, match=message):
            command.main(["model", "task.csv", *options])
    (tmp_path / "more").mkdir()
    one, same = (
        write(folder / "mr.parquet", text=["a", "b"] * 10, label=[0, 1] * 10) for folder in (tmp_path, tmp_path / "more")
    )
    with pytest.raises(UserError, match=r"more/mr\.parquet: a second task with the name mr; rename one of the files$"):
        command.main(["model", str(one), str(same)])
