"""`gausscse submit`: copies the inputs of the stages into cluster.storage, and runs a module with `ray job submit`.

The outputs of the DVC stages prepare, identity and tokenize, and the backbone's files, are stored by content: each is sent only
once. inputs.json in the project's root lists what was sent. It travels with the code, so the job knows its inputs. `ray job
submit` is a command that anyone can type as well.
"""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import NoReturn

from pipeline.cluster import backbone_files
from pipeline.cluster.dispatch import STAGES, Work, maker_of
from pipeline.cluster.preflight import check_storage
from pipeline.config.execution import Execution
from pipeline.config.job_inputs import INPUTS_FILE, Inputs, git_commit, installed
from pipeline.config.params import ModelParams
from pipeline.config.paths import home
from pipeline.storage.object_store import Storage
from pipeline.utils.atomic_io import write_text
from pipeline.utils.errors import UserError
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
    os.execvp(command[0], command)


def upload(model: ModelParams, execution: Execution) -> None:
    """Upload the inputs of the project in the current folder, and write its inputs.json.

    Raises:
        UserError: a job could not find this storage, the storage cannot be reached, or an input does not exist yet.
    """
    check_storage(execution, shared=True)
    root = Path.cwd()
    storage = Storage.open(execution.cluster.storage, home(root))
    paths: dict[str, None] = {}
    for stage in STAGES:
        work = Work.of(stage, root)
        # Jobs find the outputs of stages that run on the cluster in the storage.
        made_here = [path for path in work.inputs if (maker := maker_of(path, root)) and maker[0] not in STAGES]
        paths |= dict.fromkeys((*made_here, *(path for path in work.also_read if (root / path).is_file())))
    for path in paths:
        if not (root / path).exists():
            raise UserError(f"{path}: does not exist yet; run `dvc repro tokenize` first")
    objects = {path: storage.put(root / path) for path in paths} | backbone_files.send(model, storage)
    inputs = Inputs(objects=objects, commit=git_commit(root), versions=installed())
    write_text(root / INPUTS_FILE, inputs.model_dump_json() + "\n")
    log.info(f"upload: {len(objects)} files and folders are in {storage.name}; {INPUTS_FILE} lists them")
