"""The pipeline from a laptop on a standing cluster of three hosts: `dvc repro` by jobs, and plain `ray job submit`."""

from __future__ import annotations

import random
import re
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from pipeline.config.load import load_params
from pipeline.inference.corpus import read_gaussians
from pipeline.models.encoder import GaussianEncoder
from pipeline.utils.atomic_io import read_json
from tests.cluster.hosts import Cluster, Host
from tests.cluster.lab import BIN, MlflowServer, Project
from tests.distributed.group import JOBS, SGD, assert_same_gradients, assert_same_weights, gradients
from tests.gates import wait_for
from tests.store import random_stores

pytestmark = pytest.mark.cluster

OUTS = ("results/tune/trials.csv", "results/tune/best.yaml", "results/train/outcomes.json", "results/evaluate/per_seed.json")


SENT = ("tune", "train", "evaluate")


def stages_run(said: str) -> list[str]:
    """Without identity, which runs every time."""
    return [stage for stage in re.findall(r"Running stage '(\w+)'", said) if stage != "identity"]


@contextmanager
def seen_training(hosts: Mapping[str, Host]) -> Iterator[list[set[str]]]:
    """The sets of hosts that were seen with workers of a training run at once."""
    seen: list[set[str]] = []
    over = threading.Event()

    def look() -> None:
        while not over.wait(1.0):
            seen.append({name for name, host in hosts.items() if host.named("RayTrainWorker")})

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


@contextmanager
def held_until_at_all(process: str, hosts: Sequence[Host]) -> Iterator[list[bool]]:
    """Such processes are stopped until each of the hosts has one, so that the first cannot do all there is; whether they did."""
    met: list[bool] = []
    over = threading.Event()

    def hold() -> None:
        stopped: set[psutil.Process] = set()
        deadline = time.monotonic() + 120
        while not over.wait(0.2) and time.monotonic() < deadline and not met:
            there = [host.named(process) for host in hosts]
            if all(there):
                met.append(True)
            else:
                for one in (one for found in there for one in found):
                    one.suspend()
                    stopped.add(one)
        for one in stopped:
            with suppress(psutil.NoSuchProcess):
                one.resume()

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        yield met
    finally:
        over.set()
        thread.join()


@dataclass(frozen=True)
class First:
    """What `dvc repro` from tokens to the report said, and where its workers were seen."""

    project: Project
    said: str
    seen: list[set[str]]


@pytest.fixture(scope="module")
def first(project: Project, hosts: Mapping[str, Host], tmp_path_factory: pytest.TempPathFactory) -> First:
    own = project.elsewhere(tmp_path_factory.mktemp("first"))
    with seen_training(hosts) as seen:
        return First(own, own.repro(), seen)


def test_dvc_repro_computes_on_the_cluster_and_brings_the_results(first: First, ray_cluster: Cluster) -> None:
    said, project = first.said, first.project
    assert sorted(stages_run(said)) == ["evaluate", "experiment", "register", "report", "train", "tune"]
    # There is no variant to compare: nobody waits half a minute for a job that says so.
    assert "experiment: nothing to compare" in said
    for stage in SENT:
        assert f"{stage}: sent to {ray_cluster.address} as job gausscse-{stage}-" in said
    # The two workers were on two hosts, and none on the head or the laptop.
    assert {"one", "two"} in first.seen
    assert not any({"head", "laptop"} & hosts for hosts in first.seen)
    # Progress streamed back, and nobody had to look into Ray's own log for it.
    assert re.search(r"step +\d+/\d+  loss \d\.\d+  lr .*dev PR-AUC \d+\.\d+.*triplets/s.*left", said)
    assert "Traceback" not in said
    for path in (*OUTS, "models/seed-1/model.safetensors", "report/index.html"):
        assert (project.root / path).is_file(), path
    assert "gausscse version" in said
    (recipe,) = read_json(project.root / "results/train/variants.json")
    assert {seed["workers"] for seed in recipe["seeds"]} == {2}
    # What the job did it did elsewhere.
    assert not (project.root / ".gausscse").exists()
    assert not (project.root / "mlflow.db").exists()


def test_caching_is_unchanged_and_execution_keys_run_nothing_again(first: First) -> None:
    project = first.project
    assert stages_run(project.repro()) == ["register", "report"]
    held = (project.root / "execution.yaml").read_text(encoding="utf-8")
    project.set("execution.yaml", {"cluster.workers": 1, "cluster.address": None, "cluster.storage": ".gausscse"})
    assert stages_run(project.repro()) == ["register", "report"]
    (project.root / "execution.yaml").write_text(held, encoding="utf-8")


def test_what_was_done_is_fetched_and_not_done_again(first: First) -> None:
    project = first.project
    shutil.rmtree(project.root / "results/tune")
    said = project.repro("--single-item", "--force", "--no-run-cache", "tune")
    assert f"tune: fetched from {project.storage}, where a job left it" in said
    assert "sent to" not in said
    assert (project.root / "results/tune/best.yaml").is_file()


