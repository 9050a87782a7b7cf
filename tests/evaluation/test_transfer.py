"""Transfer tasks: files that can be read and others, and both classifiers beside scikit-learn's own loops."""

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

from pipeline.cli import transfer as command
from pipeline.config.load import load_params
from pipeline.data.readers.tasks import Task, read_task
from pipeline.evaluation.transfer import SEARCHED_C, Features, features_of, transfer
from pipeline.models.encoder import GaussianEncoder
from pipeline.utils.errors import UserError


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
    task, x = world(400, 3, 4, ["train", "dev", "test"])
    assert task.split is not None
    train, dev, test = (task.split == part for part in ("train", "dev", "test"))
    models = [LogisticRegression(C=c, max_iter=1000).fit(x[train], task.label[train]) for c in SEARCHED_C]
    scores = [model.score(x[dev], task.label[dev]) for model in models]
    best = models[scores.index(max(scores))]
    found = transfer(task, x, search=True, seed=1)
    assert found.logistic == pytest.approx(100 * best.score(x[test], task.label[test]))
    assert found.rows == test.sum()
    fixed = LogisticRegression(max_iter=1000).fit(x[train], task.label[train])
    assert transfer(task, x, search=False, seed=1).logistic == pytest.approx(100 * fixed.score(x[test], task.label[test]))


def test_the_number_of_threads_changes_nothing() -> None:
    task, x = world(120, 2, 5)
    assert transfer(task, x, search=False, seed=1, threads=2) == transfer(task, x, search=False, seed=1)


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
    two = tmp_path / "two.jsonl"
    rows = [
        {"sentence1": "a", "sentence2": "b", "label": "yes", "split": "train"},
        {"sentence1": "c", "sentence2": "d", "label": "no", "split": "test"},
    ]
    two.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    task = read_task(two)
    assert (task.texts, task.label.tolist(), task.classes) == ((["a", "c"], ["b", "d"]), [1, 0], ("no", "yes"))
    assert task.split is not None
    assert task.split.tolist() == ["train", "test"]


WRONG = {
    "no label": ({"text": ["a"]}, r"no label\.parquet: needs a column label, and text or .* it has text$"),
    "one text": ({"sentence1": ["a"], "label": [1]}, r"needs a column label, and text or sentence1 and sentence2"),
    "empty text": ({"text": ["a", " "], "label": [0, 1]}, r"row 2: text is empty"),
    "empty label": ({"text": ["a", "b"], "label": [0, None]}, r"row 2: label is empty"),
    "no text": ({"text": [1.5, 2.5], "label": [0, 1]}, r"column text holds double, not text$"),
    "one class": ({"text": ["a", "b"], "label": [1, 1]}, r"all rows have one label"),
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


def test_a_class_that_is_too_rare_for_folds_is_one_line() -> None:
    task, x = world(15, 2, 1)
    with pytest.raises(UserError, match=r"^world: label class 1 has 7 training rows; 10 folds need at least 10$"):
        transfer(task, x, search=False, seed=1)


def test_the_command_prints_what_the_classifiers_get_right(
    tiny_backbone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    params = load_params(PLAIN).model.encoder.model_copy(update={"backbone": str(tiny_backbone), "max_length": 24})
    encoder = GaussianEncoder.from_backbone(params, seed=1).eval()
    encoder.save_pretrained(tmp_path / "model")
    texts = [f"{noun} number {k}" for k in range(20) for noun in ("A dog", "The house")]
    task = write(tmp_path / "nouns.parquet", text=texts, label=["animal", "building"] * 20)
    command.main([str(tmp_path / "model"), str(task), "--threads", "1"])
    *_, header, line = capsys.readouterr().out.splitlines()
    assert header.split("\t") == ["task", "rows", "logistic", "mean classifier", "majority"]
    x = encoder.encode(texts).mean.numpy()
    found = transfer(read_task(task), x, search=False, seed=1)
    assert line == f"nouns\t40\t{found.logistic:.1f}\t{found.mean_classifier:.1f}\t{found.majority:.1f}"
    with pytest.raises(UserError, match=r"^--threads is 0"):
        command.main([str(tmp_path / "model"), str(task), "--threads", "0"])
