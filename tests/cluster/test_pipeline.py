"""The pipeline from a laptop on a standing cluster of three hosts: `dvc repro` by jobs, and plain `ray job submit`."""

from __future__ import annotations

import random
import re
import shutil
import signal
import subprocess
import sys
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
from pipeline.models.relation_head import read_relation
from pipeline.utils.atomic_io import read_json
from tests.cluster.hosts import Cluster, Host
from tests.cluster.lab import BIN, Project
from tests.distributed.grids import meanwhile
from tests.distributed.group import JOBS, SGD, assert_same_gradients, assert_same_weights, gradients
from tests.gates import wait_for
from tests.store import random_stores
from tests.trial_of import tiny_encoder

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

    def look() -> bool:
        seen.append({name for name, host in hosts.items() if host.named("RayTrainWorker")})
        time.sleep(1)
        return False

    with meanwhile(look):
        yield seen


@contextmanager
def held_until_at_all(process: str, hosts: Sequence[Host]) -> Iterator[list[bool]]:
    """Such processes are stopped until each of the hosts has one, so that the first cannot do all there is; whether they did."""
    met: list[bool] = []
    held: set[psutil.Process] = set()
    deadline = time.monotonic() + 120

    def send(number: signal.Signals) -> None:
        for one in held:
            with suppress(psutil.NoSuchProcess):
                one.send_signal(number)

    def look() -> bool:
        there = [host.named(process) for host in hosts]
        met.extend([True] if all(there) else [])
        held.update(one for found in there for one in found)
        over = bool(met) or time.monotonic() > deadline
        send(signal.SIGCONT if over else signal.SIGSTOP)
        time.sleep(0.2)
        return over

    try:
        with meanwhile(look):
            yield met
    finally:
        send(signal.SIGCONT)


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
    assert re.search(r"step +\d+/\d+  loss \d\.\d+  lr .*selection PR-AUC \d+\.\d+.*triplets/s.*left", said)
    assert "Traceback" not in said
    for path in (*OUTS, "models/seed-1/model.safetensors", "report/index.html"):
        assert (project.root / path).is_file(), path
    assert "gausscse version" in said
    (recipe,) = read_json(project.root / "results/train/variants.json")
    assert {seed["workers"] for seed in recipe["seeds"]} == {2}
    # What the job did it did elsewhere.
    assert not (project.root / ".gausscse").exists()
    assert not (project.root / "mlflow.db").exists()


@pytest.mark.weekly
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


# As stage train in a job, whose driver is on the head.
FITS = """
import ray, stages, sys
from pathlib import Path
from pipeline.cluster.encoding import compute_where_encoded
from pipeline.cluster.session import session
from pipeline.config.load import load_execution, load_params
from pipeline.families.pairs.relation_store import relation_for
from pipeline.trials.store import TrialStore
root, model, storage = Path.cwd(), *map(Path, sys.argv[1:])
params = load_execution().cluster.model_copy(update={"address": "auto"})

def compute(what, model, store):
    there = lambda *given: (ray.util.get_node_ip_address(), what(*given))
    node, answer = compute_where_encoded(there, model, store, params=params, session=lambda: on)
    print("computed on", node, "by", ray.util.get_node_ip_address())
    return answer

with session(params) as on:
    trials = TrialStore(train_tokens=root, dev_tokens=root, storage=storage)
    relation_for("a model", model, "kl", load_params(Path("params.yaml")).relation, 1, root, trials, compute)
"""


def test_a_relation_head_is_fitted_off_the_head(
    project: Project, hosts: Mapping[str, Host], tiny_backbone: Path, tmp_path: Path
) -> None:
    tiny_encoder(tiny_backbone, 1).save_pretrained(tmp_path / "model")
    asked = (sys.executable, "-c", FITS, str(tmp_path / "model"), str(tmp_path / "storage"))
    said = hosts["head"].run(*asked, cwd=project.root, env={**project.env, "PYTHONPATH": str(project.root)})
    found = re.findall(r"computed on (\S+) by (\S+)", said)
    assert len(found) == 2
    assert {node for node, _ in found} <= {hosts["one"].address, hosts["two"].address}
    assert {driver for _, driver in found} == {hosts["head"].address}
    (head,) = (tmp_path / "storage").glob("relations/*/relation.json")
    assert read_relation(head.parent) is not None


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
        # A kill may have left it half-written.
        (other.root / ".dvc/tmp/rwlock").unlink(missing_ok=True)
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
