"""QuickThoughts from text without labels to a champion: `dvc repro` on a project that has no pairs at all."""

from __future__ import annotations

import re
import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold

from pipeline.config.execution import TrackingParams
from pipeline.config.load import load_execution, load_params
from pipeline.families.text.generated import generate_documents
from pipeline.models.encoder import GaussianEncoder
from pipeline.registry.loading import load
from pipeline.registry.version_scorer import VersionScorer
from pipeline.tracking.server import open_tracker
from pipeline.trials.store import TrialStore
from pipeline.utils.atomic_io import read_json
from tests.stages.conftest import small_project
from tests.stages.running import objective_of, repro, set_keys, stages_run

# A whole pipeline, which takes minutes.
pytestmark = pytest.mark.faults


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, tiny_backbone: Path) -> Path:
    root = small_project(tmp_path_factory.mktemp("quickthoughts"), tiny_backbone)
    shutil.rmtree(root / "raw", ignore_errors=True)
    raw = root / "raw"
    raw.mkdir()
    for name, split, number in (("text", "train", 700), ("test", "test", 40)):
        documents = [" ".join(sentences) for sentences in generate_documents(split, number, 1)]  # type: ignore[arg-type]
        pq.write_table(pa.table({"text": documents}), raw / f"{name}.parquet")
    sentences = [sentence for document in generate_documents("dev", 60, 1) for sentence in document[:4]]
    tense = ["past" if " was " in sentence else "present" for sentence in sentences]
    pq.write_table(pa.table({"text": sentences, "label": tense}), raw / "tense.parquet")
    set_keys(
        root,
        {
            "data.source": "files",
            "data.root": "raw",
            "data.files.text": [{"path": "text.parquet"}],
            "data.files.text_tests": {"more": {"path": "test.parquet"}},
            "data.files.tasks": {"tense": {"path": "tense.parquet"}},
            "objective": objective_of("quickthoughts-quick") | {"block_size": 2},
            "model.relation_head": "none",
            "model.mean_activation": "none",
            "tune.batch_sizes": [64],
            "tune.seeds": [1],
            "train.seeds": [1],
            "train.eval_every": 20,
            "register.name": "quickthoughts",
            "register.metric": "next_sentence",
            "experiments.variants": {
                "blocks": {"objective.loss": "block", "objective.direction": "next"},
                "kl": {"objective.score": "kl", "objective.run_length": 4, "model.towers": "encoders"},
            },
        },
    )
    return root


@pytest.fixture(scope="module")
def said(project: Path) -> str:
    return repro(project)


