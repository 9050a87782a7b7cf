"""Stage report: writes index.html and report.md from the outputs of the earlier stages; logs them and the curves in MLflow."""

from __future__ import annotations

from pathlib import Path

from pipeline.cluster.preflight import load_project
from pipeline.config.paths import EVALUATE, EXPERIMENTS, REPORT, TRAIN, TUNE
from pipeline.utils.atomic_io import write_directory
from pipeline.utils.errors import run_stage
from pipeline.utils.logs import log

_CURVES = (
    TUNE / "curves.csv",
    TRAIN / "curves.csv",
    EVALUATE / "pr_curves.csv",
    EXPERIMENTS / "curves.csv",
    EXPERIMENTS / "pr_curves.csv",
)


def main() -> None:
    """Read the results, write the report, log it."""
    root = Path.cwd()
    p, execution = load_project()
    # Imported only after the parameters are checked: these take seconds.
    from pipeline.report.content import read_content
    from pipeline.report.writing import write_report
    from pipeline.tracking import mlflow_runs

    # The page shows every key that affects results. Each section is named, here as in dvc.yaml: DVC tracks what is named there.
    shown = {
        "data": p.data,
        "model": p.model,
        "objective": p.objective,
        "train": p.train,
        "tune": p.tune,
        "relation": p.relation,
        "evaluate": p.evaluate,
        "experiments": p.experiments,
        "register": p.register_,
        "report": p.report,
    }
    tracker, parent = mlflow_runs.enter_pipeline(p, execution.tracking, root)
    with mlflow_runs.stage_of(tracker, parent):
        content = read_content(p, shown, Path())
        with write_directory(REPORT) as out:
            write_report(content, out)
        mlflow_runs.log_files(tracker, parent, [REPORT, *_CURVES])
    log.info(f"report: {REPORT / 'index.html'}")


if __name__ == "__main__":
    run_stage(main)