def test_plain_ray_job_submit_needs_no_dvc_and_the_storage_may_be_s3(
    first: First, project: Project, ray_cluster: Cluster, s3_on_laptop: str, tmp_path: Path
) -> None:
    other = project.elsewhere(tmp_path)
    other.set("execution.yaml", {"cluster.storage": s3_on_laptop})
    said = other.make("upload")
    assert f"files and folders are in {s3_on_laptop}; inputs.json lists them" in said
    # DVC is not there for these.
    (other.root / ".dvc").rename(tmp_path / "dvc")
    submit = ("ray", "job", "submit", "--address", ray_cluster.address, "--working-dir", ".", "--", "python", "-m")
    said = other.laptop.run(*submit, "stages.tune", cwd=other.root, env=other.env)
    assert "succeeded" in said
    assert "Traceback" not in said
    # And by make, which says what it runs.
    said = other.make("submit", "STAGE=train")
    assert f"ray job submit --address {ray_cluster.address} --working-dir . -- python -m stages.train" in said
    assert "reused, trained before" in said
    assert not (other.root / "results").exists()
    (tmp_path / "dvc").rename(other.root / ".dvc")
    said = other.repro("train")
    assert stages_run(said) == ["tune", "train"]
    assert said.count("where a job left it") == 2
    assert "sent to" not in said
    for path in OUTS[:3]:
        assert (other.root / path).read_bytes() == (first.project.root / path).read_bytes(), path
    assert not other.storage.exists()


# What a training run leaves behind for three minutes when its job is killed: the cluster is free, and Ray holds it for taken.
RESERVED = """
import ray
from ray.data._internal.cluster_autoscaler import ResourceRequestPriority, get_or_create_autoscaling_coordinator
ray.init(address="auto", log_to_driver=False)
ray.get(get_or_create_autoscaling_coordinator().request_resources.remote(
    requester_id="train-killed", resources=[{"CPU": 1}] * 2, expire_after_s=180, priority=ResourceRequestPriority.HIGH))
"""


def test_all_hosts_encode_a_corpus_after_a_killed_training_run(
    project: Project, hosts: Mapping[str, Host], tiny_backbone: Path, tmp_path: Path
) -> None:
    hosts["head"].run(sys.executable, "-c", RESERVED, cwd=tmp_path, env=project.env)
    params = load_params(project.root / "params.yaml").model
    encoder = GaussianEncoder.from_backbone(params.model_copy(update={"backbone": str(tiny_backbone)}), 1).eval()
    encoder.save_pretrained(tmp_path / "model")
    corpus, out = tmp_path / "corpus", tmp_path / "out"
    corpus.mkdir()
    texts = [f"a dog number {number} runs {'and runs ' * (number % 5)}" for number in range(16_000)]
    for part in range(8):
        pq.write_table(pa.table({"sentence": texts[2000 * part : 2000 * (part + 1)]}), corpus / f"{part}.parquet")
    asked = (sys.executable, "-m", "pipeline.cli", "encode", str(corpus), str(out), "--model", str(tmp_path / "model"))
    with held_until_at_all("ray::Map(", [hosts["one"], hosts["two"]]) as met:
        said = project.laptop.run(*asked, cwd=project.root, env=project.env)
    assert f"-- python -m pipeline.cli encode {corpus} {out}" in said
    assert re.search(r"encode: 16000/16000 rows  \d+ rows/s", said)
    assert "encode: 16000 rows in 8 parts" in said
    assert "Traceback" not in said
    assert met
    found = read_gaussians(str(out))
    assert found.rows == list(range(16_000))
    some = list(range(0, 16_000, 500))
    expected = encoder.encode([texts[row] for row in some])
    torch.testing.assert_close(found.gaussians.mean[some], expected.mean, rtol=1e-5, atol=1e-6)
    # From a laptop to a cluster, a path of the laptop's own means nothing.
    told = project.laptop.attempt(
        sys.executable, "-m", "pipeline.cli", "encode", "corpus", str(out), cwd=project.root, env=project.env
    )
    assert told.returncode == 2
    assert told.stdout.startswith("error: corpus: the work runs on a cluster; write an absolute path or a URI")


def test_who_has_no_token_or_a_wrong_one_is_refused(project: Project, tmp_path: Path) -> None:
    other = project.elsewhere(tmp_path)
    wrong = tmp_path / "wrong"
    wrong.write_text(secrets.token_hex(32), encoding="ascii")
    for env in ({"RAY_AUTH_TOKEN_PATH": str(wrong)}, {"RAY_AUTH_MODE": "disabled"}):
        done = other.laptop.attempt(sys.executable, "-m", "stages.tune", cwd=other.root, env={**other.env, **env})
        assert done.returncode == 2, done.stdout
        assert re.search(r"^error: .*cluster\.address: .*token", done.stdout.splitlines()[-1], re.IGNORECASE), done.stdout
        assert "Traceback" not in done.stdout


