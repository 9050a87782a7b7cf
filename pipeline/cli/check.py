"""`gausscse check`: finds mistakes in a project's parameters and raw data, which it reads. It prints nothing if all is well.

The stages check the parameters as well. Of them, only stage prepare checks the raw data again: the others also run on machines
without it. The command repairs one thing: a lock file that a killed DVC left half-written.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipeline.cluster.preflight import load_project, repair_dvc
from pipeline.data.source_checks import check_sources
from pipeline.models.backbone import check_positions, resolve
from pipeline.utils.errors import UserError
from pipeline.utils.parser import Parser


def main(arguments: Sequence[str] = ()) -> None:
    """Check the project in the current folder."""
    parser = Parser(
        prog="gausscse check", description="Look for mistakes in the parameters and the raw data before anything runs."
    )
    parser.add_argument("--without-data", action="store_true", help="the parameters only, on a machine that lacks the raw data")
    options = parser.parse_args(arguments)
    repair_dvc()
    # DVC takes it for one without stages, and runs all of them.
    if (lock := Path("dvc.lock")).is_file() and not lock.read_bytes().strip(b"\0\n "):
        raise UserError(f"{lock}: is empty, as a power failure leaves it; get it back (`git checkout {lock}`), or remove it")
    params, _ = load_project()
    if not options.without_data:
        check_sources(params.data)
        # It takes a second to import.
        from pipeline.families.prepare import check_contents

        check_contents(params.data)
        check_positions(resolve(params.model.backbone, params.model.revision), params.model.max_length)
