# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
"""Versions on a real MLflow (sqlite): idempotence, loading elsewhere, refusing what was changed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from urllib.parse import unquote, urlparse

import mlflow
import pytest
import torch
from mlflow.artifacts import download_artifacts
from mlflow.exceptions import MlflowException
from mlflow.pyfunc.model import PythonModelContext

from pipeline.config.execution import TrackingParams
from pipeline.models.encoder import GaussianEncoder
from pipeline.models.model_dir import CARD, content_digest, weights_digest
from pipeline.registry.champions import Registration
from pipeline.registry.loading import encoder_folder, load
from pipeline.registry.pyfunc_model import ServedEncoder
from pipeline.tracking.mlflow_runs import pipeline_run
from pipeline.tracking.server import Tracker, open_tracker
from pipeline.utils.atomic_io import SUMS, sha256_file, write_sums
from pipeline.utils.errors import UserError
from tests.conftest import ROOT
from tests.registry.lab import Lab

pytestmark = pytest.mark.filterwarnings("ignore:of .* sentences")

SENTENCES = ["A man plays a guitar.", ".", "Zürich — 日本, unseen by the vocabulary", "a " * 100]
Register = Callable[..., Registration]


def artifact_folder(tracker: Tracker, got: Registration) -> Path:
    uri = tracker.client.get_model_version_download_uri(got.name, str(got.version))
    return Path(unquote(urlparse(uri).path))


def test_same_model_again_makes_no_version(tracker: Tracker, lab: Lab, register: Register) -> None:
    first = register(lab.untrained(1), **{"gausscse.digest": "p"})
    assert register(lab.untrained(1), **{"gausscse.digest": "p"}).version == 1
    other_run = pipeline_run(tracker, "b" * 64, {}, {})
    # The same pipeline, tracked by another run.
    assert register(lab.untrained(1), run=other_run, **{"gausscse.digest": "p"}).version == 1
    assert len(tracker.client.search_model_versions(f"name = '{first.name}'")) == 1
    # Another pipeline came to the same weights: a version of its own.
    assert register(lab.untrained(1), run=other_run, **{"gausscse.digest": "q"}).version == 2


def test_version_carries_run_and_tags(tracker: Tracker, register: Register, lab: Lab, run_id: str) -> None:
    got = register(lab.untrained(1), 0.123456789012345678, objective="ent")
    version = tracker.client.get_model_version(got.name, str(got.version))
    assert version.run_id == run_id
    assert version.tags == {
        "objective": "ent",
        "dev_pr_auc": repr(0.123456789012345678),
        "content_digest": content_digest(lab.untrained(1)),
        "tensors_digest": weights_digest(lab.untrained(1)),
        "files_digest": sha256_file(artifact_folder(tracker, got) / SUMS),
    }
    outputs = tracker.client.get_run(run_id).outputs
    assert outputs is not None
    assert got.name in {tracker.client.get_logged_model(m.model_id).name for m in outputs.model_outputs}


def test_the_card_is_the_description(tracker: Tracker, lab: Lab, register: Register, tmp_path: Path) -> None:
    """Without the metadata for the hub, and cut at a line where MLflow's database ends."""
    assert not tracker.client.get_model_version(register(lab.untrained(1)).name, "1").description
    for number, lines in ((2, 10), (3, 600)):
        card = "# A model\n\n" + "\n".join(f"line {k}" for k in range(lines))
        folder = Path(shutil.copytree(lab.untrained(number), tmp_path / str(number)))
        (folder / CARD).write_text(f"---\nlanguage: en\n---\n\n{card}\n", encoding="utf-8")
        write_sums(folder)
        got = register(folder)
        described = tracker.client.get_model_version(got.name, str(got.version)).description
        assert described is not None and len(described) <= 5000
        kept, _, rest = described.partition("\n\n(README.md of the encoder goes on.)")
        assert not rest and (described == card if lines == 10 else f"{card}\n".startswith(f"{kept}\n") and len(kept) > 4800)