def found_by_loop(encoder: GaussianEncoder, file: Path) -> float:
    rows = pq.read_table(file).to_pylist()
    pairs = [(a["sentence"], b["sentence"], i) for i, (a, b) in enumerate(pairwise(rows)) if a["document"] == b["document"]]
    right: list[bool] = []
    for start in range(0, len(pairs) // 64 * 64, 64):
        group = pairs[start : start + 64]
        f, _ = encoder.encode([first for first, _, _ in group]).mean.double().chunk(2, 1)
        _, g = encoder.encode([second for _, second, _ in group]).mean.double().chunk(2, 1)
        for k, (*_, place) in enumerate(group):
            scores = {other: float(f[k] @ g[j]) for j, (*_, other) in enumerate(group) if other + 1 != place}
            best = max(value for other, value in scores.items() if other != place)
            right.append(scores[place] > best)
    return 100 * float(np.mean(right))


def test_every_stage_runs_on_text_alone(project: Path, said: str) -> None:
    assert sorted(stages_run(said)) == ["evaluate", "experiment", "prepare", "register", "report", "tokenize", "train", "tune"]
    assert "selection next-sentence accuracy" in said
    assert " sentences/s" in said
    assert not (project / "data/prepared/train/triplets.parquet").exists()
    registered = read_json(project / "results/register.json")
    assert (registered["name"], registered["alias"], registered["metric"]) == ("quickthoughts", "champion", "next_sentence")
    page = (project / "report/report.md").read_text(encoding="utf-8")
    assert "## Running text" in page
    assert "## Transfer tasks" in page
    assert re.search(r"\*\*Verdict:\*\* quickthoughts version 1, the champion, is (not )?better than chance", page)
    assert "PR-AUC" not in page


def test_the_next_sentence_is_that_of_a_loop(project: Path, said: str) -> None:
    numbers = read_json(project / "results/evaluate/per_seed.json")["main recipe"]["seed-1"]
    encoder = GaussianEncoder.from_pretrained(project / "models/seed-1")
    for name, file in {"dev_text": "dev/dev_text", "more": "tests/more"}.items():
        expected = found_by_loop(encoder, project / f"data/prepared/{file}.text.parquet")
        # A tie of float32 may be broken by another order of its sums.
        assert numbers[name]["next_sentence"] == pytest.approx(expected, abs=1.6)
    assert numbers["dev_text"]["next_sentence"] == pytest.approx(read_json(project / "results/register.json")["dev_score"])
    outcome = read_json(project / "results/train/outcomes.json")[0]["outcome"]
    assert outcome["score_name"] == "dev_next_sentence"


def test_the_transfer_task_is_that_of_scikit_learn(project: Path, said: str) -> None:
    numbers = read_json(project / "results/evaluate/per_seed.json")["main recipe"]["seed-1"]["tense"]
    rows = pq.read_table(project / "raw/tense.parquet").to_pydict()
    x = GaussianEncoder.from_pretrained(project / "models/seed-1").encode(rows["text"]).mean.numpy()
    y = np.array(rows["label"])
    right = 0
    for train, test in StratifiedKFold(10, shuffle=True, random_state=1111).split(x, y):
        right += int((LogisticRegression(max_iter=1000).fit(x[train], y[train]).predict(x[test]) == y[test]).sum())
    assert numbers["pairs"] == len(y)
    assert numbers["logistic"] == pytest.approx(100 * right / len(y), abs=0.5)
    assert numbers["majority"] == pytest.approx(100 * max(np.mean(y == "past"), np.mean(y == "present")))


def test_the_champion_is_served_like_any_other(project: Path, said: str) -> None:
    uri = open_tracker(TrackingParams(uri=None, experiment="gausscse"), project).uri
    encoder = load("models:/quickthoughts@champion", tracking_uri=uri)
    assert encoder.score_kind == "cosine"
    assert 0 < encoder.similarity("A dog was running.", "An animal was running.") <= 1
    with pytest.raises(Exception, match="it has no direction"):
        encoder.direction("A dog was running.", "An animal was running.")


def test_variants_keep_their_own_architecture(project: Path, said: str) -> None:
    per_seed = read_json(project / "results/experiments/per_seed.json")
    assert per_seed.keys() == {"blocks", "kl"}
    trials = {entry["name"]: entry["seeds"][0]["trial"] for entry in read_json(project / "results/experiments/variants.json")}
    two = GaussianEncoder.from_pretrained(project / f".gausscse/trials/{trials['kl']}/best")
    one = GaussianEncoder.from_pretrained(project / f".gausscse/trials/{trials['blocks']}/best")
    assert (len(two.towers), len(one.towers)) == (2, 1)
    first, second = (next(tower.parameters()).detach().numpy() for tower in two.towers)
    assert not np.allclose(first, second)
    assert two.score_kind == "kl"


def test_a_promotion_draws_whole_documents(project: Path, said: str) -> None:
    p, storage = load_params(project / "params.yaml"), load_execution(project / "execution.yaml").cluster.storage
    tracker = open_tracker(TrackingParams(uri=None, experiment="gausscse"), project)
    with TrialStore.of_project(project, storage) as store:
        drawn = VersionScorer(p.register_, p.evaluate, project, store, tracker.uri).groups()["promotion_text"].tolist()
    rows = pq.read_table(project / "data/prepared/promotion/promotion_text.text.parquet").to_pylist()
    document = [a["document"] for a, b in pairwise(rows) if a["document"] == b["document"]][: len(drawn)]
    assert len(document) == len(drawn) >= 64
    assert len(set(zip(document, drawn, strict=True))) == len(set(document)) == len(set(drawn)) > 1


@pytest.mark.weekly
def test_a_second_model_must_beat_the_first_on_the_promotion_text(project: Path, said: str) -> None:
    set_keys(project, {"train.seeds": [2], "experiments.variants": {}})
    repro(project)
    registered = read_json(project / "results/register.json")
    assert registered["version"] == 2
    check = registered["decision"]["checks"][0]
    assert check["name"] == "promotion.next_sentence"
    found = registered["decision"]["differences"]["promotion_text"]["next_sentence"]
    assert (found["low"] > 0) == check["passed"]
    assert {"more", "tense"} <= registered["decision"]["differences"].keys()
