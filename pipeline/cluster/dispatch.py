"""Where a stage does its work: in this process, as a job on a cluster, or, inside such a job, in the job's own folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from pipeline.cluster.preflight import check_backbone, load_project
from pipeline.cluster.stage_spec import STAGES, Work, leave, left, maker_of
from pipeline.config.job_inputs import SENT_BACKBONE, Inputs, in_job, inputs_of
from pipeline.config.params import Params
from pipeline.identity.digests import BACKBONE, check_code
from pipeline.storage.object_store import Storage
from pipeline.utils.errors import UserError


def placed(stage: str, main: Callable[[], None], is_work: Callable[[Params], bool] = lambda _: True) -> Callable[[], None]:
    """Wrap a stage's `main` so that it runs where execution.yaml says, or in this process if `is_work` returns false.

    Jobs that run the same code on the same node share one working directory. So each job works in its own temporary folder, which
    has links to the project's files and to the inputs in the storage. The job's outputs are written there and then stored.
    """

    def run() -> None:
        params, execution = load_project()
        if in_job():
            sent = inputs_of(Path.cwd())
            needs_backbone = BACKBONE.as_posix() in Work.of(stage, Path.cwd()).inputs
            if needs_backbone and (sent is None or SENT_BACKBONE not in sent.objects):
                check_backbone(params)
            if sent is None:
                # The data may be in this folder already; otherwise nothing was sent.
                missing = [path for path in Work.of(stage, Path.cwd()).inputs if not Path(path).exists()]
                if missing:
                    raise UserError(f"{missing[0]}: missing, and no inputs.json says where it is; run `make upload`, then submit")
                work()
                return
            storage = Storage.open(execution.cluster.storage, Path.cwd())
            with _job_folder(stage, sent, storage):
                work()
        elif execution.cluster.by_jobs and is_work(params):
            from pipeline.cluster.jobs import run_as_job

            run_as_job(stage, params.model, execution)
        else:
            work()

    def work() -> None:
        check_code(Path.cwd(), stage)
        main()

    return run


@contextmanager
def _job_folder(stage: str, sent: Inputs, storage: Storage) -> Iterator[None]:
    """Change to a temporary folder for the stage's work; its outputs are put into the storage at the end.

    Raises:
        UserError: an input is missing from the storage, or differs from what was sent.
    """
    code = Path.cwd()
    with TemporaryDirectory(prefix=f"gausscse-{stage}-") as folder:
        root = Path(folder)
        for entry in code.iterdir():
            (root / entry.name).symlink_to(entry)
        work = Work.of(stage, code)
        inputs = _Inputs(sent, storage, code, root)
        digests = {path: inputs.digest(path) for path in work.inputs}
        for path in work.also_read:
            if path in sent.objects:
                inputs.digest(path)
        os.chdir(root)
        try:
            yield
            leave(storage, work.key(digests, code), {out: storage.put(root / out) for out in work.outs})
        finally:
            os.chdir(code)


class _Inputs:
    """Links to a job's inputs, which were sent with it or made by an earlier job."""

    def __init__(self, sent: Inputs, storage: Storage, code: Path, root: Path) -> None:
        self._sent, self._storage, self._code, self._root = sent, storage, code, root
        self._linked: set[str] = set()
        # Stages whose finished work is reused.
        self._reused: set[str] = set()

    def digest(self, path: str) -> str:
        """Link a path and return the digest of its content."""
        if path in self._sent.objects:
            self._link(path, self._sent.objects[path])
            return self._sent.objects[path]
        maker = maker_of(path, self._code)
        if maker is None or maker[0] not in STAGES:
            raise UserError(f"{path}: was not sent with the code; run `make upload` where the data is, and submit the job again")
        stage, out = maker
        work = Work.of(stage, self._code)
        key = work.key({source: self.digest(source) for source in work.inputs}, self._code)
        record = left(self._storage, key)
        if record is None:
            raise UserError(f"{path}: no job has made it from these data and parameters; submit `python -m stages.{stage}` first")
        if stage not in self._reused:
            record.tell_reuse(stage)
            self._reused.add(stage)
        self._link(out, record.outs[out])
        return self._storage.put(self._root / path)

    def _link(self, path: str, digest: str) -> None:
        link = self._root / path
        # Already linked, or inside a linked folder. Such a folder belongs to the storage, so nothing may be written into it.
        if path in self._linked or any(str(parent) in self._linked for parent in Path(path).parents):
            return
        self._storage.verify(digest)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(self._storage.local(digest))
        self._linked.add(path)
