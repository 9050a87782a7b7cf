"""`gausscse submit STAGE`: sends the prepared data to cluster.storage, then the stage to the cluster.

`--upload` sends only the data, for a `ray job submit` typed by hand. `--package` only writes the project as an archive for a
KubeRay RayJob; the data must have been sent before.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipeline.cluster.dispatch import STAGES
from pipeline.cluster.package import PACKAGE, pack
from pipeline.cluster.preflight import load_project
from pipeline.cluster.submit import submit, upload
from pipeline.config.job_inputs import INPUTS_FILE
from pipeline.utils.atomic_io import replacing
from pipeline.utils.errors import UserError
from pipeline.utils.logs import log
from pipeline.utils.parser import Parser


def main(arguments: Sequence[str]) -> None:
    """Submit, upload or package, as the command line says."""
    parser = Parser(prog="gausscse submit", description="Send the prepared data and a stage to a Ray cluster.")
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument(
        "stage", nargs="?", choices=STAGES, metavar="STAGE", help=f"upload, then submit one of {', '.join(STAGES)}"
    )
    action.add_argument("--upload", action="store_true", help="only send the prepared data to cluster.storage")
    action.add_argument("--package", action="store_true", help=f"only write the project's code as {PACKAGE}, for KubeRay")
    options = parser.parse_args(arguments)
    if options.package:
        root = Path.cwd()
        with replacing(root / PACKAGE) as new:
            # When Ray downloads an archive with a single top folder, it removes that folder.
            packed = pack(root, new, top=PACKAGE.stem, also=(INPUTS_FILE,))
        log.info(f"package: {packed} files in {PACKAGE} ({(root / PACKAGE).stat().st_size / 1000:.0f} kB)")
        return
    params, execution = load_project()
    if options.stage and not execution.cluster.by_jobs:
        raise UserError(
            f"execution.yaml: cluster.address: got {execution.cluster.address!r}; write the address of the cluster's dashboard, "
            "http://host:8265"
        )
    upload(params.model, execution)
    if options.stage:
        submit(execution, f"stages.{options.stage}")
