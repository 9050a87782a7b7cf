"""deploy/compose.yaml from nothing to a promoted model, by the commands of docs/cluster.md; each container is a host."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from copies import ROOT, copy_project
from tiny import make_tiny_backbone

from pipeline.utils.atomic_io import read_json
from tests.cluster.conftest import hosts_can_be_made
from tests.cluster.containers import Containers, containers
from tests.cluster.lab import Project
from tests.deploy.composed import FOLDER, composed, example

pytestmark = pytest.mark.cluster

REVISION = "0123456789abcdef0123456789abcdef01234567"
SERVICES = ("postgres", "s3", "mlflow", "accounts", "head", "worker")
PAGE = (ROOT / "docs/cluster.md").read_text(encoding="utf-8").partition("## With Docker Compose")[2].partition("\n## ")[0]


def of_page(pattern: str) -> str:
    (found,) = re.findall(pattern, PAGE, re.MULTILINE | re.DOTALL)
    return found


@pytest.fixture(scope="module")
def env() -> dict[str, str]:
    return {**example(), "WORKER_CPUS": "1"}


@pytest.fixture(scope="module")
def up(env: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Containers]:
    hosts_can_be_made()
    outside = of_page(r"^echo '([^']+)' \| sudo tee --append /etc/hosts$")
    with containers(composed(env), SERVICES, tmp_path_factory.mktemp("containers"), FOLDER, outside) as made:
        made.up(SERVICES)
        yield made


@pytest.fixture(scope="module")
def project(up: Containers, env: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A checkout on the laptop with the keys of the page, and nothing computed. Only the laptop's cache has the backbone."""
    cache = up.folder / "laptop/.cache/huggingface/hub"
    # It is not asked here: the laptop has no network.
    up.hosts["laptop"].env["HF_HUB_OFFLINE"] = "1"
    make_tiny_backbone(cache / "models--team--encoder/snapshots" / REVISION)
    root = copy_project(tmp_path_factory.mktemp("deployment") / "project")
    (root / "deploy/.env").write_text("".join(f"{name}={value}\n" for name, value in env.items()), encoding="utf-8")
    (root / "deploy/.env").chmod(stat.S_IRUSR)
    keys = yaml.safe_load(of_page(r"^```yaml\n(.*?)^```$"))
    made = Project(root, Path("/nowhere"), up.hosts["laptop"], keys["cluster"]["address"], {})
    made.set("execution.yaml", {f"{section}.{key}": value for section, held in keys.items() for key, value in held.items()})
    made.set(
        "params.yaml",
        {
            "data.generated": {"train": 600, "dev": 240, "test": 240},
            "model.backbone": "team/encoder",
            "model.revision": REVISION,
            "tune.learning_rates": [2.0e-3],
            "tune.batch_sizes": [16],
            "tune.seeds": [1],
            "train.seeds": [1],
            "train.precision": "fp32",
        },
    )
    return made


def on_laptop(project: Project, command: str) -> str:
    """Run a command after the page's own line that sets the environment."""
    export = of_page(r"^(export [^\n]*)$")
    return project.laptop.run("bash", "-c", f"set -e; {export}\n{command}", cwd=project.root, timeout=600)


def test_from_nothing_to_a_promoted_model(up: Containers, project: Project) -> None:
    said = on_laptop(project, "dvc repro")
    assert "Traceback" not in said
    # No node has the backbone, or may ask the hub for it.
    assert "identity: 4 files of team/encoder" in said
    assert not [path for host in (*up.of("head"), *up.of("worker")) for path in (up.folder / host.name).rglob("models--*")]
    for stage in ("tune", "train", "evaluate"):
        assert f"{stage}: sent to http://127.0.0.1:8265 as job" in said
    registered = read_json(project.root / "results/register.json")
    assert registered["version"] == 1
    # Promoted, on a server that has been made new since: users, runs and versions are in PostgreSQL, files in its volume.
    (server,) = up.of("mlflow")
    server.kill()
    for left in sorted((up.folder / server.name).rglob("*"), reverse=True):
        left.rmdir() if left.is_dir() else left.unlink()
    up.start("mlflow", server)
    said = on_laptop(project, "gausscse registry status")
    assert re.search(r"champion.*\b1\b", said), said
    code = "from pipeline.registry import load_encoder; print(load_encoder('models:/gausscse@champion').dim)"
    uri = yaml.safe_load((project.root / "execution.yaml").read_text(encoding="utf-8"))["tracking"]["uri"]
    assert on_laptop(project, f'MLFLOW_TRACKING_URI={uri} python -c "{code}"').split()[-1] == "32"
    assert list((up.folder / "volumes/artifacts").rglob("model.safetensors"))
