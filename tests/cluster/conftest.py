"""A standing cluster of three hosts, a laptop beside it, an MLflow server, and a project that is set up for them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.cluster.faults import Driver
from tests.cluster.hosts import Cluster, Host, hosts_can_be_made, network
from tests.cluster.lab import MlflowServer, Project, small
from tests.copies import copy_project
from tests.gates import wait_for

_BIN = Path(sys.executable).parent
_S3 = 5555


@pytest.fixture(scope="session")
def tight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A small disk that all hosts see."""
    hosts_can_be_made()
    folder = tmp_path_factory.mktemp("tight")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=96m", "none", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture(scope="session")
def hosts(tight: Path) -> Iterator[Mapping[str, Host]]:
    """Hosts head, one, two (the cluster's) and laptop (the user's); they see the disks that there are when they are made."""
    env = {"PATH": f"{_BIN}:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": os.environ.get("HOME", "/root")}
    env |= {"HF_HUB_OFFLINE": "1", "MLFLOW_DISABLE_TELEMETRY": "true", "OMP_NUM_THREADS": "1", "RAY_worker_niceness": "0"}
    with network(["head", "one", "two", "laptop"], env) as made:
        yield made


@pytest.fixture(scope="session")
def mlflow_server(hosts: Mapping[str, Host], tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    server = MlflowServer(hosts["laptop"], tmp_path_factory.mktemp("mlflow"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def ray_cluster(hosts: Mapping[str, Host], tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """One place for a worker on each of two hosts, none on the head: two workers are on two hosts."""
    cluster = Cluster(hosts, "head", tmp_path_factory.mktemp("ray"))
    cluster.start("head", 0)
    cluster.start("one", 1)
    cluster.start("two", 1)
    return cluster


@pytest.fixture
def s3_on_laptop(ray_cluster: Cluster, tmp_path: Path) -> Iterator[str]:
    """A storage on an S3 server (moto's) that all hosts reach."""
    laptop = ray_cluster.hosts["laptop"]
    url = f"http://{laptop.address}:{_S3}"
    server = laptop.start("moto_server", "-H", laptop.address, "-p", str(_S3), cwd=tmp_path, log=tmp_path / "moto.log")
    make = "import boto3, sys; boto3.client('s3', endpoint_url=sys.argv[1], region_name='us-east-1').create_bucket(Bucket='team')"

    def made() -> bool:
        return laptop.attempt(sys.executable, "-c", make, url, cwd=tmp_path, env=ray_cluster.env).returncode == 0

    wait_for(made, 60, "the S3 server answers", every=0.5)
    yield f"s3://team/gausscse?endpoint_override={laptop.address}:{_S3}&scheme=http&region=us-east-1"
    server.kill()
    server.wait()


@pytest.fixture(scope="session")
def project(
    ray_cluster: Cluster, mlflow_server: MlflowServer, tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory
) -> Project:
    """Small data, prepared and tokenized; nothing was trained yet."""
    folder = tmp_path_factory.mktemp("cluster")
    made = Project(
        copy_project(folder / "project"), folder / "storage", ray_cluster.hosts["laptop"], ray_cluster.address, ray_cluster.env
    )
    made.set("params.yaml", small(tiny_backbone))
    made.set(
        "execution.yaml",
        {
            "cluster.address": ray_cluster.address,
            "cluster.workers": 2,
            "cluster.interface": "eth0",
            "cluster.storage": str(made.storage),
            "tracking.uri": mlflow_server.uri,
        },
    )
    made.repro("tokenize")
    return made


@pytest.fixture(scope="module")
def driver(base: Project, ray_cluster: Cluster) -> Iterator[Driver]:
    """A pipeline run for the project `base` of a module."""
    made = Driver(base, ray_cluster)
    yield made
    made.close()