def test_shipped_files(tracker: Tracker, lab: Lab, register: Register) -> None:
    folder = artifact_folder(tracker, register(lab.untrained(1)))
    names = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    assert {"pyfunc_model.py", f"artifacts/encoder/{SUMS}"} <= names
    assert not [n for n in names if n.endswith((".pkl", ".bin", ".pt"))]
    # Only the package's code and what it loads: other files in its folder are not included.
    loaded = [p for pattern in ("*.py", "card.txt", "*.json") for p in (ROOT / "pipeline").rglob(pattern)]
    code = {f"code/{p.relative_to(ROOT).as_posix()}" for p in loaded}
    assert {n for n in names if n.startswith("code/")} == code
    assert f"torch=={torch.__version__.partition('+')[0]}" in (folder / "requirements.txt").read_text().split()


def test_loads_by_pyfunc_elsewhere(tracker: Tracker, register: Register, lab: Lab, tmp_path: Path) -> None:
    """In another folder, offline, without unpickling and without this package on the path."""
    got = register(lab.untrained(1))
    script = f"""
import json, sys
# The project is installed in this environment, so that its folder has to be hidden.
sys.path = [p for p in sys.path if p != {str(ROOT)!r}]
import mlflow, pandas as pd
mlflow.set_tracking_uri({tracker.uri!r})
model = mlflow.pyfunc.load_model("models:/{got.name}@champion")
frame = pd.DataFrame({{"sentence": {SENTENCES!r}}}, index=[7, 5, 3, 1])
out = model.predict(frame)
import pipeline.models.encoder
mean = [list(map(float, row)) for row in out["mean"]]
print(json.dumps({{"index": list(out.index), "mean": mean, "file": pipeline.models.encoder.__file__}}))
"""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false"}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
    answer = json.loads(done.stdout)
    assert answer["index"] == [7, 5, 3, 1]
    assert Path(answer["file"]).is_relative_to(artifact_folder(tracker, got))
    expected = GaussianEncoder.from_pretrained(lab.untrained(1)).encode(SENTENCES)
    torch.testing.assert_close(torch.tensor(answer["mean"]), expected.mean, rtol=1e-6, atol=1e-6)


def test_load_from_the_server_of_the_folder(
    tracker: Tracker, register: Register, lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    got = register(lab.untrained(1))
    expected = GaussianEncoder.from_pretrained(lab.untrained(1)).encode(SENTENCES)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(lab.root)
    for uri, server in ((got.model_uri, tracker.uri), (f"models:/{got.name}@champion", None)):
        encoded = load(uri, server).encode(SENTENCES)
        assert torch.equal(encoded.mean, expected.mean)
        assert torch.equal(encoded.log_var, expected.log_var)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="no MLflow database here"):
        load(got.model_uri)
    assert list(tmp_path.iterdir()) == []


