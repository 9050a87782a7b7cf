"""`python -m pipeline.submit STAGE` (`make submit`): uploads, then does what anybody can do by hand, `ray job submit`."""

from __future__ import annotations

import json
import os
import shlex
import sys
from typing import NoReturn

from pipeline.check import load_project
from pipeline.errors import UserError, run_stage
from pipeline.execution import Execution
from pipeline.upload import upload
from pipeline.uris import URI_VARIABLE, uri_of_environment
from pipeline.work import STAGES


def main() -> None:
    """Submit the stage that is asked for to the cluster of execution.yaml."""
    asked = sys.argv[1:]
    if len(asked) != 1 or asked[0] not in STAGES:
        raise UserError(f"got {' '.join(asked) or 'no stage'}; name one of {', '.join(STAGES)}: make submit STAGE=tune")
    _, execution = load_project()
    if not execution.cluster.by_jobs:
        raise UserError(
            f"execution.yaml: cluster.address: got {execution.cluster.address!r}; write the address of the cluster's dashboard, "
            "http://host:8265"
        )
    upload(execution)
    submit(execution, f"stages.{asked[0]}")


def submit(execution: Execution, module: str, *arguments: str) -> NoReturn:
    """Go on as `ray job submit` of a module of this project, which is printed first."""
    command = ["ray", "job", "submit", "--address", str(execution.cluster.address), "--working-dir", "."]
    if uri := uri_of_environment():
        # It wins over tracking.uri, there as here.
        command += ["--runtime-env-json", json.dumps({"env_vars": {URI_VARIABLE: uri}})]
    command += ["--", "python", "-m", module, *arguments]
    print(shlex.join(command), flush=True)
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.execvp(command[0], command)


if __name__ == "__main__":
    run_stage(main)
