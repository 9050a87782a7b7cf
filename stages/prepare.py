"""Stage prepare: reads the sources named in `data`, cleans them and writes data/prepared/."""

from __future__ import annotations

from pathlib import Path

from pipeline.cluster.preflight import load_project
from pipeline.config.paths import PREPARED, PROFILE
from pipeline.data.source_checks import check_sources
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
    from pipeline.families.prepare import check_trainable, lines, prepare, warnings

    report = prepare(p.data, PREPARED, p.evaluate)
    for line in lines(report, p.data):
        log.info(line)
    check_trainable(report, p)
    for warning in warnings(read_json(PROFILE)):
        log.warning(warning)


if __name__ == "__main__":
    run_stage(main)
