"""deploy/compose.yaml and docs/cluster.md, "With Docker Compose": from nothing to a champion, each service on a host of its own.

The services have the commands, environments, configs, checks and order of the file; tests.cluster.containers says what differs.
The commands of the page are run on a laptop, which is the machine that would have Docker. No container has the backbone's folder.
"""

from __future__ import annotations

import json
import re
import secrets
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from pipeline.data.token_store import digest
from pipeline.storage.object_store import private_folder
from pipeline.utils.atomic_io import read_json
from tests.cluster.containers import LAPTOP, Containers, containers_of, own_root
from tests.cluster.hosts import hosts_can_be_made, needed, network
from tests.cluster.lab import small
from tests.console import Shell, shell, user_environment
from tests.copies import ROOT, copy_project
from tests.deploy.composed import composed, example, values
from tests.registry.servers import postgres_programs
from tests.stages.running import set_keys

pytestmark = [pytest.mark.cluster, pytest.mark.weekly]

SECTION = (ROOT / "docs/cluster.md").read_text(encoding="utf-8").partition("## With Docker Compose\n")[2].partition("\n## ")[0]
SECRET = [name for name, value in values(ROOT / "deploy/env.example").items() if not value]
MLFLOW, S3 = "mlflow.gausscse.internal", "s3.gausscse.internal"

# What an editor is for: every empty line gets a value of its own. The two workers share two cores.
EDITOR = f"""#!{sys.executable}
import pathlib, secrets, sys
file = pathlib.Path(sys.argv[1])
lines = [line + secrets.token_hex(32) if line.endswith("=") else line for line in file.read_text().splitlines()]
file.write_text("\\n".join(lines).replace("WORKER_CPUS=2", "WORKER_CPUS=1") + "\\n")
"""

CHAMPION = f"""
import json, os
from mlflow.tracking import MlflowClient
from pipeline.registry.loading import load
client = MlflowClient("http://{MLFLOW}:5000")
version = client.get_model_version_by_alias("gausscse", "champion")
run, parent = client.get_run(version.run_id), client.get_run(version.tags["pipeline_run"])
encoder = load("models:/gausscse@champion")
similarity = encoder.similarity(["Some animals are moving."], ["Three dogs run across a field."])
print(json.dumps({{"version": version.version, "tags": version.tags, "status": [run.info.status, parent.info.status],
                  "user": os.environ["MLFLOW_TRACKING_USERNAME"], "similarity": similarity.tolist()}}))
"""

JOB = ROOT / "deploy/kuberay/job.yaml"
# As KubeRay's operator does in HTTPMode.
SUBMIT = f"""
import json, time, yaml
from ray.job_submission import JobSubmissionClient
spec = yaml.safe_load(open("{JOB}"))["spec"]
client = JobSubmissionClient("http://127.0.0.1:8265")
job = client.submit_job(entrypoint=spec["entrypoint"], runtime_env=yaml.safe_load(spec["runtimeEnvYAML"]))
while not (status := client.get_job_status(job)).is_terminal():
    time.sleep(0.5)
print(json.dumps([status, client.get_job_logs(job)]))
"""

# A user of MLflow who is not its administrator makes no others.
USERS = f"""
from mlflow.server import get_app_client
get_app_client("basic-auth", "http://{MLFLOW}:5000").create_user("another", "a-password-of-its-own")
"""


@dataclass(frozen=True)
class Deployed:
    """The deployment after the page was followed to its end, the server included, and the shell of who followed it."""

    containers: Containers
    of: Mapping[str, str]
    """Container → its service."""
    project: Path
    env: Mapping[str, str]
    """deploy/.env."""
    bash: Shell
    said: str
    """By `gausscse check` and `dvc repro`."""
    ask: str
    """The page's command that asks the server."""

    def python(self, code: str) -> str:
        """The last line that a program of the user's prints."""
        file = self.project.parent / "asked.py"
        file.write_text(code, encoding="utf-8")
        printed = succeeds(self.bash, f"python {file}")
        return printed.strip().splitlines()[-1]


def status(bash: Shell, command: str) -> tuple[int, str]:
    printed, _, code = bash.run(f"{command}\necho status $?").rpartition("status ")
    return int(code), printed


def succeeds(bash: Shell, command: str) -> str:
    code, printed = status(bash, command)
    assert code == 0, f"{command}: {code}\n{printed[-6000:]}"
    return printed


def blocks(language: str) -> list[str]:
    """The blocks of a language in the section; a line that goes on after a backslash is one line."""
    every = re.findall(r"^```(\w*)\n(.*?)^```$", SECTION.replace("\\\n", ""), re.MULTILINE | re.DOTALL)
    return [text for its, text in every if its == language]


