"""A stage's grid with its storage on S3, in its own Ray. Run by test_s3_outages."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pipeline import cluster, tracking
from pipeline.cluster import Places
from pipeline.errors import run_stage
from pipeline.execution import Execution
from pipeline.files import write_json
from pipeline.grid import table_csv
from pipeline.places import storage_here
from pipeline.trial import Trial


def main() -> None:
    spec = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    execution = Execution.model_validate_json(json.dumps(spec["execution"]))
    trials = [Trial.model_validate_json(json.dumps(trial)) for trial in spec["trials"]]
    tracker = tracking.open_tracker(execution.tracking, Path(spec["mlflow"]))
    parent = tracking.pipeline_run(tracker, "s3", {}, {})
    with (
        storage_here(execution.cluster.storage, Path("/")) as (folder, remote),
        tracking.stage_of(tracker, parent),
        cluster.session_on_demand(execution.cluster) as session,
    ):
        stores = {name: Path(path) for name, path in spec["stores"].items()}
        results = cluster.run_trials(trials, Places(**stores, storage=folder, remote=remote), session, tracker, parent)
        table = table_csv(results)
    write_json(Path(sys.argv[2]), {"table": table, "failures": [result.failure for result in results]})


if __name__ == "__main__":
    run_stage(main)
