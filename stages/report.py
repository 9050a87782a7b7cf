"""Stage report: index.html and report.md out of what the stages before it wrote; MLflow gets them and the curves."""

from __future__ import annotations

from pathlib import Path

from pipeline.check import load_project
from pipeline.errors import run_stage
from pipeline.files import write_directory
from pipeline.project import EVALUATE, EXPERIMENTS, REPORT, TRAIN, TUNE

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
    # These take seconds to import: not before the parameters are known to be right.
    from pipeline import tracking
    from pipeline.report.content import read_content
    from pipeline.report.writing import write_report

    # The page shows every result key, so each section is named: DVC follows what is named here.
    shown = {
        "data": p.data,
        "model": p.model,
        "objective": p.objective,
        "train": p.train,
        "tune": p.tune,
        "evaluate": p.evaluate,
        "experiments": p.experiments,
        "register": p.register_,
        "report": p.report,
    }
    tracker, parent = tracking.enter_pipeline(p, execution.tracking, root)
    with tracking.stage_of(tracker, parent):
        content = read_content(p, shown, Path())
        with write_directory(REPORT) as out:
            write_report(content, out)
        tracking.log_files(tracker, parent, [REPORT, *_CURVES])
    print(f"report: {REPORT / 'index.html'}")


if __name__ == "__main__":
    run_stage(main)
