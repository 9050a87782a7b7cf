"""Runs a module of this project on a cluster with `ray job submit`, a command that anyone can type as well."""

from __future__ import annotations

import json
import os
import shlex
from typing import NoReturn

from pipeline.config.execution import Execution
from pipeline.utils.logs import log
from pipeline.utils.uris import URI_VARIABLE, uri_of_environment


def submit(execution: Execution, module: str, *arguments: str) -> NoReturn:
    """Show the `ray job submit` command for a module of this project, then replace this process with it."""
    command = ["ray", "job", "submit", "--address", str(execution.cluster.address), "--working-dir", "."]
    if uri := uri_of_environment():
        # In the job as well, it overrides tracking.uri.
        command += ["--runtime-env-json", json.dumps({"env_vars": {URI_VARIABLE: uri}})]
    command += ["--", "python", "-m", module, *arguments]
    log.info(shlex.join(command))
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.execvp(command[0], command)
