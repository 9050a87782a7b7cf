"""What is seen of a trial on a real Ray: Prometheus metrics, MLflow metrics and tags, lines."""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path

import pytest
import ray
from ray._raylet import AuthenticationTokenLoader
from ray.dashboard.modules.reporter.reporter_agent import METRICS_GAUGES

from pipeline.cluster.gauges import GAUGES
from pipeline.cluster.grid_search import run_trials
from pipeline.cluster.session import session
from pipeline.config.load import load_execution
from pipeline.tracking import mlflow_runs, server
from pipeline.tracking.server import Tracker
from tests.conftest import ROOT
from tests.distributed.test_trials import make_trial, places
from tests.gates import wait_for
from tests.store import random_stores


def test_a_trial_is_seen_in_prometheus_and_in_mlflow(
    tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    execution = load_execution(ROOT / "execution.yaml")
    stores = random_stores(tmp_path / "stores", sentences=400, triplets=400)
    tracker = server.open_tracker(execution.tracking, tmp_path / "mlflow")
    parent = mlflow_runs.pipeline_run(tracker, "seen", {}, {})
    trial = make_trial(tiny_backbone, stores, 1e-3)

    # Ray remembers the token of a cluster that was asked before; the session has its own.
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0" * 64)
    loader = AuthenticationTokenLoader.instance()
    loader.reset_cache()
    assert loader.has_token(ignore_auth_mode=True)
    with session(execution.cluster) as on:
        results = run_trials([trial], places(stores, tmp_path / "storage"), lambda: on, tracker, parent)
        assert results[0].outcome is not None
        port = ray.nodes()[0]["MetricsExportPort"]
        text = ""
        # Those of GPUs come with a GPU.
        of_nodes = {name for name in on_dashboard() - set(GAUGES) if "gpu" not in name}
        assert of_nodes

        def exported() -> bool:
            nonlocal text
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
                text = answer.read().decode()
            return {"gausscse_seconds_left", *of_nodes} <= names_in(text)

        wait_for(exported, 60, f"Ray exports the gauges and {of_nodes}", every=1.0)
    said = capfd.readouterr().out
    assert f"{trial.name}  on cpu in fp32 (train.precision: fp32)\n" in said
    assert re.search(r"device: cpu \(cluster\.device: auto, and Ray finds no GPU\)", said)
    assert re.search(r"triplets/s  peak [\d,]+ MB", said)
    # A processor has no known peak, and one worker gathers nothing.
    ours = {name for name in names_in(text) if name.startswith("gausscse_")}
    assert ours == set(GAUGES) - {"gausscse_mfu_percent", "gausscse_gathered_mb"}
    done = re.search(r"^ray_gausscse_step_ratio\{(.*)\} ([\d.]+)$", text, re.MULTILINE)
    assert done is not None and float(done[2]) == 1.0 and f'trial="{trial.name}"' in done[1]
    _seen_in_mlflow(tracker, parent)


def names_in(text: str) -> set[str]:
    """The metrics in what Ray exports."""
    return set(re.findall(r"^ray_(\w+)\{", text, re.MULTILINE))


def _seen_in_mlflow(tracker: Tracker, parent: str) -> None:
    runs = tracker.client.search_runs([tracker.experiment_id], f"tags.`mlflow.parentRunId` = '{parent}'")
    assert len(runs) == 1
    assert (runs[0].data.tags["gausscse.device"], runs[0].data.tags["gausscse.precision"]) == ("cpu", "fp32")
    metrics = runs[0].data.metrics
    assert metrics["tflops"] > 0 and metrics["peak_memory_mb"] > 0
    assert 0 < metrics["system/system_memory_usage_percentage"] <= 100
    assert 0 <= metrics["system/cpu_utilization_percentage"] <= 100
    assert "system/gpu_memory_usage_megabytes" not in metrics
    assert "gathered_mb" not in metrics


def on_dashboard() -> set[str]:
    """The metrics on the dashboard's panels."""
    dashboard = json.loads((ROOT / "deploy/grafana/gausscse.json").read_text(encoding="utf-8"))
    return {
        name
        for panel in dashboard["panels"]
        for target in panel["targets"]
        for name in re.findall(r"\bray_(\w+)", target["expr"])
    }


def test_the_dashboard_shows_every_gauge_and_otherwise_what_ray_defines() -> None:
    others = on_dashboard() - set(GAUGES)
    assert on_dashboard() - others == set(GAUGES)
    assert others and others <= set(METRICS_GAUGES)
