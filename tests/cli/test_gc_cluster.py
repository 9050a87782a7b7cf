"""`gausscse gc` and a cluster: what its jobs and its sessions need is kept as long as they do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from copies import ROOT
from gates import wait_for
from ray._raylet import AuthenticationTokenLoader
from ray.job_submission import JobStatus, JobSubmissionClient

from pipeline.cluster.garbage import collect
from pipeline.cluster.jobs import LiveJob, live_jobs
from pipeline.cluster.session import session
from pipeline.cluster.stage_spec import leave
from pipeline.config.execution import Execution
from pipeline.config.job_inputs import INPUTS_VARIABLE, Inputs, to_text
from pipeline.config.load import load_execution, load_params
from pipeline.storage import uses
from tests.cli.storages import Project
from tests.folders import folder_of

pytestmark = pytest.mark.faults

_HEAD = """
import functools, json, os, sys
import ray
from ray._private.parameter import RayParams
from pipeline.cluster.session import session
from pipeline.config.load import load_execution
# Jobs are started at a port that another Ray of this machine may have. This takes a free one.
RayParams.__init__ = functools.partialmethod(RayParams.__init__, dashboard_agent_listen_port=0)
with session(load_execution().cluster) as on:
    cpus = ray.cluster_resources()["CPU"]
    print(json.dumps([ray.get_runtime_context().gcs_address, on.dashboard, cpus, os.environ["RAY_AUTH_TOKEN"]]), flush=True)
    sys.stdin.read()
"""
_WAIT = "import sys, time\nfrom pathlib import Path\nwhile not Path(sys.argv[-1]).exists():\n    time.sleep(0.05)\n"


@dataclass(frozen=True)
class Ray:
    """A Ray of another process, which is a standing cluster for this one."""

    gcs: str
    dashboard: str
    cpus: float
    jobs: JobSubmissionClient

    def status(self, name: str) -> JobStatus:
        return self.jobs.get_job_status(name)

    def end(self, name: str, gate: Path) -> None:
        gate.touch()
        wait_for(lambda: self.status(name).is_terminal(), 200, "the job ends")
        assert self.status(name) == JobStatus.SUCCEEDED


@pytest.fixture(scope="module")
def cluster() -> Iterator[Ray]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    command = [sys.executable, "-c", _HEAD]
    pipe = subprocess.PIPE
    with (
        subprocess.Popen(command, cwd=ROOT, env=env, stdin=pipe, stdout=pipe, text=True) as head,
        pytest.MonkeyPatch.context() as p,
    ):
        assert head.stdout is not None
        gcs, dashboard, cpus, token = json.loads(next(line for line in head.stdout if line.startswith("[")))
        p.setenv("RAY_AUTH_TOKEN", token)
        AuthenticationTokenLoader.instance().reset_cache()
        jobs = JobSubmissionClient(f"http://{dashboard}")

        def accepts() -> bool:
            with suppress(RuntimeError):
                jobs.submit_job(entrypoint="true")
                return True
            return False

        wait_for(accepts, 300, "the part of Ray that starts jobs has started")
        yield Ray(gcs, f"http://{dashboard}", cpus, jobs)
    AuthenticationTokenLoader.instance().reset_cache()


@pytest.fixture
def gate(cluster: Ray, tmp_path: Path) -> Iterator[Path]:
    """The file that jobs wait for; no job of a failed test runs on during the next."""
    yield tmp_path / "gate"
    for name in ("gate", "room"):
        (tmp_path / name).touch()
    # Ray lists processes that have joined it as jobs, too.
    wait_for(lambda: all(job.status.is_terminal() for job in cluster.jobs.list_jobs() if job.submission_id), 200, "all jobs end")


@dataclass(frozen=True)
class Kept:
    """A storage with an object that was sent for a job, another one, and finished work."""

    project: Project
    execution: Execution
    sent: str
    other: str
    result: str

    @staticmethod
    def of(project: Project, address: str, folder: Path) -> Kept:
        storage = project.storage
        sent, other, result = (storage.put(folder_of(folder / name, a=name)) for name in ("sent", "other", "result"))
        leave(storage, "d" * 64, {"results/tune": result})
        execution = load_execution(project.root / "execution.yaml")
        params = execution.cluster.model_copy(update={"address": address, "storage": str(storage.folder)})
        return Kept(project, execution.model_copy(update={"cluster": params}), sent, other, result)

    @property
    def inputs(self) -> str:
        return to_text(Inputs(objects={"data/tokens/dev": self.sent}, commit="c", versions={}))

    def collected(self) -> dict[str, str]:
        """Remove what nothing keeps; name → why of the rest."""
        root = self.project.root
        verdicts = list(collect(load_params(root / "params.yaml"), self.execution, root, 0, delete=True))
        kept = {verdict.thing.name: verdict.why for verdict in verdicts if verdict.kept}
        assert {"/".join(name.split("/")[:2]) for name in self.project.files} == kept.keys()
        return kept

    def all_needed_by(self, job: str) -> dict[str, str]:
        names = (f"objects/{self.sent}", f"objects/{self.other}", f"work/{'d' * 64}")
        return {**dict.fromkeys(names, f"job {job} may need it"), f"objects/{self.result}": f"work/{'d' * 64}"}


@pytest.fixture
def kept(on_disk: Project, cluster: Ray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kept:
    monkeypatch.chdir(on_disk.root)
    return Kept.of(on_disk, cluster.dashboard, tmp_path)


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What jobs run in place of the project: each waits for a file."""
    folder = tmp_path_factory.mktemp("code")
    for module in ("stages/tune", "pipeline/cli", "other/train"):
        file = folder_of(folder, **{f"{module}.py": _WAIT}) / module
        # Without it, Python takes the project's own package.
        (file.parent / "__init__.py").touch()
    command = folder_of(folder / "bin", gausscse=f"#!{sys.executable}\n{_WAIT}") / "gausscse"
    command.chmod(0o755)
    return folder


