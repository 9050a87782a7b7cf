"""Stage prepare: reads the sources named in `data`, cleans them and writes data/prepared/."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from pipeline.cluster.preflight import load_project
from pipeline.config.paths import PREPARED, PROFILE
from pipeline.data.source_checks import check_sources
from pipeline.data.warn import warnings
from pipeline.identity.digests import check_code
from pipeline.utils.atomic_io import read_json
from pipeline.utils.errors import run_stage
from pipeline.utils.logs import log


def main() -> None:
    """Run the stage from the project root."""
    p, _ = load_project()
    check_code(Path.cwd(), "prepare")
    check_sources(p.data)
    # Imported only after the parameters are checked: these take seconds.
    from pipeline.data.prepare import prepare
    from pipeline.evaluation.baselines import hypothesis_only_of
    from pipeline.evaluation.transfer import check

    # The hypothesis-only baseline is measured in this stage, with the threshold rule of evaluation.
    rule = partial(hypothesis_only_of, step=p.evaluate.threshold_step, entailment_if=p.evaluate.entailment_if)
    report = prepare(p.data, PREPARED, baseline=rule, check_task=partial(check, search=p.evaluate.transfer_search))
    if (train := report.get("train")) is not None:
        log.info(_line("train", train))
        log.info(f"  {train['triplets']:,} triplets, {train['triplets_with_contradiction']:,} of them with a contradiction")
    parts = {name: report[name] for name in ("dev", "promotion") if name in report}
    for name, rows in {**parts, **report["tests"], **report["sts"]}.items():
        log.info(_line(name, rows))
    for name, counts in report["text"].items():
        log.info(
            f"{name} (text): {counts['documents_in']:,} documents in, {counts['documents_out']:,} kept with "
            f"{counts['sentences']:,} sentences; dropped: {_dropped(counts)}"
        )
    for name, counts in report["operations"].items():
        log.info(_line(f"{name} (operations)", counts))
    for name, counts in report["tasks"].items():
        log.info(f"{name} (task): {counts['rows']:,} rows, {len(counts['classes'])} classes")
    for warning in warnings(read_json(PROFILE)):
        log.warning(warning)


def _line(name: str, rows: dict[str, Any]) -> str:
    return f"{name}: {rows['rows_in']:,} rows in, {rows['rows_out']:,} kept; dropped: {_dropped(rows)}"


def _dropped(rows: dict[str, Any]) -> str:
    return ", ".join(f"{reason} {number:,}" for reason, number in rows["dropped"].items() if number) or "none"


if __name__ == "__main__":
    run_stage(main)
