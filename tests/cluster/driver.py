"""A pipeline run that joins the cluster once and trains the project's grid once for every order; tests.cluster.faults starts it
with the address of the cluster.

An order is a line of JSON: storage and out, and what differs from the project's files, in cluster, model and train.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

from pipeline import cluster, tracking
from pipeline.check import load_project
from pipeline.cluster import Places
from pipeline.errors import RunError
from pipeline.files import write_json
from pipeline.grid import Recipe, grid_trials, table_csv
from pipeline.identity import backbone_digest
from pipeline.project import DEV_TOKENS, TRAIN_TOKENS


def main() -> None:
    root = Path.cwd()
    p, execution = load_project()
    params = execution.cluster.model_copy(update={"address": sys.argv[1]})
    tracker = tracking.open_tracker(execution.tracking, root)
    with cluster.session(params) as session:
        for line in sys.stdin:
            order = json.loads(line)
            model = p.model.model_copy(update=order.get("model", {}))
            train = p.train.model_copy(update=order.get("train", {}))
            recipe = Recipe.of(model, p.objective, train, root)
            if "model" in order:
                recipe = replace(recipe, backbone_files=backbone_digest(model.backbone, model.revision))
            trials = grid_trials(recipe, p.tune)
            on = replace(session, params=params.model_copy(update=order.get("cluster", {})))
            places = Places(train_tokens=root / TRAIN_TOKENS, dev_tokens=root / DEV_TOKENS, storage=Path(order["storage"]))
            parent = tracking.pipeline_run(tracker, order["storage"], {}, {})
            with tracking.stage_of(tracker, parent):
                try:
                    results = cluster.run_trials(trials, places, lambda on=on: on, tracker, parent)
                except RunError as error:
                    # Where a stage would end.
                    told = {"failure": str(error), "table": ""}
                else:
                    told = {"failure": next((result.failure for result in results), None), "table": table_csv(results)}
            write_json(Path(order["out"]), {**told, "parent": parent})


if __name__ == "__main__":
    main()
