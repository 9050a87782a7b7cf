"""The product's face: `dvc repro` from nothing to a champion, small but whole."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import auc, precision_recall_curve

from pipeline.config.execution import TrackingParams
from pipeline.models.encoder import GaussianEncoder
from pipeline.models.model_dir import encoder_digest, relation_digest
from pipeline.tracking.mlflow_runs import PARENT_TAG
from pipeline.tracking.server import open_tracker
from pipeline.utils.atomic_io import check_sums, read_json
from tests.gates import Gate
from tests.stages.running import EVERY_TIME, repro, set_param, snapshot, stages_run, start

pytestmark = pytest.mark.faults


@pytest.fixture(scope="module")
def project(whole: Path) -> Path:
    return whole


def test_every_stage_runs_once_and_train_reuses_what_tune_trained(first: str) -> None:
    ran = stages_run(first)
    assert sorted(ran) == ["evaluate", "experiment", "prepare", "register", "report", "tokenize", "train", "tune"]
    assert ran[-1] == "report"
    assert first.partition("Running stage 'train'")[2].count("reused, trained before") == 2
    # Progress: steps, loss, PR-AUC, speed, time left.
    assert re.search(r"step +\d+/\d+  loss \d\.\d+  lr .*selection PR-AUC \d+\.\d+.*triplets/s.*left", first)


def test_metrics_are_those_of_the_kept_scores(project: Path, first: str) -> None:
    per_seed = read_json(project / "results/evaluate/per_seed.json")["main recipe"]
    summary = read_json(project / "results/evaluate/summary.json")["main recipe"]
    for name in ("dev", "generated_test"):
        values: list[float] = []
        for seed in ("seed-1", "seed-2"):
            table = pq.read_table(project / f"results/evaluate/scores/main recipe/{name}/{seed}.parquet")
            labels, scores = table["label"].to_numpy() == 0, table["score"].to_numpy()
            precision, recall, _ = precision_recall_curve(labels, scores)
            assert per_seed[seed][name]["pr_auc"] == pytest.approx(100 * auc(recall, precision))
            threshold = per_seed[seed]["dev"]["threshold"]
            assert per_seed[seed][name]["accuracy"] == pytest.approx(100 * np.mean((scores >= threshold) == labels))
            entailed = table.filter(table["label"].to_numpy() == 0)
            right = np.mean(entailed["sim_hp"].to_numpy() > entailed["sim_ph"].to_numpy())
            assert per_seed[seed][name]["direction.sim"] == pytest.approx(100 * right)
            values.append(per_seed[seed][name]["pr_auc"])
        assert summary[name]["pr_auc"]["mean"] == pytest.approx(np.mean(values))
        assert summary[name]["pr_auc"]["sd"] == pytest.approx(np.std(values, ddof=1))
        headline = read_json(project / "results/evaluate/metrics.json")
        assert headline[name]["pr_auc"] == pytest.approx(np.mean(values), abs=1e-4)


def test_every_model_has_a_relation_head_that_scores_it(project: Path, first: str) -> None:
    assert len(re.findall(r"relation head of \S+: pass 5 of 5, loss \d\.\d+", first)) == 2
    per_seed = read_json(project / "results/evaluate/per_seed.json")["main recipe"]
    for seed in ("seed-1", "seed-2"):
        check_sums(project / "models" / seed)
        encoder = GaussianEncoder.from_pretrained(project / "models" / seed)
        assert encoder.relation_head is not None
        table = pq.read_table(project / f"results/evaluate/scores/main recipe/generated_test/{seed}.parquet")
        rows = pq.read_table(project / "data/prepared/tests/generated_test.parquet")
        found = encoder.relation(rows["premise"].to_pylist(), rows["hypothesis"].to_pylist()).entailment
        np.testing.assert_allclose(table["score"].to_numpy(), found.numpy(), rtol=2e-3)
        precision, recall, _ = precision_recall_curve(table["label"].to_numpy() == 0, table["similarity_score"].to_numpy())
        assert per_seed[seed]["generated_test"]["similarity.pr_auc"] == pytest.approx(100 * auc(recall, precision))
        entailed = table.filter(table["label"].to_numpy() == 0)
        right = np.mean(entailed["score"].to_numpy() > entailed["reverse_score"].to_numpy())
        assert per_seed[seed]["generated_test"]["direction.score"] == pytest.approx(100 * right)
    cards = (project / "mlartifacts").rglob("artifacts/encoder/README.md")
    assert all("A relation head (relation.safetensors)" in file.read_text(encoding="utf-8") for file in cards)


def test_a_head_is_fitted_to_a_finished_encoder(project: Path, first: str) -> None:
    trial = read_json(project / "results/train/outcomes.json")[0]["outcome"]["digest"]
    trained, published = project / f".gausscse/trials/{trial}/best", project / "models/seed-1"
    assert relation_digest(trained) is None and relation_digest(published) is not None
    assert encoder_digest(trained) == encoder_digest(published)


def runs(project: Path) -> tuple[list[Any], dict[str, list[Any]]]:
    tracker = open_tracker(TrackingParams(uri=None, experiment="gausscse"), project)
    every = tracker.client.search_runs([tracker.experiment_id])
    parents = [run for run in every if run.data.tags.get("gausscse.kind") == "pipeline"]
    children = {p.info.run_id: [r for r in every if r.data.tags.get(PARENT_TAG) == p.info.run_id] for p in parents}
    return parents, children


def test_mlflow_has_one_parent_and_its_trials(project: Path, first: str) -> None:
    parents, children = runs(project)
    assert [p.info.status for p in parents] == ["FINISHED"]
    (trials,) = children.values()
    assert [r.info.status for r in trials] == ["FINISHED"] * 2
    assert all(r.data.metrics["dev.pr_auc"] > 0 and r.data.metrics["generated_test.three_way"] > 0 for r in trials)
    assert parents[0].data.tags["mlflow.source.git.commit"].removesuffix("-dirty").isalnum()
    assert parents[0].data.params["objective.name"] == "ent+con+rev"
    for name in (
        "report/report.md",
        "report/curves/calibration.csv",
        "results/tune/curves.csv",
        "results/evaluate/pr_curves.csv",
    ):
        (kept,) = (project / "mlartifacts").rglob(name)
        assert kept.read_bytes() == (project / name).read_bytes()


def test_the_champion_loads_and_gives_mean_and_variance(project: Path, first: str) -> None:
    code = """
