"""Stage report: results/report.md out of what the stages before it wrote."""

from __future__ import annotations

from pipeline.check import load_project
from pipeline.errors import run_stage
from pipeline.files import read_json, write_text
from pipeline.grid import read_choice
from pipeline.project import EVALUATE, PROFILE, REGISTER, REPORT, TRAIN, TUNE
from pipeline.report import render


def main() -> None:
    """Read the results, write the page."""
    load_project()
    page = render(
        profile=read_json(PROFILE),
        trials_csv=(TUNE / "trials.csv").read_text(encoding="utf-8"),
        choice=read_choice(TUNE / "best.yaml").model_dump(),
        outcomes=read_json(TRAIN / "outcomes.json"),
        timing=read_json(TRAIN / "timing.json"),
        metrics=read_json(EVALUATE / "summary.json"),
        registered=read_json(REGISTER),
    )
    write_text(REPORT, page)
    print(f"report: {REPORT}")


if __name__ == "__main__":
    run_stage(main)