def test_the_inputs_of_a_job_are_kept_until_it_has_ended(
    cluster: Ray, code: Path, kept: Kept, gate: Path, tmp_path: Path
) -> None:
    storage, room = kept.project.storage, tmp_path / "room"
    runtime_env = {"working_dir": str(code)}
    began = time.time_ns() - 1_000_000
    # A job that is not of this project takes all the room.
    foreign = cluster.jobs.submit_job(
        entrypoint=f"python -m other.train {room}", runtime_env=runtime_env, entrypoint_num_cpus=cluster.cpus
    )
    wait_for(lambda: cluster.status(foreign) == JobStatus.RUNNING, 200, "the other job runs")
    name = cluster.jobs.submit_job(
        entrypoint=f"python -m stages.tune {gate}",
        submission_id="gausscse-tune-1",
        runtime_env={**runtime_env, "env_vars": {INPUTS_VARIABLE: kept.inputs}},
        metadata={"gausscse.stage": "tune"},
        entrypoint_num_cpus=1,
    )
    (job,) = live_jobs(cluster.dashboard)
    assert began < job.submitted < time.time_ns()
    sent = {"data/tokens/dev": kept.sent}
    assert job == LiveJob(name, job.submitted, sent, waits=True)
    assert kept.collected() == {**kept.all_needed_by(name), f"objects/{kept.sent}": f"job {name}"}

    cluster.end(foreign, room)
    wait_for(lambda: cluster.status(name) == JobStatus.RUNNING, 200, "the job runs")
    assert live_jobs(f"{cluster.dashboard}/") == [LiveJob(name, job.submitted, sent, waits=False)]
    new = storage.put(folder_of(tmp_path / "new", a="new"))
    assert kept.collected() == {f"objects/{kept.sent}": f"job {name}", f"objects/{new}": f"in use by job {name}"}

    cluster.end(name, gate)
    assert live_jobs(cluster.dashboard) == []
    assert kept.collected() == {}


