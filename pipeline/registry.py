"""The MLflow model registry: versions, and which of them is the champion.

One version is one encoder, logged as a models-from-code pyfunc (see `served_model`). Two aliases: `champion` is the
version with the highest development PR-AUC, `challenger` the latest one that did not beat it. A score counts only
against scores on the same development set.
"""

from __future__ import annotations

import logging
import math
import os
import re
import shutil
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version as installed_version
from pathlib import Path

import pandas as pd  # pyright: ignore[reportMissingTypeStubs]
from mlflow import artifacts, pyfunc
from mlflow.entities import LoggedModelOutput
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException
from mlflow.models import Model, ModelSignature
from mlflow.tracking import MlflowClient
from mlflow.types import ColSpec, DataType, Schema
from mlflow.types.schema import Array

from pipeline.encoder import GaussianEncoder
from pipeline.errors import UserError
from pipeline.execution import TrackingParams
from pipeline.files import SUMS, check_sums, sha256_file
from pipeline.tracking import DIGEST_TAG, Tracker, mlflow_errors
from pipeline.tracking import tracking_uri as configured_uri

CHAMPION = "champion"
CHALLENGER = "challenger"

_PACKAGE = Path(__file__).resolve().parent
# The folder's name inside the logged model, and the key under which `served_model` finds it.
_ARTIFACT = "encoder"
# What `served_model` imports, directly or through our package. Given outright: MLflow would otherwise find out by
# loading the model in a subprocess.
_REQUIRED = (
    "mlflow",
    "numpy",
    "pandas",
    "pyarrow",
    "pydantic",
    "pyyaml",
    "safetensors",
    "tokenizers",
    "torch",
    "transformers",
)
_EXAMPLE = ("A dog runs across a field.", "An animal is moving.")
# Tag of a logged model by which MLflow's pages link it to its registered versions.
_VERSIONS_TAG = "mlflow.modelVersions"
_PROGRESS_BAR = "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR"


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """What registering an encoder came to."""

    name: str
    version: int
    alias: str
    """`champion` or `challenger`."""
    champion_version: int
    """The champion now; `version` itself if it became or already was the champion."""
    reason: str
    """Why it got that alias, one sentence."""
    model_uri: str
    """models:/NAME/VERSION, which stays true when the aliases move on."""
    dev_pr_auc: float
    previous_champion_pr_auc: float | None
    """Of the champion it was compared with; None if there was none, or none other than this version."""


def register_model(
    tracker: Tracker,
    name: str,
    encoder_dir: Path,
    run_id: str,
    tags: Mapping[str, str],
    dev_pr_auc: float,
    dev_digest: str,
) -> Registration:
    """Log an encoder as a version of a registered model, tag it and give it its alias.

    Called again for the same encoder, development set and run (or pipeline digest), it makes no second version, but
    sees to the alias again. Reading the champion and moving the alias is not one transaction: register from one process
    at a time.

    Args:
        tracker: where.
        name: of the registered model.
        encoder_dir: written by `GaussianEncoder.save_pretrained`.
        run_id: the run that made it.
        tags: further tags of the version.
        dev_pr_auc: PR-AUC on the development set.
        dev_digest: content digest of the development set.

    Raises:
        UserError: the folder is damaged, the score is not finite, or MLflow refuses or cannot be reached.
    """
    if not math.isfinite(dev_pr_auc):
        raise UserError(f"{encoder_dir}: development PR-AUC is {dev_pr_auc}: not registered")
    check_sums(encoder_dir)
    model_digest = sha256_file(encoder_dir / SUMS)
    every = {**tags, "dev_pr_auc": repr(float(dev_pr_auc)), "dev_digest": dev_digest, "model_digest": model_digest}
    with mlflow_errors(tracker.uri), _quiet():
        version = _same_version(tracker.client, name, run_id, every)
        if version is None:
            version = _add_version(tracker, name, encoder_dir, run_id, every)
        return _give_alias(tracker.client, name, version)


