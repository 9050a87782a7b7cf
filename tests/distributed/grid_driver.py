"""A pipeline run that may be killed: trials of a specification through a Ray of its own.

Without a storage of its own, the specification means that of its section cluster.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from pipeline.cluster.grid_search import run_trials
from pipeline.cluster.session import session_on_demand
from pipeline.config.execution import Execution
from pipeline.storage.object_store import storage_here
from pipeline.tracking import mlflow_runs, server
from pipeline.trials.store import TrialStore
from pipeline.trials.trial import Trial
from pipeline.utils.atomic_io import write_json
from pipeline.utils.errors import run_stage


def main() -> None:
    spec = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    execution = Execution.model_validate_json(json.dumps(spec["execution"]))
    trials = [Trial.model_validate_json(json.dumps(trial)) for trial in spec["trials"]]
    places = {name: Path(path) for name, path in spec["places"].items()}
    tracker = server.open_tracker(execution.tracking, Path(spec["mlflow"]))
    parent = mlflow_runs.pipeline_run(tracker, "killed", {}, {})
    with (
        storage_here(execution.cluster.storage, Path("/")) as (storage, remote),
        mlflow_runs.stage_of(tracker, parent),
        session_on_demand(execution.cluster) as session,
    ):
        store = TrialStore(**{"storage": storage, "remote": None if "storage" in places else remote, **places})
        results = run_trials(trials, store, session, tracker, parent)
    write_json(Path(sys.argv[2]), [asdict(result.outcome) if result.outcome else result.failure for result in results])


if __name__ == "__main__":
    run_stage(main)