def test_a_copied_or_moved_project_has_its_own_models(
    register: Register, lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """MLflow stores absolute paths: a copy would load the original's files, and a moved project none."""
    got = register(lab.untrained(1))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    copy = tmp_path / "its copy's"
    copy.mkdir()
    for name in ("mlflow.db", "execution.yaml"):
        shutil.copyfile(lab.root / name, copy / name)
    shutil.copytree(lab.root / "mlartifacts", copy / "mlartifacts")
    shutil.move(copy, copy := tmp_path / "moved")
    monkeypatch.chdir(copy)
    assert load(got.model_uri).dim == 32
    assert capsys.readouterr().err.count("the project was moved or copied") == 1
    assert load(got.model_uri).dim == 32
    assert "moved or copied" not in capsys.readouterr().err
    # What people wrote stays, and a folder that somebody chose.
    client, chosen = open_tracker(TrackingParams(uri=None, experiment="test"), copy).client, tmp_path / "team/mlartifacts"
    chosen.mkdir(parents=True)
    client.set_model_version_tag(got.name, "1", "note", f"file://{lab.root}/mlartifacts")
    experiment = client.create_experiment("of the team", artifact_location=chosen.as_uri())
    load(got.model_uri)
    assert client.get_experiment(experiment).artifact_location == chosen.as_uri()
    assert client.get_model_version(got.name, "1").tags["note"] == f"file://{lab.root}/mlartifacts"
    for file in (copy / "mlartifacts").rglob("model.safetensors"):
        file.unlink()
    with pytest.raises(UserError, match=r"model\.safetensors"):
        load(got.model_uri)
    monkeypatch.chdir(lab.root)
    assert load(got.model_uri).dim == 32


def test_a_file_that_mlflow_adds_is_no_change(tracker: Tracker, lab: Lab, register: Register) -> None:
    got = register(lab.untrained(1))
    # As `mlflow models serve` does; models:/ is always resolved at the global registry.
    before = mlflow.get_registry_uri()
    mlflow.set_registry_uri(tracker.uri)
    try:
        download_artifacts(f"models:/{got.name}/{got.version}")
    finally:
        mlflow.set_registry_uri(before)
    assert (artifact_folder(tracker, got) / "registered_model_meta").is_file()
    assert load(got.model_uri, tracker.uri).dim == 32
    (artifact_folder(tracker, got) / "more").write_text("", encoding="utf-8")
    with pytest.raises(UserError, match="more: not listed in SHA256SUMS"):
        load(got.model_uri, tracker.uri)


def test_changed_artifacts_are_refused(tracker: Tracker, lab: Lab, register: Register) -> None:
    got = register(lab.untrained(1))
    folder = artifact_folder(tracker, got) / "artifacts" / "encoder"
    weights = folder / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(UserError, match=r"model\.safetensors: differs from its SHA-256 sum"):
        load(got.model_uri, tracker.uri)
    with pytest.raises(MlflowException, match="differs from its SHA-256 sum"):
        ServedEncoder().load_context(PythonModelContext({"encoder": str(folder)}, None))
    # Whoever can write the weights can write the sums: the registry knows their digest.
    write_sums(folder)
    with pytest.raises(UserError, match=rf"artifacts/encoder/{SUMS}: differs from its SHA-256 sum"):
        load(got.model_uri, tracker.uri)
    write_sums(artifact_folder(tracker, got))
    with pytest.raises(UserError, match="is not the one that was registered"):
        load(got.model_uri, tracker.uri)


def test_changed_code_is_refused_before_it_runs(
    tracker: Tracker, lab: Lab, run_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    got = lab.register(tracker, "injected", lab.untrained(1), run_id)
    ran = tmp_path / "it ran"

    def by_folder() -> None:
        with encoder_folder(got.model_uri, tracker.uri):
            pass

    with lab.scorer(tracker) as scorer:
        by_judging = partial(scorer, tracker.client.get_model_version(got.name, str(got.version)))
        ways = {
            "pyfunc_model.py": [by_folder, by_judging],
            "code/pipeline/models/encoder.py": [by_folder],
            "code/sitecustomize.py": [by_folder],
        }
        for file, used in ways.items():
            stored = artifact_folder(tracker, got) / file
            before = stored.read_bytes() if stored.exists() else None
            stored.write_bytes((before or b"") + f"\nopen({str(ran)!r}, 'w')\n".encode())
            for use in used:
                with pytest.raises(UserError, match=rf"^models:/injected/{got.version}: {file}: .*$"):
                    use()
            stored.unlink() if before is None else stored.write_bytes(before)
    assert not ran.exists()
    assert load(got.model_uri, tracker.uri).dim == 32


def test_a_version_without_a_digest_of_its_files_is_not_used(tracker: Tracker, lab: Lab, register: Register) -> None:
    got = register(lab.untrained(1))
    tracker.client.delete_model_version_tag(got.name, str(got.version), "files_digest")
    with pytest.raises(UserError, match="the registry has no tag files_digest of it; register it again"):
        load(got.model_uri, tracker.uri)


@pytest.mark.parametrize(("score", "words"), [(50.0, SUMS), (float("nan"), "PR-AUC is nan")])
def test_a_damaged_folder_or_score_is_not_registered(
    tracker: Tracker, lab: Lab, run_id: str, tmp_path: Path, score: float, words: str
) -> None:
    with pytest.raises(UserError, match=words):
        lab.register(tracker, "damaged", tmp_path, run_id, score)
    assert tracker.client.search_registered_models("name = 'damaged'") == []


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("models:/known/99", "the registry has no version 99 of a model 'known'"),
        ("models:/unknown@champion", "the registry has no alias 'champion' of a model 'unknown'"),
        ("known", "known: no config.json here"),
        ("models:/known@a/../../etc", "is not a registered model"),
    ],
)
def test_unknown_models(tracker: Tracker, lab: Lab, run_id: str, uri: str, message: str) -> None:
    lab.register(tracker, "known", lab.untrained(1), run_id)
    with pytest.raises(UserError, match=message) as caught:
        load(uri, tracker.uri)
    assert "\n" not in str(caught.value)
