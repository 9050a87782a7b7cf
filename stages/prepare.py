"""Stage prepare: reads the sources named in `data`, cleans them and writes data/prepared/."""

from __future__ import annotations

from pathlib import Path

from pipeline.cluster.dispatch import placed
from pipeline.cluster.preflight import load_project
from pipeline.cluster.spread import held_out_files, is_large, raw_files, spread_for
from pipeline.config.params import Params
from pipeline.config.paths import PREPARED, PROFILE
from pipeline.data.source_checks import check_sources
from pipeline.utils.atomic_io import read_json
from pipeline.utils.errors import run_stage
from pipeline.utils.logs import log


def main() -> None:
    """Run the stage from the project root."""
    p, execution = load_project()
    check_sources(p.data)
    # Imported only after the parameters are checked: these take seconds.
    from pipeline.families.prepare import check_trainable, lines, prepare, warnings

    given = {"data": p.data.model_dump(mode="json")}
    with spread_for("prepare", execution.cluster, raw_files(p.data), given, held_out_files(p.data)) as spread:
        report = prepare(p.data, PREPARED, p.evaluate, spread)
    for line in lines(report, p.data):
        log.info(line)
    check_trainable(report, p)
    for warning in warnings(read_json(PROFILE)):
        log.warning(warning)


def _can_be_sent(params: Params) -> bool:
    """Whether the raw data are much, and inside the project, where a job has them, too."""
    root = Path(params.data.root)
    return not root.is_absolute() and ".." not in root.parts and is_large(raw_files(params.data))


if __name__ == "__main__":
    run_stage(placed("prepare", main, _can_be_sent))
