"""Stage report: writes index.html and report.md from the outputs of the earlier stages; logs them and the curves in MLflow.

DVC runs this stage every time, since MLflow may lack what DVC has in its cache. The pipeline's run in MLflow has a digest of the
report and of everything it is made from; if that is still right, nothing is written or sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.cluster.preflight import load_project
from pipeline.config.params import Params
from pipeline.config.paths import EVALUATE, EXPERIMENTS, PREPARED, PROFILE, REGISTER, REPORT, TOKENS, TRAIN, TUNE
from pipeline.data.token_store import MANIFEST
from pipeline.identity.digests import PACKAGE
from pipeline.utils.atomic_io import read_json, sha256_file, sha256_json, write_directory
from pipeline.utils.errors import run_stage
from pipeline.utils.logs import log

_TOKENS = TOKENS / "train" / MANIFEST, TOKENS / "dev", TOKENS / "tests"
_RESULTS = PROFILE, TUNE, TRAIN, EVALUATE, EXPERIMENTS, REGISTER
_MADE_FROM = (PREPARED / "dev", PREPARED / "tests", *_TOKENS, *_RESULTS, Path(PACKAGE.name))
_TAG = "gausscse.report"


def main() -> None:
    """Read the results, write the report, log it."""
    root = Path.cwd()
    p, execution = load_project()
    # Imported only after the parameters are checked: these take seconds.
    from pipeline.evaluation.aggregate import flat_headlines
    from pipeline.tracking import mlflow_runs
    from pipeline.trials.recipe_run import MAIN

    # The page shows every key that affects results. Each section is named, here as in dvc.yaml: DVC tracks what is named there.
    sections = p.data, p.model, p.objective, p.train, p.tune, p.relation, p.evaluate, p.experiments, p.register_, p.report
    keys = {name.rstrip("_"): one.model_dump(mode="json") for name, one in zip(Params.model_fields, sections, strict=True)}
    tracker, parent = mlflow_runs.enter_pipeline(p, execution.tracking, root)
    with mlflow_runs.stage_of(tracker, parent):
        if mlflow_runs.tags_of(tracker, parent).get(_TAG) == _digest(keys):
            log.info(f"report: {REPORT / 'index.html'} is up to date")
            return
        from pipeline.report.differences import differences
        from pipeline.report.results import read_results
        from pipeline.report.writing import write_report

        results = read_results(p, keys, Path())
        found = differences(results.recipes, p.evaluate, Path())
        with write_directory(REPORT) as out:
            write_report(results, out, found)
        # Also what stage evaluate has logged, unless it came from the cache.
        evaluated = read_json(EVALUATE / "summary.json")[MAIN]
        mlflow_runs.log_metrics(tracker, parent, flat_headlines(evaluated))
        files = ("summary.json", "per_seed.json", "pr_curves.csv")
        curves = [of / "curves.csv" for of in (TUNE, TRAIN, EXPERIMENTS)]
        mlflow_runs.log_files(
            tracker, parent, [REPORT, *curves, *(of / file for of in (EVALUATE, EXPERIMENTS) for file in files)]
        )
        mlflow_runs.tag(tracker, parent, {_TAG: _digest(keys)})
    log.info(f"report: {REPORT / 'index.html'}")


def _digest(keys: Mapping[str, Any]) -> str:
    """SHA-256 over the keys of params.yaml that are shown, the files that the report is made from, and the report's own."""
    files = [file for top in (*_MADE_FROM, REPORT) for file in ([top] if top.is_file() else sorted(top.rglob("*")))]
    return sha256_json([keys, [(str(f), sha256_file(f)) for f in files if f.is_file() and f.suffix != ".pyc"]])


if __name__ == "__main__":
    run_stage(main)
