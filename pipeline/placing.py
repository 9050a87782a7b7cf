"""Where a stage's work is done: in this process, as a job on a cluster, or, seen from that job, in a folder of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from pipeline.check import load_project
from pipeline.errors import UserError
from pipeline.job import Inputs, in_job, inputs_of
from pipeline.params import Params
from pipeline.storage import Storage
from pipeline.work import STAGES, Work, leave, left, maker_of


def placed(stage: str, main: Callable[[], None], is_work: Callable[[Params], bool] = lambda _: True) -> Callable[[], None]:
    """A stage's `main`, done where execution.yaml says, or here where there is nothing in it to be sent to a cluster for.

    Jobs that run the same code on the same node stand in one and the same folder, so a job does its work in another, which has
    the project's files, links to what it reads in the storage, and what it writes, until that is in the storage as well.
    """

    def run() -> None:
        params, execution = load_project()
        if in_job():
            sent = inputs_of(Path.cwd())
            if sent is None:
                # Perhaps it stands where the data does; else nobody has sent any.
                missing = [path for path in Work.of(stage, Path.cwd()).inputs if not Path(path).exists()]
                if missing:
                    raise UserError(
                        f"{missing[0]}: not here, and no inputs.json says where it is: run `make upload`, then submit"
                    )
                main()
                return
            storage = Storage.open(execution.cluster.storage, Path.cwd())
            with _job_folder(stage, sent, storage):
                main()
        elif execution.cluster.by_jobs and is_work(params):
            from pipeline.cluster.jobs import run_as_job

            run_as_job(stage, execution)
        else:
            main()

    return run


@contextmanager
def _job_folder(stage: str, sent: Inputs, storage: Storage) -> Iterator[None]:
    """A folder to do the stage's work in; what it leaves there is put into the storage at the end.

    Raises:
        UserError: an input is not in the storage, or not what it was sent as.
    """
    code = Path.cwd()
    with TemporaryDirectory(prefix=f"gausscse-{stage}-") as folder:
        root = Path(folder)
        for entry in code.iterdir():
            (root / entry.name).symlink_to(entry)
        work = Work.of(stage, code)
        inputs = _Inputs(sent, storage, code, root)
        digests = {path: inputs.digest(path) for path in work.inputs}
        for path in work.beside:
            if path in sent.objects:
                inputs.digest(path)
        os.chdir(root)
        try:
            yield
            leave(storage, work.key(digests, code), {out: storage.put(root / out) for out in work.outs})
        finally:
            os.chdir(code)


class _Inputs:
    """Links to what a job reads: what was sent with it, or what an earlier job left."""

    def __init__(self, sent: Inputs, storage: Storage, code: Path, root: Path) -> None:
        self._sent, self._storage, self._code, self._root = sent, storage, code, root
        self._linked: set[str] = set()
        # Stages whose finished work was found.
        self._reused: set[str] = set()

    def digest(self, path: str) -> str:
        """Link a path; returns the digest of what is there."""
        if path in self._sent.objects:
            self._link(path, self._sent.objects[path])
            return self._sent.objects[path]
        made = maker_of(path, self._code)
        if made is None or made[0] not in STAGES:
            raise UserError(f"{path}: was not sent with the code; run `make upload` where the data is, and submit the job again")
        stage, out = made
        work = Work.of(stage, self._code)
        key = work.key({one: self.digest(one) for one in work.inputs}, self._code)
        done = left(self._storage, key)
        if done is None:
            raise UserError(f"{path}: no job has made it from these data and parameters; submit `python -m stages.{stage}` first")
        if stage not in self._reused:
            done.tell_reuse(stage)
            self._reused.add(stage)
        self._link(out, done.outs[out])
        return self._storage.put(self._root / path)

    def _link(self, path: str, digest: str) -> None:
        here = self._root / path
        # Linked before, or with the folder that it is in: that is the storage's own, where nothing may be written.
        if path in self._linked or any(str(parent) in self._linked for parent in Path(path).parents):
            return
        self._storage.verify(digest)
        here.parent.mkdir(parents=True, exist_ok=True)
        here.symlink_to(self._storage.local(digest))
        self._linked.add(path)
