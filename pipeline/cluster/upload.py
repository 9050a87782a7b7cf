"""`gausscse submit --upload` (`make upload`): copies the inputs of the stages into cluster.storage, for jobs submitted by hand.

The outputs of the DVC stages prepare, identity and tokenize, and the backbone's files, are stored by content: each is sent only
once. inputs.json in the project's root lists what was sent. It travels with the code, so the job knows its inputs.
"""

from __future__ import annotations

from pathlib import Path

from pipeline.cluster import backbone_files
from pipeline.cluster.stage_spec import STAGES, Work, maker_of
from pipeline.config.execution import Execution
from pipeline.config.job_inputs import INPUTS_FILE, Inputs, git_commit, installed, to_text
from pipeline.config.params import ModelParams
from pipeline.config.paths import home
from pipeline.storage.object_store import Storage, everywhere
from pipeline.utils.atomic_io import write_text
from pipeline.utils.errors import UserError
from pipeline.utils.logs import log


def upload(model: ModelParams, execution: Execution) -> None:
    """Upload the inputs of the project in the current folder, and write its inputs.json.

    Raises:
        UserError: a job could not find this storage, the storage cannot be reached, or an input does not exist yet.
    """
    root = Path.cwd()
    name = execution.cluster.storage
    if not everywhere(name):
        raise UserError(
            f"execution.yaml: cluster.storage: got {name!r}; write the absolute path of a folder that this machine and all nodes "
            "see, or s3://bucket/prefix"
        )
    storage = Storage.open(name, home(root))
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
    write_text(root / INPUTS_FILE, to_text(Inputs(objects=objects, commit=git_commit(root), versions=installed())) + "\n")
    log.info(f"upload: {len(objects)} files and folders are in {storage.name}; {INPUTS_FILE} lists them")
