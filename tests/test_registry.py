# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
"""The registry on a real MLflow (sqlite): aliases, idempotence, loading elsewhere, refusing what was changed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import unquote, urlparse

import pandas as pd  # pyright: ignore[reportMissingTypeStubs]
import pytest
import torch
from mlflow.exceptions import MlflowException
from mlflow.pyfunc.model import PythonModelContext

from pipeline.encoder import GaussianEncoder
from pipeline.errors import UserError
from pipeline.execution import TrackingParams
from pipeline.files import SUMS, sha256_file, write_sums
from pipeline.params import ModelParams
from pipeline.registry import Registration, load_encoder, register_model
from pipeline.served_model import ServedEncoder
from pipeline.tracking import Tracker, open_tracker, pipeline_run
from tests.tiny import make_tiny_backbone

ROOT = Path(__file__).resolve().parent.parent
SENTENCES = ["A man plays a guitar.", "", "Zürich — 日本, unseen by the vocabulary", "a " * 100]
Encoders = Callable[[int], Path]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("registry")


@pytest.fixture(scope="module")
def tracker(home: Path) -> Iterator[Tracker]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        yield open_tracker(TrackingParams(uri=None, experiment="test"), home)


@pytest.fixture(scope="module")
def encoders(home: Path) -> Encoders:
    """Folder of the encoder whose heads are drawn by a seed."""
    params = ModelParams(
        backbone=str(make_tiny_backbone(home / "backbone", layers=1)),
        revision=None,
        max_length=16,
        dim=None,
        pooling="first",
        mean_activation="tanh",
        variance_head="log_var",
        log_var_init=None,
        log_var_bound=None,
    )

    def make(seed: int) -> Path:
        folder = home / f"encoder{seed}"
        if not folder.exists():
            GaussianEncoder.from_backbone(params, seed).save_pretrained(folder)
        return folder

    return make


@pytest.fixture(scope="module")
def run_id(tracker: Tracker) -> str:
    return pipeline_run(tracker, "a" * 64, {}, {})


@pytest.fixture
def register(tracker: Tracker, encoders: Encoders, run_id: str, request: pytest.FixtureRequest) -> Callable[..., Registration]:
    """Register the encoder of a seed under a model name that no other test uses."""

    def call(seed: int, score: float, dev: str = "dev-1", run: str = run_id, **tags: str) -> Registration:
        name = request.node.name.removeprefix("test_")
        return register_model(tracker, name, encoders(seed), run, tags, score, dev)

    return call


def aliases(tracker: Tracker, name: str) -> dict[str, int]:
    found: dict[str, str] = tracker.client.get_registered_model(name).aliases
    return {alias: int(version) for alias, version in found.items()}


def artifact_folder(tracker: Tracker, got: Registration) -> Path:
    uri = tracker.client.get_model_version_download_uri(got.name, str(got.version))
    return Path(unquote(urlparse(uri).path))


def test_champion_and_challenger(tracker: Tracker, register: Callable[..., Registration]) -> None:
    first = register(1, 0.5)
    assert (first.version, first.alias, first.champion_version) == (1, "champion", 1)
    assert first.previous_champion_pr_auc is None
    assert aliases(tracker, first.name) == {"champion": 1}

    worse = register(2, 0.4)
    assert (worse.version, worse.alias, worse.champion_version) == (2, "challenger", 1)
    assert worse.previous_champion_pr_auc == 0.5
    assert aliases(tracker, first.name) == {"champion": 1, "challenger": 2}

    equal = register(3, 0.5)
    assert (equal.version, equal.alias, equal.champion_version) == (3, "challenger", 1)

    better = register(4, 0.6)
    assert (better.version, better.alias, better.champion_version) == (4, "champion", 4)
    assert better.previous_champion_pr_auc == 0.5
    assert aliases(tracker, first.name) == {"champion": 4, "challenger": 3}

    other = register(5, 0.9, dev="dev-2")
    assert (other.version, other.alias, other.champion_version) == (5, "challenger", 4)
    assert "different development set" in other.reason
    assert aliases(tracker, first.name) == {"champion": 4, "challenger": 5}


def test_the_challenger_that_wins_is_no_challenger_any_more(tracker: Tracker, register: Callable[..., Registration]) -> None:
    register(1, 0.5, dev="dev-2")
    waiting = register(2, 0.6)
    assert aliases(tracker, waiting.name) == {"champion": 1, "challenger": 2}
    tracker.client.delete_registered_model_alias(waiting.name, "champion")
    again = register(2, 0.6)
    assert again.version == 2
    assert again.alias == "champion"
    assert aliases(tracker, again.name) == {"champion": 2}


def test_same_model_again_makes_no_version(tracker: Tracker, register: Callable[..., Registration]) -> None:
    first = register(1, 0.5, **{"gausscse.digest": "p"})
    assert register(1, 0.5, **{"gausscse.digest": "p"}).version == 1
    other_run = pipeline_run(tracker, "b" * 64, {}, {})
    # The same pipeline, tracked by a run that was made anew.
    assert register(1, 0.5, run=other_run, **{"gausscse.digest": "p"}).version == 1
    assert len(tracker.client.search_model_versions(f"name = '{first.name}'")) == 1
    # Another pipeline came to the same weights: a version of its own.
    assert register(1, 0.5, run=other_run, **{"gausscse.digest": "q"}).version == 2


def test_version_carries_run_and_tags(
    tracker: Tracker, register: Callable[..., Registration], encoders: Encoders, run_id: str
) -> None:
    got = register(1, 0.123456789012345678, objective="ent")
    version = tracker.client.get_model_version(got.name, str(got.version))
    assert version.run_id == run_id
    assert version.tags == {
        "objective": "ent",
        "dev_pr_auc": repr(0.123456789012345678),
        "dev_digest": "dev-1",
        "model_digest": sha256_file(encoders(1) / SUMS),
    }
    run = tracker.client.get_run(run_id)
    assert run.outputs is not None
    logged = {tracker.client.get_logged_model(m.model_id).name for m in run.outputs.model_outputs}
    assert got.name in logged


def test_champion_tagged_by_hand_is_not_beaten(tracker: Tracker, register: Callable[..., Registration]) -> None:
    first = register(1, 0.5)
    tracker.client.set_model_version_tag(first.name, "1", "dev_pr_auc", "good")
    second = register(2, 0.6)
    assert second.alias == "challenger"
    assert "no development PR-AUC" in second.reason


def test_score_that_is_no_number_is_refused(register: Callable[..., Registration]) -> None:
    with pytest.raises(UserError, match="PR-AUC is nan"):
        register(1, float("nan"))


def test_shipped_files(tracker: Tracker, register: Callable[..., Registration]) -> None:
    folder = artifact_folder(tracker, register(1, 0.5))
    names = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    assert {"served_model.py", "code/pipeline/encoder.py", f"artifacts/encoder/{SUMS}"} <= names
    assert not [n for n in names if n.endswith((".pyc", ".pkl", ".bin", ".pt"))]
    required = (folder / "requirements.txt").read_text().split()
    assert f"torch=={torch.__version__.partition('+')[0]}" in required
    assert all("==" in line for line in required)


def test_loads_by_pyfunc_elsewhere(
    tracker: Tracker, register: Callable[..., Registration], encoders: Encoders, tmp_path: Path
) -> None:
    """In another folder, offline, without unpickling and without this package on the path."""
    got = register(1, 0.5)
    script = f"""