def load_encoder(model_uri: str, tracking_uri: str | None = None) -> GaussianEncoder:
    """The encoder of a registered version, checked against its SHA-256 sums and the registry's digest of them.

    Args:
        model_uri: models:/NAME@ALIAS or models:/NAME/VERSION.
        tracking_uri: the MLflow server; default MLFLOW_TRACKING_URI, then mlflow.db in the current folder.

    Raises:
        UserError: no such version, its files are damaged, or MLflow cannot be reached.
    """
    uri = tracking_uri or _default_uri()
    with tempfile.TemporaryDirectory(prefix="gausscse-") as temporary:
        with mlflow_errors(uri), _quiet():
            client = MlflowClient(tracking_uri=uri, registry_uri=uri)
            version = _find_version(client, model_uri)
            # Not through models:/…, which MLflow resolves at its global registry URI, whatever it is told here.
            location = client.get_model_version_download_uri(version.name, str(version.version)).rstrip("/")
            folder = Path(
                artifacts.download_artifacts(
                    f"{location}/artifacts/{_ARTIFACT}", dst_path=temporary, tracking_uri=uri, registry_uri=uri
                )
            )
        expected = version.tags.get("model_digest")
        if not (folder / SUMS).is_file() or sha256_file(folder / SUMS) != expected:
            raise UserError(f"{model_uri}: its {SUMS} is not the one that was registered; the files were changed")
        return GaussianEncoder.from_pretrained(folder)


def _default_uri() -> str:
    uri = configured_uri(TrackingParams(uri=None, experiment="unused"), Path.cwd())
    file = Path(uri.removeprefix("sqlite:///"))
    # MLflow would make a fresh database here and then find nothing in it.
    if uri.startswith("sqlite:///") and not file.is_file():
        raise UserError(f"{file}: no MLflow database here; run from the project root or set MLFLOW_TRACKING_URI")
    return uri


def _find_version(client: MlflowClient, model_uri: str) -> ModelVersion:
    parts = re.fullmatch(r"models:/([^/@]+)(?:@([^/@]+)|/(\d+))", model_uri)
    if parts is None:
        raise UserError(f"{model_uri!r} is not a registered model: write models:/NAME@ALIAS or models:/NAME/VERSION")
    name, alias, number = parts.groups()
    try:
        found = client.get_model_version_by_alias(name, alias) if alias else client.get_model_version(name, number)
    except MlflowException as error:
        if not _is_missing(error):
            raise
        found = None
    if found is None:
        what = f"alias {alias!r}" if alias else f"version {number}"
        raise UserError(f"{model_uri}: the registry has no {what} of a model {name!r}; `dvc repro` registers one")
    return found


def _same_version(client: MlflowClient, name: str, run_id: str, tags: Mapping[str, str]) -> ModelVersion | None:
    """The version that an earlier, equal call made."""
    found = client.search_model_versions(f"name = '{name}' and tags.model_digest = '{tags['model_digest']}'")
    pipeline = tags.get(DIGEST_TAG)
    for version in sorted(found, key=lambda v: int(v.version)):
        same_origin = version.run_id == run_id or (pipeline is not None and version.tags.get(DIGEST_TAG) == pipeline)
        if same_origin and version.tags.get("dev_digest") == tags["dev_digest"]:
            return version
    return None


def _add_version(tracker: Tracker, name: str, encoder_dir: Path, run_id: str, tags: Mapping[str, str]) -> ModelVersion:
    """Log the model and register it.

    `pyfunc.log_model` does the same, but at MLflow's global tracking URI, which would have to be moved there and back,
    and it loads the model once more to try the example on it.
    """
    client = tracker.client
    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    logged = client.create_logged_model(tracker.experiment_id, name=name, source_run_id=run_id, tags=dict(tags))
    try:
        with tempfile.TemporaryDirectory(prefix="gausscse-") as temporary:
            folder = Path(temporary) / "model"
            _save(encoder_dir, folder, Model(logged.artifact_location, run_id, model_id=logged.model_id))
            client.log_model_artifacts(logged.model_id, str(folder))
    except BaseException:
        client.finalize_logged_model(logged.model_id, "FAILED")
        raise
    client.finalize_logged_model(logged.model_id, "READY")
    client.log_outputs(run_id, [LoggedModelOutput(logged.model_id, step=0)])
    # The tags go in with the version, not after it: whoever sees the version can compare it.
    version = client.create_model_version(
        name, logged.artifact_location, run_id, tags=dict(tags), model_id=logged.model_id, await_creation_for=60
    )
    client.set_logged_model_tags(logged.model_id, {_VERSIONS_TAG: f'[{{"name": "{name}", "version": "{version.version}"}}]'})
    return version