import mlflow, pandas as pd
mlflow.set_tracking_uri("sqlite:///mlflow.db")
model = mlflow.pyfunc.load_model("models:/gausscse@champion")
out = model.predict(pd.DataFrame({"sentence": ["A dog runs.", "An animal is moving."]}))
print(len(out), len(out["mean"][0]), len(out["variance"][0]), min(out["variance"][0]) > 0)
"""
    environment = {**os.environ, "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", code], cwd=project, env=environment, capture_output=True, text=True)
    assert done.stdout.split() == ["2", "32", "32", "True"], done.stderr


def test_a_second_repro_runs_no_stage(project: Path, first: str) -> None:
    assert stages_run(repro(project)) == EVERY_TIME


@pytest.mark.faults
def test_a_result_key_of_evaluate_leaves_training_alone(project: Path, first: str) -> None:
    set_param(project, "threshold_step: 0.001", "threshold_step: 0.01")
    ran = set(stages_run(repro(project)))
    # Prepare measures the hypothesis-only baseline.
    assert ran == {"prepare", "evaluate", "experiment", *EVERY_TIME}
    # The new pipeline run has its trials too, although tune and train came from the cache.
    parents, children = runs(project)
    assert len(parents) == 2
    assert all([r.info.status for r in trials] == ["FINISHED"] * 2 for trials in children.values())


@pytest.mark.parametrize(
    ("stage", "sign", "number"),
    [("train", "reused, trained before", signal.SIGTERM), ("evaluate", "scoring seed 1", signal.SIGINT)],
)
def test_a_stopped_stage_leaves_what_was_there(
    project: Path, first: str, tmp_path: Path, stage: str, sign: str, number: signal.Signals
) -> None:
    before = [snapshot(project / name) for name in ("results", "models")]
    # What was scored before would not be scored again.
    shutil.rmtree(project / ".gausscse/scores", ignore_errors=True)
    # It does not come to its end before the signal does.
    gate = Gate(tmp_path / "gate", r"\.(models|train|evaluate)\.[0-9a-f]+\.tmp")
    gate.close()
    process = start(project, stage, gate=gate)
    assert process.stdout is not None
    assert any(sign in line for line in process.stdout)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == {signal.SIGTERM: 143, signal.SIGINT: 130}[number], err
    assert err.splitlines()[-1].startswith("error: interrupted")
    assert "Traceback" not in err
    assert [snapshot(project / name) for name in ("results", "models")] == before
    assert not [r for trials in runs(project)[1].values() for r in trials if r.info.status == "RUNNING"]
