"""A pipeline run that may be killed: trials of a specification through a Ray of its own. Run by test_grid_faults."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from pipeline.cluster.grid_search import run_trials
from pipeline.cluster.session import session_on_demand
from pipeline.config.execution import Execution
from pipeline.tracking import mlflow_runs, server
from pipeline.trials.store import TrialStore
from pipeline.trials.trial import Trial
from pipeline.utils.atomic_io import write_json
from pipeline.utils.errors import run_stage


def main() -> None:
    spec = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    execution = Execution.model_validate_json(json.dumps(spec["execution"]))
    trials = [Trial.model_validate_json(json.dumps(trial)) for trial in spec["trials"]]
    places = TrialStore(**{name: Path(path) for name, path in spec["places"].items()}, remote=None)
    tracker = server.open_tracker(execution.tracking, Path(spec["mlflow"]))
    parent = mlflow_runs.pipeline_run(tracker, "killed", {}, {})
    with mlflow_runs.stage_of(tracker, parent), session_on_demand(execution.cluster) as session:
        results = run_trials(trials, places, session, tracker, parent)
    write_json(Path(sys.argv[2]), [asdict(result.outcome) if result.outcome else result.failure for result in results])


if __name__ == "__main__":
    run_stage(main)
