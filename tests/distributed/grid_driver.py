"""A pipeline run that may be killed: trials of a specification through a Ray of its own. Run by test_grid_faults."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from pipeline import cluster, tracking
from pipeline.cluster import Places
from pipeline.errors import run_stage
from pipeline.execution import Execution
from pipeline.files import write_json
from pipeline.trial import Trial


def main() -> None:
    spec = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    execution = Execution.model_validate_json(json.dumps(spec["execution"]))
    trials = [Trial.model_validate_json(json.dumps(trial)) for trial in spec["trials"]]
    places = Places(**{name: Path(path) for name, path in spec["places"].items()}, remote=None)
    tracker = tracking.open_tracker(execution.tracking, Path(spec["mlflow"]))
    parent = tracking.pipeline_run(tracker, "killed", {}, {})
    with tracking.stage_of(tracker, parent), cluster.session_on_demand(execution.cluster) as session:
        results = cluster.run_trials(trials, places, session, tracker, parent)
    write_json(Path(sys.argv[2]), [asdict(result.outcome) if result.outcome else result.failure for result in results])


if __name__ == "__main__":
    run_stage(main)