def _save(encoder_dir: Path, folder: Path, model: Model) -> None:
    """Write the MLflow model folder; the encoder is copied, not loaded."""
    numbers = Array(DataType.float)
    with tempfile.TemporaryDirectory(prefix="gausscse-") as temporary:
        # MLflow names its copy after the folder it comes from, and `load_encoder` wants to know the name. (A link is
        # refused.)
        named = Path(temporary) / _ARTIFACT
        shutil.copytree(encoder_dir, named)
        check_sums(named)
        pyfunc.save_model(  # pyright: ignore[reportUnknownMemberType]
            folder,
            python_model=str(_PACKAGE / "served_model.py"),
            artifacts={_ARTIFACT: str(named)},
            # Shipped whole, so that the model loads where this package is not installed.
            code_paths=[str(_PACKAGE)],
            signature=ModelSignature(
                inputs=Schema([ColSpec(DataType.string, "sentence")]),
                outputs=Schema([ColSpec(numbers, "mean"), ColSpec(numbers, "variance")]),
            ),
            input_example=pd.DataFrame({"sentence": list(_EXAMPLE)}),
            # Without the local part (+cpu): it names a build that other indexes do not have.
            pip_requirements=[f"{package}=={installed_version(package).partition('+')[0]}" for package in _REQUIRED],
            mlflow_model=model,
        )


def _give_alias(client: MlflowClient, name: str, version: ModelVersion) -> Registration:
    """Champion if there is none or if it beats the champion on the same development set, else challenger."""
    number = int(version.version)
    champion = _by_alias(client, name, CHAMPION)
    score = float(version.tags["dev_pr_auc"])
    previous = None
    if champion is None:
        wins, reason = True, "there was no champion yet"
    elif int(champion.version) == number:
        wins, reason = True, "this version is the champion already"
    else:
        previous = _score(champion)
        old = f"the champion, version {champion.version}"
        if champion.tags.get("dev_digest") != version.tags["dev_digest"]:
            wins, reason = False, f"{old}, was scored on a different development set, so the two cannot be compared"
        elif previous is None:
            wins, reason = False, f"{old}, has no development PR-AUC to compare with"
        else:
            wins = score > previous
            relation = "is higher than" if wins else "is not higher than"
            reason = f"development PR-AUC {score:.6f} {relation} {previous:.6f} of {old}"
    if wins:
        client.set_registered_model_alias(name, CHAMPION, str(number))
        challenger = _by_alias(client, name, CHALLENGER)
        if challenger is not None and int(challenger.version) == number:
            client.delete_registered_model_alias(name, CHALLENGER)
    else:
        client.set_registered_model_alias(name, CHALLENGER, str(number))
    return Registration(
        name=name,
        version=number,
        alias=CHAMPION if wins else CHALLENGER,
        champion_version=number if champion is None or wins else int(champion.version),
        reason=reason,
        model_uri=f"models:/{name}/{number}",
        dev_pr_auc=score,
        previous_champion_pr_auc=previous,
    )


def _by_alias(client: MlflowClient, name: str, alias: str) -> ModelVersion | None:
    # Searching may return versions without their aliases.
    try:
        return client.get_model_version_by_alias(name, alias)
    except MlflowException as error:
        if not _is_missing(error):
            raise
        return None


def _is_missing(error: MlflowException) -> bool:
    # An unknown model is the first, an unknown alias of a known model the second.
    return error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE")


def _score(version: ModelVersion) -> float | None:
    """Its development PR-AUC; None where someone tagged it by hand, or not at all."""
    try:
        score = float(version.tags["dev_pr_auc"])
    except (KeyError, ValueError):
        return None
    return score if math.isfinite(score) else None


@contextmanager
def _quiet() -> Generator[None]:
    """Without MLflow's remarks and progress bars, which also show for copies within a disk (warnings still show)."""
    loggers = [logging.getLogger(f"mlflow.{part}") for part in ("pyfunc", "store", "tracking")]
    levels = [logger.level for logger in loggers]
    bar_was_set = _PROGRESS_BAR in os.environ
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    os.environ.setdefault(_PROGRESS_BAR, "false")
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        if not bar_was_set:
            del os.environ[_PROGRESS_BAR]
