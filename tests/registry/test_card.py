"""The card of a model: readable by hubs, and with the rows that keep its numbers honest."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import yaml
from huggingface_hub import ModelCard

from pipeline.config.objectives import own_keys
from pipeline.config.paths import DEV_TOKENS
from pipeline.models.canaries import read_canaries
from pipeline.models.encoder import GaussianEncoder
from pipeline.models.model_dir import CARD
from pipeline.models.relation_head import FORMULAS, ScoreKind
from pipeline.models.threshold import Calibration
from pipeline.registry.card import About, card
from pipeline.registry.publishing import published
from pipeline.tracking.datasets import DataSet
from pipeline.utils.atomic_io import check_sums
from tests.registry.lab import Lab
from tests.relations import drawn_scale
from tests.trial_of import plain_trial

CALIBRATION = Calibration(threshold=0.125, entailment_if=">=", swept_on="dev", pairs="d" * 64, accuracy=81.5)


def about(objective: str = "ent+con+rev") -> About:
    trial = plain_trial(3e-4, 32)
    trial = trial.model_copy(update={"objective": own_keys(trial.objective.model_dump() | {"name": objective})})
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


def test_a_relation_head_is_told_with_the_score_it_has_without_it() -> None:
    plain = about("simcse")
    numbers = {"test": {**plain.numbers["test"], "similarity.pr_auc": 61.5, "direction.score": 95.25}}
    told = card(replace(plain, relation=drawn_scale(weight=0.25), numbers=numbers), CALIBRATION)
    for said in ("plus 0.25 times those of the similarity", "encoder.relation(", "encoder.direction(", "| 61.50 |", "| 95.25 |"):
        assert said in told
    for said in ("relation head", "encoder.relation(", "encoder.direction("):
        assert said not in card(plain, CALIBRATION)


def test_the_metadata_are_those_that_hubs_read() -> None:
    _, head, _ = card(about(), CALIBRATION).split("---\n", 2)
    metadata = yaml.safe_load(head)
    assert metadata["base_model"] == "sentence-transformers/all-MiniLM-L6-v2"
    (index,) = metadata["model-index"]
    assert index["name"] == "gausscse"
    results = {one["dataset"]["name"]: {m["type"]: m["value"] for m in one["metrics"]} for one in index["results"]}
    assert results["test"] == {"pr_auc": 68.25, "accuracy": 80.0, "direction.sim": 90.0, "direction.length_only": 92.5}
    assert results["graded"] == {"spearman_cosine": 77.0}


@pytest.mark.parametrize(
    ("backbone", "revision", "named"),
    [("google-bert/bert-base-uncased", "86b5e09", "google-bert/bert-base-uncased"), ("/home/me/bert", None, None)],
)
def test_a_backbone_that_hubs_do_not_know_is_not_named_there(backbone: str, revision: str | None, named: str | None) -> None:
    facts = about()
    model = facts.trial.model.model_copy(update={"backbone": backbone, "revision": revision})
    text = card(replace(facts, trial=facts.trial.model_copy(update={"model": model})), CALIBRATION)
    data = ModelCard(text).data.to_dict()
    assert data.get("base_model") == named
    assert {"gaussian-embeddings", "gausscse"} <= set(data["tags"])


def test_every_number_stands_beside_what_knows_nothing_of_meaning() -> None:
    body = card(about(), CALIBRATION)
    header = next(line for line in body.splitlines() if line.startswith("| set "))
    columns = [cell.strip() for cell in header.strip("|").split("|")]
    row = next(line for line in body.splitlines() if line.startswith("| test "))
    cells = dict(zip(columns, (cell.strip() for cell in row.strip("|").split("|")), strict=True))
    assert cells["direction by similarity"] == "90.00"
    assert cells["direction, baseline: the longer sentence entails"] == "92.50"
    assert (cells["accuracy"], cells["accuracy, hypothesis only"]) == ("80.00", "66.00")
    for said in ("threshold, 0.125 (entailment if score >= threshold)", "(81.50)", "c0ffee", "torch 2.13.0", "`abcdef012345`"):
        assert said in body
    assert "| train | training | 1,800 |" in body
    assert "licences of the data apply to the model" in body
    assert "a billion sentence pairs" in body


@pytest.mark.parametrize("kind", ["kl", "kl-dimwise", "cosine"])
def test_the_similarity_is_that_of_the_model(kind: ScoreKind) -> None:
    facts = about("simcse" if kind == "cosine" else "ent")
    if kind != "cosine":
        objective = facts.trial.objective.model_copy(update={"similarity": kind})
        facts = replace(facts, trial=facts.trial.model_copy(update={"objective": objective}))
    opening = " ".join(card(facts, None).partition("```")[0].split())
    assert [name for name, words in FORMULAS.items() if f"similarity, {words}, is" in opening or f"by {words} (" in opening] == [
        kind
    ]


@pytest.mark.parametrize("objective", ["ent", "simcse"])
def test_direction_is_spoken_of_where_there_is_one(objective: str) -> None:
    body = card(about(objective), CALIBRATION)
    assert ("encoder.direction(" in body) == (objective != "simcse")
    assert ("The cosine has no direction" in body) == (objective == "simcse")
    assert "{" not in body.partition("```")[0].rpartition("---\n")[2]


def test_a_published_model_has_its_threshold_its_card_and_its_canary_pairs(lab: Lab) -> None:
    with published(lab.untrained(1), about(), CALIBRATION, lab.root / DEV_TOKENS) as folder:
        check_sums(folder)
        encoder, canaries = GaussianEncoder.from_pretrained(folder), read_canaries(folder)
        assert encoder.calibration == CALIBRATION
        assert (folder / CARD).read_text(encoding="utf-8") == card(about(), CALIBRATION)
        assert canaries is not None
        assert len(set(canaries.premises)) == 32
        canaries.check(encoder.similarity(canaries.hypotheses, canaries.premises), None)
