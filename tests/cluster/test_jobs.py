"""The jobs of users on a standing cluster: Ctrl-C, two users at once, and errors of one line."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from pipeline.trials.progress_log import RECORDS
from pipeline.trials.trial import PAUSE
from pipeline.utils.atomic_io import read_json
from tests.cluster.faults import workers, writer
from tests.cluster.hosts import Host
from tests.cluster.lab import BIN, Project, Terminal
from tests.gates import stopped, wait_for

pytestmark = pytest.mark.cluster


@pytest.mark.weekly
def test_ctrl_c_leaves_the_job_and_the_next_repro_finds_it(project: Project, tmp_path: Path) -> None:
    other = project.elsewhere(tmp_path)
    other.set("params.yaml", {"train.epochs": 4})
    # A worker that the test holds does not hang.
    other.set("execution.yaml", {"cluster.hang_timeout_s": 600.0})
    command = [*other.laptop.command, f"--wd={other.root}", str(BIN / "dvc"), "repro", "tune"]

    def reported() -> bool:
        return any(file.stat().st_size for file in other.storage.glob(f"trials/*/{RECORDS}"))

    def interrupted(terminal: Terminal) -> str:
        said = terminal.read_until(r"step +\d+/")
        terminal.write("\x03")
        return said + terminal.read_until(None)

    # Its first worker is held until it is asked to end: a job that has ended cannot be found.
    with ExitStack() as held:
        with Terminal(command, {**other.laptop.env, **other.env}) as terminal:
            wait_for(reported, 200, "it trains", every=0.01)
            (trial,) = other.storage.glob("trials/*")
            first = writer(trial)
            assert first is not None
            held.enter_context(stopped([first]))
            said = interrupted(terminal)
        assert terminal.code != 0
        job = re.search(r"as job (\S+);", said)
        assert job is not None
        assert f"error: interrupted; job {job[1]} continues at {other.address}" in said
        with Terminal(command, {**other.laptop.env, **other.env}) as terminal:
            said = interrupted(terminal)
        assert terminal.code != 0
        stop = re.search(r"`(ray job stop [^`]+)` stops it", said)
        assert stop is not None
        stopping = other.laptop.start(*stop[1].split(), cwd=other.root, env=other.env, log=other.root / "stop.log")
        wait_for((trial / PAUSE).exists, 60, "the worker is asked to end", every=0.01)
    assert stopping.wait(100) == 0
    assert f"job {job[1]} is already running on" in said
    # With a checkpoint of the step it was at.
    assert list(other.storage.glob("trials/*/latest/state.json"))
    again = other.repro("tune")
    work, _, number = job[1].rpartition("-")
    # What was done before is not in its log.
    assert f"as job {work}-{int(number) + 1};" in again
    assert "reused" not in again and again.count("Running entrypoint") == 1
    assert (other.root / "results/tune/best.yaml").is_file()
    outcome = read_json(next(other.storage.glob("trials/*/trial.json")))["outcome"]
    assert [entry["step"] for entry in outcome["history"]][-1] == outcome["total_steps"]


@pytest.mark.weekly
def test_two_users_at_once_do_not_see_each_other(project: Project, hosts: Mapping[str, Host], tmp_path: Path) -> None:
    """On one storage, each with a recipe of their own and equal code, which Ray keeps in one folder; there is room for one."""
    users = [project.elsewhere(tmp_path / name) for name in ("ann", "bob")]
    for user, temperature in zip(users, (0.1, 0.2), strict=True):
        user.set("execution.yaml", {"cluster.storage": str(tmp_path / "storage"), "cluster.placement_timeout_s": 10.0})
        user.set("params.yaml", {"objective.temperature": temperature})
    running = [
        user.laptop.start(str(BIN / "dvc"), "repro", "tune", cwd=user.root, env=user.env, log=user.root / "said.log")
        for user in users
    ]

    def waits() -> bool:
        return any("no room for 2 workers" in (user.root / "said.log").read_text(encoding="utf-8") for user in users)

    # The one that trains is held until the other one says that it waits.
    wait_for(
        lambda: any(writer(trial) for trial in (tmp_path / "storage").glob("trials/*")), 200, "one of them trains", every=0.01
    )
    with stopped(workers(hosts)):
        wait_for(waits, 120, "the other one says that it waits")
    for process, user in zip(running, users, strict=True):
        assert process.wait(400) == 0, (user.root / "said.log").read_text(encoding="utf-8")
    said = [(user.root / "said.log").read_text(encoding="utf-8") for user in users]
    jobs = [set(re.findall(r"as job (\S+);", text)) for text in said]
    assert len(jobs[0]) == len(jobs[1]) == 1
    assert not any(job in text for job, text in zip([*jobs[0], *jobs[1]], reversed(said), strict=True))
    # One waited for the other, longer than for a cluster that is too small.
    assert sum("no room for 2 workers; waiting for it" in text for text in said) == 1
    trials = [(user.root / "results/tune/trials.csv").read_text(encoding="utf-8") for user in users]
    assert trials[0] != trials[1]


def test_another_version_than_that_of_a_node_is_one_line(project: Project, tmp_path: Path) -> None:
    other = project.elsewhere(tmp_path)
    other.make("upload")
    sent = json.loads((other.root / "inputs.json").read_text(encoding="utf-8"))
    sent["versions"]["torch"] = "2.99.0"
    (other.root / "inputs.json").write_text(json.dumps(sent), encoding="utf-8")
    submit = ("ray", "job", "submit", "--address", other.address, "--working-dir", ".", "--", "python", "-m", "stages.tune")
    done = other.laptop.attempt(*submit, cwd=other.root, env=other.env)
    assert done.returncode != 0
    assert re.search(
        r"error: node 10\.213\.7\.\d of the cluster has torch 2\.\d+\.\d+, this project was sent with 2\.99\.0; ", done.stdout
    )