@pytest.mark.parametrize(
    ("command", "variables", "metadata"),
    [
        ("python -m stages.tune", {}, {}),
        ("python -u -m stages.tune", {INPUTS_VARIABLE: '{"objects": ["of another version"]}'}, {"gausscse.stage": "tune"}),
        ("python -m pipeline.cli encode corpus out", {}, {}),
        ("bin/gausscse encode corpus out", {}, {}),
        ("python -m other.train", {}, {"gausscse.stage": "tune"}),
    ],
)
def test_all_objects_are_kept_for_a_job_of_which_it_is_not_known_what_it_needs(
    cluster: Ray, code: Path, kept: Kept, gate: Path, command: str, variables: dict[str, str], metadata: dict[str, str]
) -> None:
    name = cluster.jobs.submit_job(
        entrypoint=f"{command} {gate}", runtime_env={"working_dir": str(code), "env_vars": variables}, metadata=metadata
    )
    wait_for(lambda: cluster.status(name) == JobStatus.RUNNING, 200, "the job runs")
    (job,) = live_jobs(cluster.dashboard)
    assert job == LiveJob(name, job.submitted, None, waits=False)
    assert kept.collected() == kept.all_needed_by(name)
    cluster.end(name, gate)
    assert live_jobs(cluster.dashboard) == []
    assert kept.collected() == {}


def test_nothing_is_kept_for_the_jobs_of_others(cluster: Ray, code: Path, kept: Kept, gate: Path) -> None:
    # Its arguments name this project, and its variables are those of a job of it.
    name = cluster.jobs.submit_job(
        entrypoint=f"python -m other.train stages.tune /data/gausscse/pipeline {gate}",
        runtime_env={"working_dir": str(code), "env_vars": {INPUTS_VARIABLE: kept.inputs}},
        metadata={"owner": "gausscse"},
    )
    wait_for(lambda: cluster.status(name) == JobStatus.RUNNING, 200, "the job runs")
    assert live_jobs(cluster.dashboard) == []
    assert kept.collected() == {}
    cluster.end(name, gate)


@pytest.mark.parametrize("relative", [True, False])
def test_what_a_session_on_a_cluster_shares_is_kept(
    cluster: Ray,
    on_disk: Project,
    relative: bool,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As `gausscse serve` and `gausscse encode` share a model that they have fetched."""
    monkeypatch.setattr(uses, "_BEAT", 0.05)
    monkeypatch.chdir(on_disk.root)
    # What the session sends to the nodes.
    for name in ("pipeline", "stages", "pyproject.toml"):
        (on_disk.root / name).symlink_to(ROOT / name)
    storage = on_disk.storage
    assert storage.folder is not None
    execution = load_execution(on_disk.root / "execution.yaml")
    place = on_disk.storage_name if relative else str(storage.folder)
    params = execution.cluster.model_copy(update={"address": cluster.gcs, "workers": 1, "storage": place})
    execution = execution.model_copy(update={"cluster": params})
    folder = tmp_path_factory.mktemp("fetched")

    def collected() -> dict[str, str | None]:
        """What becomes of each thing: why it is kept, or None."""
        verdicts = collect(load_params(), execution, on_disk.root, 0, delete=True)
        return {verdict.thing.name: verdict.why if verdict.kept else None for verdict in verdicts}

    with session(params) as on:
        if relative:
            # All nodes see the files of the project.
            inside = folder_of(on_disk.root / "model", a="inside")
            assert on.share(inside) == str(inside)
        # Nothing is shared yet.
        assert not storage.folder.exists()
        objects = [f"objects/{storage.put(folder_of(folder / name, a=name))}" for name in ("a", "b")]
        for name in ("a", "b"):
            assert Path(on.share(folder / name)).is_relative_to(storage.folder)
        (began,) = (name for name in storage.entries("runs") if not name.endswith(".alive"))
        beats = storage.entries("runs")[f"{began}.alive"].time
        wait_for(lambda: storage.entries("runs")[f"{began}.alive"].time > beats, 60, "a heartbeat")
        why = f"in use by {storage.read(began)}"
        assert collected() == dict.fromkeys(objects, why)
    # Its replicas end with it, but the run counts for an hour.
    assert collected() == dict.fromkeys(objects, why)
    on_disk.an_hour_later()
    assert collected() == dict.fromkeys(objects)
