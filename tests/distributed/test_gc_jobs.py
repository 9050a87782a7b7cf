"""`gausscse gc` and the jobs of a real Ray: what a job was sent is kept until the job has ended."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT
from gates import wait_for
from ray.job_submission import JobSubmissionClient

from pipeline.cluster.garbage import collect
from pipeline.cluster.jobs import live_jobs
from pipeline.cluster.session import Session
from pipeline.cluster.session import session as open_session
from pipeline.cluster.stage_spec import Work, leave
from pipeline.config.job_inputs import INPUTS_VARIABLE, Inputs, to_text
from pipeline.config.load import load_execution, load_params
from pipeline.utils.atomic_io import write_json
from tests.cli.storages import Project
from tests.folders import folder_of


@pytest.fixture(scope="module")
def on() -> Iterator[Session]:
    with open_session(load_execution(ROOT / "execution.yaml").cluster) as session:
        yield session


def test_what_a_job_was_sent_is_kept_until_it_has_ended(
    on: Session, tmp_path: Path, tiny_backbone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    project = Project.made(tmp_path, tiny_backbone, str(tmp_path / "kept"))
    address, storage = f"http://{on.dashboard}", project.storage
    execution = load_execution(tmp_path / "execution.yaml")
    execution = execution.model_copy(update={"cluster": execution.cluster.model_copy(update={"address": address})})
    client = JobSubmissionClient(address)

    def collected() -> dict[str, str | None]:
        """Object → why it is kept; None if it was removed."""
        verdicts = collect(load_params(tmp_path / "params.yaml"), execution, tmp_path, 0, delete=True)
        return {verdict.thing.key: verdict.why if verdict.kept else None for verdict in verdicts}

    def ended(job: str) -> bool:
        return client.get_job_status(job).is_terminal()

    # What a job has left for this project, and its inputs, which would be sent again.
    for name in ("stages", "pipeline"):
        (tmp_path / name).symlink_to(ROOT / name)
    write_json(tmp_path / "data/identity/weights.json", {"digest": "d"})
    work = Work.of("tune", tmp_path)
    digests = {path: storage.put(tmp_path / path) for path in work.inputs}
    key, result = work.key(digests, tmp_path), storage.put(folder_of(tmp_path / "result", a="result"))
    leave(storage, key, {"results/tune": result})
    own = dict.fromkeys((key, *digests.values()), "this project") | {result: f"work/{key}"}

    sent, other = (storage.put(folder_of(tmp_path / name, a=name)) for name in ("sent", "other"))
    inputs = to_text(Inputs(objects={"data/tokens/train": sent}, commit="c", versions={}))
    client.submit_job(
        entrypoint='python -c "import time; time.sleep(600)"',
        submission_id="gausscse-tune-a-1",
        runtime_env={"env_vars": {INPUTS_VARIABLE: inputs}},
        metadata={"gausscse.stage": "tune"},
    )
    client.submit_job(entrypoint='python -c "import time; time.sleep(600)"', submission_id="of-others")
    assert [(job.name, job.inputs) for job in live_jobs(address)] == [("gausscse-tune-a-1", {"data/tokens/train": sent})]
    assert collected() == own | {sent: "job gausscse-tune-a-1", other: None}
    for job in ("gausscse-tune-a-1", "of-others"):
        client.stop_job(job)
        wait_for(lambda job=job: ended(job), 120, "the job is stopped", every=0.5)
    assert live_jobs(address) == []

    # One that was typed by hand waits for room. What it needs is in a file that was sent with its code.
    client.submit_job(entrypoint="python -m stages.train", submission_id="by-hand", entrypoint_num_cpus=1000)
    assert [(job.name, job.inputs) for job in live_jobs(address)] == [("by-hand", None)]
    assert collected() == own | {sent: "job by-hand may need it"}