@pytest.fixture(scope="module")
def deployed(tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    hosts_can_be_made()
    postgres_programs()
    # The checks of compose.yaml call it, in the images.
    needed("wget")
    folder = tmp_path_factory.mktemp("deployment")
    programs, home, services = folder / "bin", folder / "home", folder / "services"
    for made in (programs, home, services):
        made.mkdir()
    for name, text in (("an-editor", EDITOR), ("sudo", '#!/bin/sh\nexec "$@"\n')):
        (programs / name).write_text(text, encoding="utf-8")
        (programs / name).chmod(0o755)
    project = copy_project(folder / "project")
    environment = user_environment(project, HOME=str(home), EDITOR="an-editor", OMP_NUM_THREADS="1")
    environment["PATH"] = f"{programs}:{environment['PATH']}"
    # What the page sets, a user's shell has not set before.
    for name in (*SECRET, "RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH", "MLFLOW_TRACKING_USERNAME", "AWS_SESSION_TOKEN"):
        environment.pop(name, None)
    compose, profile = composed(example()), example()["COMPOSE_PROFILES"]
    of = containers_of(compose, profile, "serve")
    first, server = (block.splitlines() for block in blocks(""))
    with ExitStack() as stack:
        hosts = stack.enter_context(network([*of, LAPTOP], {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}))
        laptop = hosts[LAPTOP]
        own_root(laptop, services, f"{laptop.address} {LAPTOP}\n")
        bash = stack.enter_context(shell(project, environment, *laptop.command, "env", f"--chdir={project}"))
        docker = first.index("docker compose -f deploy/compose.yaml up --build --detach --wait")
        for command in first[:docker]:
            succeeds(bash, command)
        env = values(project / "deploy/.env")
        # The nodes have neither the backbone nor what this machine has downloaded.
        containers = Containers(composed(env), of, hosts, services, [tiny_backbone, private_folder()])
        containers.up(*containers_of(compose, profile).values())
        for command in first[docker + 1 :]:
            succeeds(bash, command)
        assert succeeds(bash, "git status --porcelain") == ""
        (keys,) = map(yaml.safe_load, blocks("yaml"))
        set_keys(
            project, {f"{part}.{key}": value for part, held in keys.items() for key, value in held.items()}, "execution.yaml"
        )
        set_keys(project, {**small(tiny_backbone), "train.seeds": [1]})
        said = succeeds(bash, "gausscse check") + succeeds(bash, "dvc repro")
        (services / "user.log").write_text(said, encoding="utf-8")
        assert server[0] == "docker compose -f deploy/compose.yaml --profile serve up --build --detach --wait serve"
        containers.up("serve")
        yield Deployed(containers, of, project, env, bash, said, server[1])


@pytest.fixture(scope="module")
def champion(deployed: Deployed) -> dict[str, Any]:
    """The champion as a program on the laptop sees it."""
    return json.loads(deployed.python(CHAMPION))


def test_the_page_leads_from_nothing_to_a_champion(deployed: Deployed, champion: dict[str, Any]) -> None:
    said = deployed.said
    for stage in ("tune", "train", "evaluate"):
        assert f"{stage}: sent to http://127.0.0.1:8265 as job gausscse-{stage}-" in said
    assert "register: gausscse version 1 is champion: there was no champion yet" in said
    assert "Traceback" not in said
    assert str(champion["version"]) == "1"
    assert champion["user"] == "gausscse"
    assert champion["status"] == ["FINISHED", "FINISHED"]
    # It was trained and scored on what the laptop has prepared.
    for name in ("train", "dev", "tests"):
        assert champion["tags"][f"{name}_digest"] == digest(deployed.project / "data/tokens" / name), name
    assert read_json(deployed.project / "results/register.json")["champion_version"] == 1
    assert (deployed.project / "report/index.html").is_file()
    # Nothing of it is on the laptop alone.
    assert not (deployed.project / "mlflow.db").exists()
    assert not (deployed.project / ".gausscse/trials").exists()


def test_the_server_answers_with_the_champion_to_who_has_its_token(deployed: Deployed, champion: dict[str, Any]) -> None:
    answer = json.loads(succeeds(deployed.bash, deployed.ask))
    assert answer == {"model": "gausscse/1", "similarity": pytest.approx(champion["similarity"], rel=1e-5)}
    for header in ("", "--header 'Authorization: Bearer another-token-of-16'"):
        refused = f"curl --silent --output /dev/null --write-out '%{{http_code}}' {header} --json '{{}}' http://127.0.0.1:8000/similarity"
        assert succeeds(deployed.bash, refused) == "401"


def test_the_server_has_its_own_secrets_and_no_others(deployed: Deployed) -> None:
    held, host = {deployed.env[name]: name for name in SECRET}, deployed.containers.hosts["serve"]
    secrets_of: dict[int, set[str]] = {}
    for process in host.processes():
        # One that Ray does not need any more may end meanwhile.
        with suppress(psutil.NoSuchProcess):
            secrets_of[process.pid] = {held[value] for value in process.environ().values() if value in held}
    (front,) = host.named("gausscse serve")
    assert secrets_of.pop(front.pid) == {"MLFLOW_TRACKING_PASSWORD", "GAUSSCSE_SERVE_TOKEN"}
    # Ray's processes, the replicas among them, do not inherit the token.
    replicas = {process.pid for process in host.named("ray::ServeReplica")}
    assert replicas
    assert replicas <= set(secrets_of)
    assert set().union(*secrets_of.values()) <= {"MLFLOW_TRACKING_PASSWORD"}


def test_runs_are_in_postgresql_and_artifacts_in_the_volume(deployed: Deployed) -> None:
    def asked(query: str) -> list[str]:
        command = ("psql", "--username=mlflow", "--dbname=mlflow", "--tuples-only", "--no-align", f"--command={query}")
        done = deployed.containers.run("postgres", *command)
        assert done.returncode == 0, done.stdout
        return done.stdout.split()

    assert asked("select username from users order by 1") == ["admin", "gausscse"]
    assert asked("select version from registered_model_aliases where name = 'gausscse' and alias = 'champion'") == ["1"]
    # The pipeline's and its trial's.
    assert asked("select count(*) from runs where status = 'FINISHED'") == ["2"]
    artifacts = [file for file in (deployed.containers.folder / "volumes/artifacts").rglob("*") if file.is_file()]
    assert {"model.safetensors", "README.md", "canaries.json"} <= {file.name for file in artifacts}
    for file in artifacts:
        assert not any(deployed.env[name].encode() in file.read_bytes() for name in SECRET), file


def test_a_ray_job_takes_its_code_from_the_store(deployed: Deployed) -> None:
    """deploy/kuberay/job.yaml, after the commands of its first lines."""
    make, put, kubectl = re.findall(r"^#   (.*)$", JOB.read_text(encoding="utf-8"), re.MULTILINE)
    assert kubectl.startswith("kubectl apply -f deploy/kuberay/job.yaml")
    # The laptop has the environment already.
    succeeds(deployed.bash, make.replace("make", "make -o setup -o .venv/.complete"))
    succeeds(deployed.bash, f"AWS_ENDPOINT_URL=http://{S3}:7070 {put}")
    state, log = json.loads(deployed.python(SUBMIT))
    assert state == "SUCCEEDED", log
    # `dvc repro` has trained it.
    assert "reused, trained before" in log


def test_who_has_no_password_or_token_is_refused(deployed: Deployed) -> None:
    bash, wrong = deployed.bash, secrets.token_hex(32)
    for set_wrong in (f"MLFLOW_TRACKING_PASSWORD={wrong}", "env -u MLFLOW_TRACKING_USERNAME -u MLFLOW_TRACKING_PASSWORD"):
        code, said = status(bash, f"{set_wrong} gausscse registry status")
        assert code == 2, said
        assert re.search(rf"^error: MLflow at http://{MLFLOW}:5000: it refuses ", said, re.MULTILINE), said
    for set_wrong in (f"RAY_AUTH_TOKEN={wrong}", "env -u RAY_AUTH_TOKEN"):
        code, said = status(bash, f"{set_wrong} python -m stages.tune")
        assert code == 2, said
        assert re.search(r"^error: .*cluster\.address: .*token", said.splitlines()[-1], re.IGNORECASE), said
        assert "Traceback" not in said
    code, said = status(bash, f"python - <<'END'\n{USERS}\nEND")
    assert code != 0
    assert "Permission denied" in said
    # PostgreSQL asks everybody who comes over the network.
    asked = ("psql", "--host=postgres", "--username=mlflow", "--no-password", "--command=select 1", "mlflow")
    assert deployed.containers.run("mlflow", *asked).returncode == 0
    refused = deployed.containers.run("mlflow", *asked, PGPASSWORD=wrong)
    assert refused.returncode != 0
    assert "password authentication failed" in refused.stdout


def test_no_secret_is_on_a_command_line_or_in_a_log(deployed: Deployed) -> None:
    held = [deployed.env[name] for name in SECRET]
    assert len(set(held)) == len(SECRET) == 8
    for host in deployed.containers.hosts.values():
        for process in host.processes():
            line = " ".join(process.cmdline())
            assert not any(secret in line for secret in held), line
    logs = {file.name: file.read_text(encoding="utf-8", errors="replace") for file in deployed.containers.folder.glob("*.log")}
    assert {f"{container}.log" for container in deployed.of} <= set(logs)
    for name, text in {**logs, "dvc repro": deployed.said}.items():
        assert not any(secret in text for secret in held), name
    for container in ("head", "worker-1", "worker-2", "serve"):
        for name in SECRET:
            found = deployed.containers.run(container, "sh", "-c", 'grep -rlF "$SECRET" /tmp/ray', SECRET=deployed.env[name])
            assert found.stdout == "", (container, name)


def test_the_server_ends_in_time_and_cleanly(deployed: Deployed) -> None:
    assert deployed.containers.stop("serve") == 128 + signal.SIGTERM
    log = (deployed.containers.folder / "serve.log").read_text(encoding="utf-8")
    assert log.splitlines()[-1].endswith("all requests were answered"), log
    assert "Traceback" not in log
