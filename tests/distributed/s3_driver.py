"""A stage's grid with its storage on S3, in its own Ray. Run by test_s3_outages."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pipeline.cluster.grid_search import run_trials
from pipeline.cluster.session import session_on_demand
from pipeline.config.execution import Execution
from pipeline.storage.object_store import storage_here
from pipeline.tracking import mlflow_runs, server
from pipeline.trials.grid import table_rows, to_csv
from pipeline.trials.store import TrialStore
from pipeline.trials.trial import Trial
from pipeline.utils.atomic_io import write_json
from pipeline.utils.errors import run_stage


def main() -> None:
    spec = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    execution = Execution.model_validate_json(json.dumps(spec["execution"]))
    trials = [Trial.model_validate_json(json.dumps(trial)) for trial in spec["trials"]]
    tracker = server.open_tracker(execution.tracking, Path(spec["mlflow"]))
    parent = mlflow_runs.pipeline_run(tracker, "s3", {}, {})
    with (
        storage_here(execution.cluster.storage, Path("/")) as (folder, remote),
        mlflow_runs.stage_of(tracker, parent),
        session_on_demand(execution.cluster) as session,
    ):
        stores = {name: Path(path) for name, path in spec["stores"].items()}
        results = run_trials(trials, TrialStore(**stores, storage=folder, remote=remote), session, tracker, parent)
        table = to_csv(table_rows(results))
    write_json(Path(sys.argv[2]), {"table": table, "failures": [result.failure for result in results]})


if __name__ == "__main__":
    run_stage(main)
