"""Stage prepare: read the sources named in `data`, clean them, write data/prepared/."""

from __future__ import annotations

import sys
from typing import Any

from pipeline.check import load_project
from pipeline.data.warn import warnings
from pipeline.data_sets import check_sources
from pipeline.errors import run_stage
from pipeline.files import read_json
from pipeline.project import PREPARED, PROFILE


def main() -> None:
    """Run the stage from the project root."""
    p, _ = load_project()
    check_sources(p.data)
    # This takes seconds to import: not before the parameters are known to be right.
    from pipeline.data.prepare import prepare

    # The hypothesis-only baseline is measured here, by the rules of evaluation.
    report = prepare(p.data, PREPARED, threshold_step=p.evaluate.threshold_step, entailment_if=p.evaluate.entailment_if)
    train = report["train"]
    print(_line("train", train))
    print(f"  {train['triplets']:,} triplets, {train['triplets_with_contradiction']:,} of them with a contradiction")
    for name, rows in {"dev": report["dev"], "promotion": report["promotion"], **report["tests"], **report["sts"]}.items():
        print(_line(name, rows))
    for warning in warnings(read_json(PROFILE)):
        print(f"warning: {warning}", file=sys.stderr)


def _line(name: str, rows: dict[str, Any]) -> str:
    dropped = ", ".join(f"{reason} {number:,}" for reason, number in rows["dropped"].items() if number)
    return f"{name}: {rows['rows_in']:,} rows in, {rows['rows_out']:,} kept; dropped: {dropped or 'none'}"


if __name__ == "__main__":
    run_stage(main)
