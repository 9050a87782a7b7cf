"""The card of a model: readable by hubs, and with the rows that keep its numbers honest."""

from __future__ import annotations

import json

import pytest
import yaml
from conftest import ROOT

from pipeline.calibration import Calibration
from pipeline.config import load_params
from pipeline.lineage import DataSet
from pipeline.model_card import PACKAGED, About, card
from pipeline.trial import Trial

CALIBRATION = Calibration(threshold=0.125, entailment_if=">=", swept_on="dev", pairs="d" * 64, accuracy=81.5)


def about(objective: str = "ent+con+rev") -> About:
    p = load_params(ROOT / "params.yaml")
    trial = Trial(
        model=p.model,
        objective=p.objective.model_copy(update={"name": objective}),
        train=p.train,
        learning_rate=3e-4,
        batch_size=32,
        seed=1,
        train_tokens="t" * 64,
        dev_tokens="d" * 64,
        backbone_files="b" * 64,
        code="c" * 64,
    )
    numbers = {"dev": {"pr_auc": 70.5, "accuracy": 81.5}, "test": {"pr_auc": 68.25, "accuracy": 80.0}, "graded": {}}
    if objective != "simcse":
        numbers["test"] |= {"direction.sim": 90.0, "direction.length_only": 92.5}
    numbers["graded"] |= {"spearman_cosine": 77.0}
    data = [DataSet("train", "training", "abcdef0123456789", "{}", "{}", json.dumps({"num_rows": 1800}))]
    return About(
        name="gausscse",
        trial=trial,
        numbers=numbers,
        hypothesis_only={"test": {"accuracy": 66.0}},
        data=data,
        commit="c0ffee",
        versions={"torch": "2.13.0"},
    )


def test_the_metadata_are_those_that_hubs_read() -> None:
    _, head, _ = card(about(), CALIBRATION).split("---\n", 2)
    metadata = yaml.safe_load(head)
    assert metadata["base_model"] == PACKAGED
    (index,) = metadata["model-index"]
    assert index["name"] == "gausscse"
    results = {one["dataset"]["name"]: {m["type"]: m["value"] for m in one["metrics"]} for one in index["results"]}
    assert results["test"] == {"pr_auc": 68.25, "accuracy": 80.0, "direction.sim": 90.0, "direction.length_only": 92.5}
    assert results["graded"] == {"spearman_cosine": 77.0}


def test_every_number_stands_beside_what_knows_nothing_of_meaning() -> None:
    body = card(about(), CALIBRATION)
    header = next(line for line in body.splitlines() if line.startswith("| set "))
    columns = [cell.strip() for cell in header.strip("|").split("|")]
    row = next(line for line in body.splitlines() if line.startswith("| test "))
    cells = dict(zip(columns, (cell.strip() for cell in row.strip("|").split("|")), strict=True))
    assert cells["direction by similarity"] == "90.00"
    assert cells["direction, the longer sentence entails (knows nothing of meaning)"] == "92.50"
    assert (cells["accuracy"], cells["accuracy, hypothesis only"]) == ("80.00", "66.00")
    for said in ("threshold, 0.125 (entailment if score >= threshold)", "(81.50)", "c0ffee", "torch 2.13.0", "`abcdef012345`"):
        assert said in body
    assert "| train | training | 1,800 |" in body
    assert "licences of the data go with the model" in body
    assert "a billion sentence pairs" in body


@pytest.mark.parametrize("objective", ["ent", "simcse"])
def test_direction_is_spoken_of_where_there_is_one(objective: str) -> None:
    body = card(about(objective), CALIBRATION)
    assert ("encoder.direction(" in body) == (objective != "simcse")
    assert ("says nothing of direction" in body) == (objective == "simcse")
    assert "{" not in body.partition("```")[0].rpartition("---\n")[2]
