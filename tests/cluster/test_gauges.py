"""What is seen of a trial on a real Ray: Prometheus metrics, MLflow metrics and tags, lines."""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path

import pytest
import ray
from conftest import ROOT
from gates import wait_for
from ray._raylet import AuthenticationTokenLoader
from store import random_stores

from pipeline.cluster.gauges import GAUGES
from pipeline.cluster.grid_search import run_trials
from pipeline.cluster.session import session
from pipeline.config.load import load_execution
from pipeline.tracking import mlflow_runs, server
from pipeline.tracking.server import Tracker
from tests.distributed.test_trials import make_trial, places


def test_a_trial_is_seen_in_prometheus_and_in_mlflow(
    tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    execution = load_execution(ROOT / "execution.yaml")
    stores = random_stores(tmp_path / "stores", sentences=400, triplets=400)
    tracker = server.open_tracker(execution.tracking, tmp_path / "mlflow")
    parent = mlflow_runs.pipeline_run(tracker, "seen", {}, {})
    trial = make_trial(tiny_backbone, stores, 1e-3)

    # Ray remembers the token of a cluster that was asked before, as `gausscse gc` asks for jobs; the session has its own.
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0" * 64)
    loader = AuthenticationTokenLoader.instance()
    loader.reset_cache()
    assert loader.has_token(ignore_auth_mode=True)
    with session(execution.cluster) as on:
        results = run_trials([trial], places(stores, tmp_path / "storage"), lambda: on, tracker, parent)
        assert results[0].outcome is not None
        port = ray.nodes()[0]["MetricsExportPort"]
        text = ""

        def exported() -> bool:
            nonlocal text
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
                text = answer.read().decode()
            return "ray_gausscse_seconds_left{" in text

        wait_for(exported, 60, "Ray exports the gauges", every=1.0)
    said = capfd.readouterr().out
    assert f"{trial.name}  on cpu in fp32 (train.precision: fp32)\n" in said
    assert re.search(r"device: cpu \(cluster\.device: auto, and Ray finds no GPU\)", said)
    assert re.search(r"triplets/s  peak [\d,]+ MB", said)
    # A processor has no known peak, and one worker gathers nothing.
    names = set(re.findall(r"^ray_(gausscse_\w+)\{", text, re.MULTILINE))
    assert names == set(GAUGES) - {"gausscse_mfu_percent", "gausscse_gathered_mb"}
    done = re.search(r"^ray_gausscse_step_ratio\{(.*)\} ([\d.]+)$", text, re.MULTILINE)
    assert done is not None and float(done[2]) == 1.0 and f'trial="{trial.name}"' in done[1]
    _seen_in_mlflow(tracker, parent)


def _seen_in_mlflow(tracker: Tracker, parent: str) -> None:
    runs = tracker.client.search_runs([tracker.experiment_id], f"tags.`mlflow.parentRunId` = '{parent}'")
    assert len(runs) == 1
    assert (runs[0].data.tags["gausscse.device"], runs[0].data.tags["gausscse.precision"]) == ("cpu", "fp32")
    metrics = runs[0].data.metrics
    assert metrics["tflops"] > 0 and metrics["peak_memory_mb"] > 0
    assert 0 < metrics["system/system_memory_usage_percentage"] <= 100
    assert 0 <= metrics["system/cpu_utilization_percentage"] <= 100
    assert "system/gpu_memory_usage_megabytes" not in metrics


def test_the_dashboard_shows_every_gauge_and_no_other() -> None:
    dashboard = json.loads((ROOT / "deploy/grafana/gausscse.json").read_text(encoding="utf-8"))
    shown = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert {name for expression in shown for name in re.findall(r"ray_(gausscse_\w+)", expression)} == set(GAUGES)
    others = {name for expression in shown for name in re.findall(r"ray_node_\w+", expression)}
    assert others == {"ray_node_gpus_utilization", "ray_node_cpu_utilization", "ray_node_mem_used"}
