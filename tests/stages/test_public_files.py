"""The first hour with public corpora and a comparison: files in their official formats, two presets, `dvc repro`, intervals."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import auc, precision_recall_curve

from tests.copies import ROOT, copy_project
from tests.stages.running import dvc, run, set_keys

pytestmark = pytest.mark.faults

WHO = ("A woman", "A man", "A child", "A nurse", "A farmer", "A singer", "A cook", "A judge", "A pilot", "A baker")
DOES = {
    "runs": "moves",
    "walks": "moves",
    "shouts": "makes a noise",
    "sings": "makes a noise",
    "naps": "rests",
    "sleeps": "rests",
}
SICK = "pair_ID\tsentence_A\tsentence_B\tentailment_label\trelatedness_score\tentailment_AB\tentailment_BA\tSemEval_set\n"


def pairs(place: str, number: int) -> Iterator[tuple[str, str, str]]:
    """Three pairs for each of a number of premises that no other place has."""
    for k in range(number):
        who, does = WHO[k % len(WHO)], [*DOES][k // len(WHO) % len(DOES)]
        premise = f"{who} {does} in {place} {k}."
        yield premise, f"Somebody {DOES[does]}.", "entailment"
        yield premise, f"{who} waits for a friend.", "neutral"
        yield premise, f"Nobody is in {place} {k}.", "contradiction"


def write_corpora(folder: Path) -> None:
    """What the commands of `gausscse corpora` unpack, with sentences of our own."""
    files = {
        "snli_1.0/snli_1.0_train": ("street", 240),
        "snli_1.0/snli_1.0_dev": ("garden", 60),
        "snli_1.0/snli_1.0_test": ("station", 40),
        "multinli_1.0/multinli_1.0_train": ("valley", 120),
        "multinli_1.0/multinli_1.0_dev_matched": ("office", 40),
        "multinli_1.0/multinli_1.0_dev_mismatched": ("harbour", 40),
    }
    for name, (place, number) in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        extra = {"genre": "fiction"} if "multinli" in name else {"captionID": "1.jpg#0"}
        rows = [
            json.dumps(
                {"annotator_labels": [label], "gold_label": label, "pairID": f"{k}", "sentence1": a, "sentence2": b, **extra}
            )
            for k, (a, b, label) in enumerate([*pairs(place, number), (f"A dog is in {place}.", "A dog barks.", "-")])
        ]
        (folder / f"{name}.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    (folder / "SICK").mkdir()
    rows = [
        f"{k}\t{a}\t{b}\t{label.upper()}\t{k % 40 / 10 + 1}\tA_{label}_B\tB_neutral_A\t{'TEST' if k % 2 else 'TRAIN'}\n"
        for k, (a, b, label) in enumerate(pairs("forest", 60))
    ]
    (folder / "SICK/SICK.txt").write_text(SICK + "".join(rows), encoding="utf-8")


def test_two_presets_and_dvc_repro_compare_two_recipes(tmp_path: Path, tiny_backbone: Path) -> None:
    root = copy_project(tmp_path / "project", ROOT / "params.yaml")
    write_corpora(root / "corpora")
    run(root, "gausscse", "preset", "recommended", "snli-mnli")
    run(root, "gausscse", "check")
    small = {"model.backbone": str(tiny_backbone), "data.minimal_pairs": 200, "tune.seeds": [1], "tune.learning_rates": [1e-3]}
    set_keys(root, small | {"train.seeds": [1, 2], "train.epochs": 3, "train.eval_every": 12, "train.head_rate_factor": 1.0})
    said = dvc(root, "repro")
    assert "gausscse version 1 is champion: there was no champion yet" in said
    counts = json.loads((root / "data/prepared/prepare.json").read_text(encoding="utf-8"))["train"]["files"]
    assert {name: (of["rows_in"], of["dropped"]["no_gold_label"]) for name, of in counts.items()} == {
        "snli_1.0/snli_1.0_train.jsonl": (721, 1),
        "multinli_1.0/multinli_1.0_train.jsonl": (361, 1),
    }

    # Each recipe's figure is the mean over its seeds of what scikit-learn computes from its scores.
    with (root / "report/differences.csv").open(encoding="utf-8") as stream:
        rows = {row["set"]: row for row in csv.DictReader(stream) if row["metric"] == "pr_auc"}
    assert rows.keys() == {"dev", "snli_test", "mnli_matched", "mnli_mismatched", "sick_test"}
    places = {"main recipe": "evaluate/scores/main recipe", "simcse": "experiments/scores/simcse"}
    table = (root / "report/differences.tex").read_text(encoding="utf-8")
    for name, row in rows.items():
        for column, recipe in (("value", "main recipe"), ("other", "simcse")):
            found: list[float] = []
            for file in sorted((root / "results" / places[recipe] / name).glob("seed-*.parquet")):
                scores = pq.read_table(file).to_pydict()
                precision, recall, _ = precision_recall_curve(np.array(scores["label"]) == 0, scores["score"])
                found.append(100 * auc(recall, precision))
            assert len(found) == 2
            assert float(row[column]) == pytest.approx(np.mean(found), abs=1e-3)
        low, gain, high = (float(row[key]) for key in ("low", "difference", "high"))
        assert low <= gain <= high and gain == pytest.approx(float(row["value"]) - float(row["other"]), abs=1e-3)
        assert f"& {gain:+.1f} [{low:+.1f}, {high:+.1f}]" in table