def test_no_secret_is_in_logs_mlflow_or_on_a_command_line(
    first: First, ray_cluster: Cluster, mlflow_server: MlflowServer
) -> None:
    token = Path(ray_cluster.env["RAY_AUTH_TOKEN_PATH"]).read_text(encoding="ascii")
    assert token not in first.said
    for host in ray_cluster.hosts.values():
        for process in host.processes():
            assert token not in " ".join(process.cmdline())
        # Nor does Ray write down the keys of the store, which every host has.
        for secret in (token, ray_cluster.env["AWS_SECRET_ACCESS_KEY"]):
            logs = host.run("sh", "-c", f"grep -rlF {secret} /tmp/ray || true", cwd=first.project.root)
            assert logs.strip() == ""
    kept = [file for folder in (first.project.storage, mlflow_server.folder) for file in folder.rglob("*") if file.is_file()]
    # MLflow's database and artifacts are among them.
    assert {"mlflow.db", "model.safetensors"} <= {file.name for file in kept}
    for file in kept:
        assert token.encode() not in file.read_bytes(), file


def test_workers_on_two_hosts_have_the_gradients_of_one(hosts: Mapping[str, Host], tiny_backbone: Path, tmp_path: Path) -> None:
    """test_global_batch's comparison, two workers on one host and on two beside one process alone."""
    store, _ = random_stores(tmp_path / "stores")
    one, two = hosts["one"].command, hosts["two"].command
    interface = {"GLOO_SOCKET_IFNAME": "eth0"}
    alone = gradients([one], tmp_path / "alone", store, tiny_backbone)
    together = gradients([one, one], tmp_path / "together", store, tiny_backbone, interface)
    before = hosts["two"].received()
    apart = gradients([one, two], tmp_path / "apart", store, tiny_backbone, interface)
    # What was reduced went over the cable.
    assert hosts["two"].received() - before > 1e6
    for found in (together, apart):
        for job in JOBS:
            if job in SGD:
                assert_same_weights(found[job], alone[job])
            elif job != "cached":
                assert_same_gradients(found[job], alone[job])


@pytest.mark.weekly
def test_dvc_repro_is_killed_in_each_stage_and_goes_on(first: First, project: Project, s3_on_laptop: str, tmp_path: Path) -> None:
    """With a storage on S3, which comes to the same as the folder that the first run had."""
    other = project.elsewhere(tmp_path)
    other.set("execution.yaml", {"cluster.storage": s3_on_laptop})
    # As it was before anything ran: DVC would take the data from its cache.
    for name in ("data", ".dvc/cache", ".dvc/tmp"):
        shutil.rmtree(other.root / name)
    (other.root / "dvc.lock").unlink()
    draw = random.Random(6)
    log = other.root / "said.log"
    # Alone, and its stage lives on; or with all that it started.
    stages = ("identity", "prepare", "tokenize", "tune", "train", "evaluate", "register", "experiment", "report")
    kills = [(stage, False) for stage in stages]
    kills.insert(kills.index(("tune", False)), ("tune", True))
    for stage, alone in kills:
        # What `make repro` does first.
        other.laptop.run(sys.executable, "-m", "pipeline.cli", "check", cwd=other.root, env=other.env)
        process = other.laptop.start(str(BIN / "dvc"), "repro", cwd=other.root, env=other.env, log=log)

        def begun(stage: str = stage, process: subprocess.Popen[bytes] = process) -> bool:
            with suppress(psutil.NoSuchProcess):
                return process.poll() is not None or any(
                    f"stages.{stage}" in " ".join(one.cmdline()) for one in psutil.Process(process.pid).children(recursive=True)
                )
            return False

        wait_for(begun, 300, f"stage {stage} begins")
        assert process.poll() is None, log.read_text(encoding="utf-8")[-3000:]
        # dvc does not begin the next stage, however fast this one is.
        process.send_signal(signal.SIGSTOP)
        # In its imports or its work, which takes seconds here; or anywhere up to the log of its job.
        time.sleep(draw.uniform(0.0, 6.0 if stage in SENT else 1.0))
        started = psutil.Process(process.pid).children(recursive=True)
        for victim in [psutil.Process(process.pid), *([] if alone else started)]:
            with suppress(psutil.NoSuchProcess):
                victim.kill()
        process.wait()
    assert "is already running on" in log.read_text(encoding="utf-8") or "where a job left it" in log.read_text(encoding="utf-8")
    other.repro()
    for path in OUTS:
        assert (other.root / path).read_bytes() == (first.project.root / path).read_bytes(), path
    assert stages_run(other.repro()) == ["register", "report"]
    assert not other.storage.exists()
