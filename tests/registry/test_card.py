"""The card of a model: readable by hubs, and with the rows that keep its numbers honest."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from pipeline.config.objectives import own_keys
from pipeline.config.paths import DEV_TOKENS
from pipeline.data.measure import is_english
from pipeline.data.token_store import open_store
from pipeline.models.canaries import read_canaries
from pipeline.models.encoder import GaussianEncoder
from pipeline.models.model_dir import CARD, DEMONSTRATION, EXAMPLES, note_of
from pipeline.models.relation_head import FORMULAS, ScoreKind
from pipeline.models.threshold import Calibration
from pipeline.registry.publishing import About, card, published
from pipeline.tracking.datasets import DataSet
from pipeline.utils.atomic_io import check_sums
from tests.registry.lab import Lab
from tests.relations import drawn_relation
from tests.trial_of import plain_trial

CALIBRATION = Calibration(threshold=0.125, entailment_if=">=", swept_on="dev", pairs="d" * 64, accuracy=81.5)


def about(objective: str = "ent+con+rev") -> About:
    trial = plain_trial(3e-4, 32)
    trial = trial.model_copy(update={"objective": own_keys(trial.objective.model_dump() | {"name": objective})})
    numbers = {"dev": {"pr_auc": 70.5, "accuracy": 81.5}, "test": {"pr_auc": 68.25, "accuracy": 80.0}, "graded": {}}
    if objective != "simcse":
        numbers["test"] |= {"direction.sim": 90.0, "direction.length_only": 92.5}
    numbers["graded"] |= {"spearman_cosine": 77.0}
    data = [DataSet("train", "training", "abcdef0123456789", "{}", "{}", 1800)]
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
    assert metadata["base_model"] == "sentence-transformers/all-MiniLM-L6-v2"
    (index,) = metadata["model-index"]
    assert index["name"] == "gausscse"
    results = {one["dataset"]["name"]: {m["type"]: m["value"] for m in one["metrics"]} for one in index["results"]}
    assert results["test"] == {"pr_auc": 68.25, "accuracy": 80.0, "direction.sim": 90.0, "direction.length_only": 92.5}
    assert results["graded"] == {"spearman_cosine": 77.0}


def test_a_model_of_generated_sentences_says_so_and_no_other_one() -> None:
    generated, other = card(replace(about(), generated=True), None), card(about(), None)
    assert DEMONSTRATION in generated and DEMONSTRATION not in other


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("The old men are walking to the market in the town with their dogs.", True),
        ("A girl and her brother are playing.", True),
        ("Die alten Herren gehen mit ihren Hunden zum Markt und kaufen dort Brot ein.", False),
        ("Ein Mann schläft.", False),
        ("Um homem no parque me disse que ele as viu.", False),
        ("De man is in de tuin, of was hij in het huis?", False),
        ("年を取った男たちが犬を連れて町の市場へ歩いている。", False),
    ],
)
def test_the_language_is_that_of_the_sentences(sentence: str, expected: bool) -> None:
    assert is_english([sentence] * 30) == expected
    language = "en" if expected else None
    head = card(about(), None, language=language).split("---\n", 2)[1]
    assert yaml.safe_load(head).get("language") == language


def test_every_number_has_its_baseline_next_to_it() -> None:
    header, row = (
        next(line for line in card(about(), None).splitlines() if line.startswith(f"| {name} ")) for name in ("set", "test")
    )
    cells = dict(zip(header.split(" | "), row.split(" | "), strict=True))
    assert cells["direction, baseline: the longer sentence entails"] == "92.50"
    assert (cells["accuracy"], cells["accuracy, hypothesis only |"]) == ("80.00", "66.00 |")


@pytest.mark.parametrize(("objective", "formula"), [("ent", "kl"), ("simcse", "cosine")])
def test_similarity_and_direction_are_those_of_the_model(objective: str, formula: ScoreKind) -> None:
    body = card(about(objective), CALIBRATION)
    assert FORMULAS[formula] in " ".join(body.partition("```")[0].split())
    assert ("encoder.direction(" in body) == (objective != "simcse")


def test_a_published_model_has_its_threshold_its_card_and_its_canary_pairs(lab: Lab) -> None:
    with published(lab.untrained(1), about(), CALIBRATION, lab.root / DEV_TOKENS) as folder:
        check_sums(folder)
        encoder, canaries = GaussianEncoder.from_pretrained(folder), read_canaries(folder)
        assert encoder.calibration == CALIBRATION
        text = (folder / CARD).read_text(encoding="utf-8")
        shown = encoder.text_of([row.tolist() for row in map(open_store(lab.root / DEV_TOKENS).__getitem__, range(20))])
        assert text == card(about(), CALIBRATION, language="en" if is_english(shown) else None)
        assert canaries is not None
        assert len(set(canaries.premises)) == 32
        canaries.check(encoder.similarity(canaries.hypotheses, canaries.premises), None)


def test_generated_sentences_are_english(lab: Lab) -> None:
    with published(lab.untrained(1), replace(about(), generated=True), CALIBRATION, lab.root / DEV_TOKENS) as folder:
        head = (folder / CARD).read_text(encoding="utf-8").split("---\n", 2)[1]
        assert (note_of(folder), note_of(lab.untrained(1))) == (DEMONSTRATION, "")
    assert yaml.safe_load(head)["language"] == "en"


def test_the_card_shows_what_the_model_says_of_a_pair_of_each_kind(lab: Lab, tmp_path: Path) -> None:
    encoder = GaussianEncoder.from_pretrained(lab.untrained(1))
    encoder.relation_head = drawn_relation(encoder.mean_head.in_features)
    encoder.save_pretrained(tmp_path / "model")
    with published(tmp_path / "model", about(), CALIBRATION, lab.root / DEV_TOKENS) as folder:
        table = (folder / CARD).read_text(encoding="utf-8").partition("| kind | premise |")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    pairs = json.loads(EXAMPLES.read_text(encoding="utf-8"))
    assert [row[:3] for row in rows] == [pair[:3] for pair in pairs]
    for (_, premise, hypothesis, said, wrong), (*_, true) in zip(rows, pairs, strict=True):
        chances = encoder.relation(premise, hypothesis)
        assert said == max(chances, key=lambda name: chances[name])
        assert wrong == ("" if said == true else true)
    # The head is drawn, so some are wrong.
    assert any(row[4] for row in rows)