import json, sys
# The project is installed in this environment, so that its folder has to be hidden.
sys.path = [p for p in sys.path if p != {str(ROOT)!r}]
import mlflow, pandas as pd
mlflow.set_tracking_uri({tracker.uri!r})
model = mlflow.pyfunc.load_model("models:/{got.name}@champion")
frame = pd.DataFrame({{"sentence": {SENTENCES!r}}}, index=[7, 5, 3, 1])
out = model.predict(frame)
empty = model.predict(frame.iloc[:0])
import pipeline.encoder
print(json.dumps({{
    "columns": list(out.columns), "index": list(out.index), "empty": [len(empty), list(empty.columns)],
    "mean": [list(map(float, row)) for row in out["mean"]], "file": pipeline.encoder.__file__,
    "variance": [list(map(float, row)) for row in out["variance"]],
}}))
"""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false"}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    answer = json.loads(done.stdout)
    assert answer["columns"] == ["mean", "variance"]
    assert answer["index"] == [7, 5, 3, 1]
    assert answer["empty"] == [0, ["mean", "variance"]]
    assert Path(answer["file"]).is_relative_to(artifact_folder(tracker, got))
    expected = GaussianEncoder.from_pretrained(encoders(1)).encode(SENTENCES)
    torch.testing.assert_close(torch.tensor(answer["mean"]), expected.mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(torch.tensor(answer["variance"]), expected.variance, rtol=1e-6, atol=1e-6)


def test_load_encoder(tracker: Tracker, register: Callable[..., Registration], encoders: Encoders) -> None:
    got = register(1, 0.5)
    expected = GaussianEncoder.from_pretrained(encoders(1)).encode(SENTENCES)
    for uri in (got.model_uri, f"models:/{got.name}@champion"):
        encoded = load_encoder(uri, tracker.uri).encode(SENTENCES)
        assert torch.equal(encoded.mean, expected.mean)
        assert torch.equal(encoded.log_var, expected.log_var)


def test_default_tracking_uri_is_the_folder_we_stand_in(
    register: Callable[..., Registration], home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    got = register(1, 0.5)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(home)
    assert load_encoder(got.model_uri).dim == 32
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="no MLflow database here"):
        load_encoder(got.model_uri)
    assert list(tmp_path.iterdir()) == []


def test_changed_artifacts_are_refused(tracker: Tracker, register: Callable[..., Registration]) -> None:
    got = register(1, 0.5)
    folder = artifact_folder(tracker, got) / "artifacts" / "encoder"
    weights = folder / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(UserError, match=r"model\.safetensors: differs from its SHA-256 sum"):
        load_encoder(got.model_uri, tracker.uri)
    served = ServedEncoder()
    with pytest.raises(MlflowException, match="differs from its SHA-256 sum"):
        served.load_context(PythonModelContext({"encoder": str(folder)}, None))
    # Whoever can write the weights can write the sums: the registry knows their digest.
    write_sums(folder)
    with pytest.raises(UserError, match="is not the one that was registered"):
        load_encoder(got.model_uri, tracker.uri)


def test_damaged_folder_is_not_registered(tracker: Tracker, encoders: Encoders, run_id: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=SUMS):
        register_model(tracker, "damaged", tmp_path, run_id, {}, 0.5, "dev-1")
    assert tracker.client.search_registered_models("name = 'damaged'") == []


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("models:/known@nobody", "the registry has no alias 'nobody' of a model 'known'"),
        ("models:/known/99", "the registry has no version 99 of a model 'known'"),
        ("models:/unknown@champion", "the registry has no alias 'champion' of a model 'unknown'"),
        ("known", "is not a registered model"),
        ("runs:/abc/model", "is not a registered model"),
        ("models:/known@a/../../etc", "is not a registered model"),
    ],
)
def test_unknown_models(tracker: Tracker, encoders: Encoders, run_id: str, uri: str, message: str) -> None:
    register_model(tracker, "known", encoders(1), run_id, {}, 0.5, "dev-1")
    with pytest.raises(UserError, match=message) as caught:
        load_encoder(uri, tracker.uri)
    assert "\n" not in str(caught.value)


@pytest.fixture
def served(encoders: Encoders) -> tuple[ServedEncoder, PythonModelContext]:
    model, context = ServedEncoder(), PythonModelContext({"encoder": str(encoders(1))}, None)
    model.load_context(context)
    return model, context


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (pd.DataFrame({"text": ["a"]}), "column 'sentence'"),
        (pd.DataFrame({"sentence": ["a", None]}), "row 1: a missing value is not text"),
        (pd.DataFrame({"sentence": ["a", 3]}), "row 1: int is not text"),
        (["a", "b"], "must be a DataFrame"),
    ],
)
def test_bad_input(served: tuple[ServedEncoder, PythonModelContext], frame: pd.DataFrame, message: str) -> None:
    model, context = served
    with pytest.raises(MlflowException, match=message) as caught:
        model.predict(context, frame)
    assert caught.value.error_code == "INVALID_PARAMETER_VALUE"
