"""`python -m pipeline.upload` (`make upload`): sends what stages read into cluster.storage, for jobs that are submitted by hand.

What DVC's stages prepare and tokenize have made goes there by its content, once; inputs.json, in the project's root, says what.
That file travels with the code, so that the job knows what it was sent with.
"""

from __future__ import annotations

from pathlib import Path

from pipeline.check import load_project
from pipeline.errors import UserError, run_stage
from pipeline.execution import Execution
from pipeline.files import write_text
from pipeline.job import INPUTS_FILE, Inputs, installed, to_text
from pipeline.project import git_commit, home
from pipeline.storage import Storage, everywhere
from pipeline.work import STAGES, Work, maker_of


def upload(execution: Execution) -> None:
    """Upload for the project we stand in, and write its inputs.json.

    Raises:
        UserError: the storage is no place that a job finds, cannot be reached, or there is nothing to send yet.
    """
    root = Path.cwd()
    name = execution.cluster.storage
    if not everywhere(name):
        raise UserError(
            f"execution.yaml: cluster.storage: got {name!r}; write the absolute path of a folder that this machine and all nodes "
            "see, or s3://bucket/prefix"
        )
    storage = Storage.open(name, home(root))
    wanted: dict[str, None] = {}
    for stage in STAGES:
        work = Work.of(stage, root)
        # What the stages of a cluster make, its jobs find in the storage themselves.
        made_here = [path for path in work.inputs if (made := maker_of(path, root)) and made[0] not in STAGES]
        wanted |= dict.fromkeys((*made_here, *(path for path in work.beside if (root / path).is_file())))
    for path in wanted:
        if not (root / path).exists():
            raise UserError(f"{path}: not here yet; run `dvc repro tokenize` first")
    objects = {path: storage.put(root / path) for path in wanted}
    write_text(root / INPUTS_FILE, to_text(Inputs(objects=objects, commit=git_commit(root), versions=installed())) + "\n")
    print(f"upload: {len(objects)} files and folders are in {storage.name}; {INPUTS_FILE} names them")


def main() -> None:
    """Read execution.yaml and upload."""
    upload(load_project()[1])


if __name__ == "__main__":
    run_stage(main)
