"""Where a stage does its work: in this process, as a job on a cluster, or, inside such a job, in the job's own folder.

A stage's run is work that can be done elsewhere: its inputs, its outputs, and a key, all from dvc.yaml. The inputs are outputs of
other stages, which go through the storage, and the code travels with the project. Code, inputs and params make the key. Equal
keys mean equal results, so a job is found again by its key, and so are its outputs in the storage.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pydantic import ValidationError

from pipeline.cluster.preflight import check_backbone, load_project
from pipeline.config.job_inputs import INPUTS_FILE, SENT_BACKBONE, Inputs, in_job, inputs_of
from pipeline.config.load import dvc_stages, read_yaml
from pipeline.config.params import PARAMS_FILE, Params
from pipeline.config.paths import PROFILE, TOKENS, WORK
from pipeline.config.types import Section
from pipeline.data.token_store import MANIFEST
from pipeline.identity.digests import BACKBONE, CODE, check_code, digest_of_sums, library_versions, other_versions, stage_sums
from pipeline.storage.object_store import Storage
from pipeline.utils.atomic_io import sha256_json
from pipeline.utils.errors import UserError
from pipeline.utils.logs import log

STAGES = ("tune", "train", "evaluate", "experiment")
"""The stages that compute, and so can run on a cluster."""
# Each of them also reads these files to tag its MLflow run; results do not depend on them.
_ALSO_READ = (
    *((TOKENS / store / MANIFEST).as_posix() for store in ("train", "dev", "tests")),
    *(PROFILE.as_posix(), BACKBONE.as_posix()),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A stage of a project; paths are relative to the project's root."""

    stage: str
    inputs: tuple[str, ...]
    """What this one reads: outputs of other stages, or raw data."""
    outs: tuple[str, ...]
    params: Mapping[str, Any]

    @staticmethod
    def of(stage: str, root: Path) -> Work:
        """The work of a stage, from dvc.yaml and params.yaml.

        Raises:
            UserError: one of the two files cannot be read.
        """
        stages = dvc_stages(root)
        outputs = [out for described in stages.values() for out in _outs(described)]
        params, deps = read_yaml(root / PARAMS_FILE), stages[stage].get("deps", [])
        # Besides the outputs of other stages, a value of params.yaml: the folder of the raw data.
        named = [str(_value(params, dep[2:-1])) if dep.startswith("${") else dep for dep in deps]
        inputs = tuple(
            path
            for dep, path in zip(deps, named, strict=True)
            if dep != path or any(Path(path).is_relative_to(out) for out in outputs)
        )
        return Work(
            stage=stage,
            inputs=inputs,
            outs=tuple(_outs(stages[stage])),
            params={key: _value(params, key) for key in stages[stage].get("params", [])},
        )

    @property
    def also_read(self) -> tuple[str, ...]:
        """Further files that the stage reads but that do not change its results, without files inside an input."""
        return tuple(path for path in _ALSO_READ if not any(Path(path).is_relative_to(one) for one in self.inputs))

    def key(self, digests: Mapping[str, str], root: Path) -> str:
        """Hex SHA-256 of everything that decides the outputs.

        Args:
            digests: input → digest of its content.
            root: the folder with the code. Its digests are computed here: those in data/identity may be older than the code.
        """
        return sha256_json(
            {
                "stage": self.stage,
                "code": digest_of_sums(stage_sums(self.stage, root / "pipeline")),
                "inputs": {path: digests[path] for path in self.inputs if Path(path) not in CODE},
                "params": self.params,
            }
        )


def maker_of(path: str, root: Path) -> tuple[str, str] | None:
    """The stage that makes a path, and the output of that stage that holds it; None if no stage does."""
    for stage, described in dvc_stages(root).items():
        for out in _outs(described):
            if Path(path).is_relative_to(out):
                return stage, out
    return None


class Left(Section):
    """The outputs of finished work."""

    outs: dict[str, str]
    """Path → digest."""
    versions: dict[str, str]
    """`library_versions` of the machine that did the work."""

    def tell_reuse(self, stage: str) -> None:
        """Warn if the work was done with other library versions than the ones here."""
        if others := other_versions([self.versions]):
            log.warning(f"results of {stage} that are reused were computed with {others}")


def leave(storage: Storage, key: str, outs: Mapping[str, str]) -> None:
    """Record the outputs (path → digest) of the work with this key in the storage, with the library versions here."""
    storage.use(f"{WORK}/{key}")
    storage.write(f"{WORK}/{key}/outs.json", Left(outs=dict(outs), versions=library_versions()).model_dump_json(indent=2) + "\n")


def left(storage: Storage, key: str, *, use: bool = True) -> Left | None:
    """What `leave` recorded; None if that work is not done yet.

    Args:
        use: whether to mark the record as used.

    Raises:
        UserError: the record is damaged.
    """
    if use:
        storage.use(f"{WORK}/{key}")
    if (text := storage.read(f"{WORK}/{key}/outs.json")) is None:
        return None
    try:
        return Left.model_validate_json(text)
    except ValidationError:
        raise UserError(f"{storage.name}: {WORK}/{key}/outs.json is damaged; remove it and run again") from None


def _outs(stage: Mapping[str, Any]) -> list[str]:
    outs = [*stage.get("outs", []), *stage.get("metrics", [])]
    # One with options is a mapping from its name.
    return [name for out in outs for name in ([out] if isinstance(out, str) else out)]


def _value(held: Any, key: str) -> Any:
    for part in key.split("."):
        held = held.get(part) if isinstance(held, dict) else None
    return held


def placed(stage: str, main: Callable[[], None], is_work: Callable[[Params], bool] = lambda _: True) -> Callable[[], None]:
    """Wrap a stage's `main` so that it runs where execution.yaml says, or in this process if `is_work` returns false.

    Jobs that run the same code on the same node share one working directory. So each job works in its own temporary folder, which
    has links to the project's files and to the inputs in the storage. The job's outputs are written there and then stored.
    """

    def run() -> None:
        params, execution = load_project()
        if in_job():
            if (sent := inputs_of(Path.cwd())) is None:
                raise UserError(f"{INPUTS_FILE}: missing; run `make upload` where the data is, and submit the job again")
            if SENT_BACKBONE not in sent.objects and BACKBONE.as_posix() in Work.of(stage, Path.cwd()).inputs:
                check_backbone(params)
            with _job_folder(stage, sent, Storage.open(execution.cluster.storage, Path.cwd())):
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
        # Stage → its finished work, which is reused.
        self._made: dict[str, Left] = {}

    def digest(self, path: str) -> str:
        """Link a path and return the digest of its content."""
        if path in self._sent.objects:
            self._link(path, self._sent.objects[path])
            return self._sent.objects[path]
        maker = maker_of(path, self._code)
        if maker is None or maker[0] not in STAGES:
            raise UserError(f"{path}: was not sent with the code; run `make upload` where the data is, and submit the job again")
        stage, out = maker
        if stage not in self._made:
            work = Work.of(stage, self._code)
            record = left(self._storage, work.key({source: self.digest(source) for source in work.inputs}, self._code))
            if record is None:
                why = f"no job has made it from these data and parameters; submit `python -m stages.{stage}` first"
                raise UserError(f"{path}: {why}")
            record.tell_reuse(stage)
            self._made[stage] = record
        self._link(out, self._made[stage].outs[out])
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
