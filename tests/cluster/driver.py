"""A pipeline run that joins the cluster once and trains the project's grid once for every order; tests.cluster.faults starts it
with the address of the cluster.

An order is a line of JSON: storage and out, and what differs from the project's files, in cluster, model and train. A storage on
S3 is in cluster, too.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

from pipeline.cluster.grid_search import run_trials
from pipeline.cluster.preflight import load_project
from pipeline.cluster.session import session as ray_session
from pipeline.identity.digests import backbone_digest
from pipeline.tracking import mlflow_runs, server
from pipeline.trials.recipe_run import MAIN, RecipeRun, table_rows
from pipeline.trials.store import TrialStore
from pipeline.trials.trial import Recipe
from pipeline.utils.atomic_io import to_csv, write_json
from pipeline.utils.errors import RunError
from pipeline.utils.logs import set_up


def main() -> None:
    set_up()
    root = Path.cwd()
    p, execution = load_project()
    params = execution.cluster.model_copy(update={"address": sys.argv[1]})
    tracker = server.open_tracker(execution.tracking, root)
    with ray_session(params) as session:
        for line in sys.stdin:
            order = json.loads(line)
            model = p.model.model_copy(update=order.get("model", {}))
            train = p.train.model_copy(update=order.get("train", {}))
            recipe = Recipe.of(model, p.objective, train, root)
            if "model" in order:
                recipe = recipe.model_copy(update={"backbone_files": backbone_digest(model.backbone, model.revision)})
            trials = RecipeRun.of(MAIN, recipe, p.tune).points
            on = replace(session, params=params.model_copy(update=order.get("cluster", {})))
            parent = mlflow_runs.pipeline_run(tracker, order["storage"], {}, {})
            with TrialStore.of_project(root, order["storage"]) as places, mlflow_runs.stage_of(tracker, parent):
                try:
                    results = run_trials(trials, places, lambda on=on: on, tracker, parent)
                except RunError as error:
                    # Where a stage would end.
                    answer = {"failure": str(error), "table": "", "outcomes": []}
                else:
                    # As stage tune writes it.
                    table = to_csv([{"variant": MAIN, **row} for row in table_rows(results)])
                    answer = {"failure": next((result.failure for result in results), None), "table": table}
                    answer["outcomes"] = [asdict(result.outcome) for result in results if result.outcome is not None]
            write_json(Path(order["out"]), {**answer, "parent": parent})


if __name__ == "__main__":
    main()
