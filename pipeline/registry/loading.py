"""What is registered, as an encoder that people use."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from mlflow import artifacts
from mlflow.entities.model_registry import ModelVersion
from mlflow.tracking import MlflowClient

from pipeline.config import load_execution
from pipeline.errors import UserError
from pipeline.execution import EXECUTION_FILE, TrackingParams
from pipeline.files import SUMS, sha256_file
from pipeline.registry.versions import ARTIFACT, find_version, quiet
from pipeline.tracking import mlflow_errors
from pipeline.tracking import tracking_uri as configured_uri

if TYPE_CHECKING:
    from pipeline.encoder import GaussianEncoder


def load_encoder(model_uri: str, tracking_uri: str | None = None) -> GaussianEncoder:
    """The encoder of a registered version, checked against its SHA-256 sums and the registry's digest of them.

    Args:
        model_uri: models:/NAME@ALIAS or models:/NAME/VERSION.
        tracking_uri: the MLflow server; default MLFLOW_TRACKING_URI, then that of the project whose root is the current folder.

    Raises:
        UserError: no such version, its files are damaged, or MLflow cannot be reached.
    """
    # torch and transformers: seconds that who only asks the registry something need not wait.
    from pipeline.encoder import GaussianEncoder

    with _registered(model_uri, tracking_uri or _default_uri()) as folder:
        return GaussianEncoder.from_pretrained(folder)


@contextmanager
def encoder_folder(model: str, tracking_uri: str | None = None) -> Iterator[Path]:
    """The folder of an encoder, for as long as the block runs.

    Args:
        model: models:/NAME@ALIAS, models:/NAME/VERSION, or the folder itself.
        tracking_uri: as of `load_encoder`.

    Raises:
        UserError: as `load_encoder`; or there is no such folder.
    """
    if model.startswith("models:/"):
        with _registered(model, tracking_uri or _default_uri()) as folder:
            yield folder
        return
    if not (Path(model) / "config.json").is_file():
        raise UserError(f"{model}: no config.json here: name models:/NAME@ALIAS, or a folder written by save_pretrained")
    yield Path(model).absolute()


@contextmanager
def _registered(model_uri: str, uri: str) -> Iterator[Path]:
    with mlflow_errors(uri):
        version = find_version(MlflowClient(tracking_uri=uri, registry_uri=uri), model_uri)
    with fetched(version, uri) as folder:
        yield folder


@contextmanager
def fetched(version: ModelVersion, uri: str) -> Iterator[Path]:
    """The encoder's folder of a registered version, for as long as the block runs.

    Raises:
        UserError: its files are not those that were registered, or MLflow cannot be reached.
    """
    with tempfile.TemporaryDirectory(prefix="gausscse-") as temporary:
        with mlflow_errors(uri), quiet():
            client = MlflowClient(tracking_uri=uri, registry_uri=uri)
            # Not through models:/…, which MLflow resolves at its global registry URI, whatever it is told here.
            location = client.get_model_version_download_uri(version.name, str(version.version)).rstrip("/")
            folder = Path(
                artifacts.download_artifacts(
                    f"{location}/artifacts/{ARTIFACT}", dst_path=temporary, tracking_uri=uri, registry_uri=uri
                )
            )
        if not (folder / SUMS).is_file() or sha256_file(folder / SUMS) != version.tags.get("model_digest"):
            raise UserError(
                f"models:/{version.name}/{version.version}: its {SUMS} is not the one that was registered; the files were changed"
            )
        yield folder


def _default_uri() -> str:
    here = Path(EXECUTION_FILE).is_file()
    uri = configured_uri(load_execution().tracking if here else TrackingParams(uri=None, experiment="unused"), Path.cwd())
    file = Path(uri.removeprefix("sqlite:///"))
    # MLflow would make a fresh database here and then find nothing in it.
    if uri.startswith("sqlite:///") and not file.is_file():
        raise UserError(f"{file}: no MLflow database here; `dvc repro` makes it in a project's root (or set MLFLOW_TRACKING_URI)")
    return uri
