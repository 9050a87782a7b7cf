"""Fetches the files of registered versions."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mlflow import artifacts
from mlflow.entities.model_registry import ModelVersion
from mlflow.store.artifact.models_artifact_repo import REGISTERED_MODEL_META_FILE_NAME

from pipeline.config.execution import EXECUTION_FILE, TrackingParams
from pipeline.config.load import load_execution
from pipeline.registry.versions import ARTIFACT, CONTENT_TAG, FILES_TAG, TRIAL_TAG, all_versions, find_version, tag_of
from pipeline.tracking.server import client_of, impatient, mlflow_errors
from pipeline.tracking.server import tracking_uri as configured_uri
from pipeline.utils.atomic_io import SUMS, check_sums, sha256_file
from pipeline.utils.errors import UserError

ENCODER = f"artifacts/{ARTIFACT}"
"""The folder of a version's encoder among the version's files."""


def version_of(model_uri: str, uri: str) -> ModelVersion:
    """The version that models:/NAME@ALIAS or models:/NAME/VERSION names now.

    Raises:
        UserError: there is no such version, or MLflow cannot be reached.
    """
    with mlflow_errors(uri):
        return find_version(client_of(uri), model_uri)


def referred_to() -> dict[str, str]:
    """Digests of trials and contents of models that registered versions name → the first version that names each.

    A version needs neither: it has its own copy of its encoder, with the relation head. Versions of all models count, because
    several projects may use one storage.

    Raises:
        UserError: MLflow cannot be reached.
    """
    uri = default_uri()
    named: dict[str, str] = {}
    with mlflow_errors(uri), impatient():
        # Each version has this tag, and no entry of a history does.
        for version in all_versions(client_of(uri), f"tags.{CONTENT_TAG} LIKE '%'"):
            for digest in (version.tags.get(TRIAL_TAG), version.tags[CONTENT_TAG]):
                if digest:
                    named.setdefault(digest, f"version {version.version} of {version.name}")
    return named


@contextmanager
def fetched(version: ModelVersion, uri: str) -> Iterator[Path]:
    """A copy of all files of a version, checked against the registry's digest of them, while the block runs.

    None of the version's code is run. The encoder's folder in it is `ENCODER`.

    Raises:
        UserError: its files differ from the registered ones, the registry has no digest of them, or MLflow cannot be reached.
    """
    name = f"models:/{version.name}/{version.version}"
    digest = tag_of(version, FILES_TAG)
    with tempfile.TemporaryDirectory(prefix="gausscse-") as temporary:
        with mlflow_errors(uri):
            # Not through models:/…, which MLflow always resolves at its global registry URI.
            location = client_of(uri).get_model_version_download_uri(version.name, str(version.version)).rstrip("/")
            model = Path(artifacts.download_artifacts(location, dst_path=temporary, tracking_uri=uri, registry_uri=uri)).resolve()
        # MLflow's own loaders write this file into the version itself if its files lie in a folder.
        (model / REGISTERED_MODEL_META_FILE_NAME).unlink(missing_ok=True)
        if not (model / SUMS).is_file() or sha256_file(model / SUMS) != digest:
            raise UserError(f"{name}: its {SUMS} is not the one that was registered; the files were changed")
        try:
            check_sums(model)
        except UserError as error:
            raise UserError(f"{name}: {str(error).replace(f'{model}/', '')}") from None
        yield model


def default_uri() -> str:
    """The MLflow server of MLFLOW_TRACKING_URI, or of the project in the current folder.

    Raises:
        UserError: it is a database file that does not exist.
    """
    in_project = Path(EXECUTION_FILE).is_file()
    uri = configured_uri(load_execution().tracking if in_project else TrackingParams(uri=None, experiment="unused"), Path.cwd())
    file = Path(uri.removeprefix("sqlite:///"))
    # MLflow would create a new database here and then find nothing in it.
    if uri.startswith("sqlite:///") and not file.is_file():
        raise UserError(f"{file}: no MLflow database here; `dvc repro` makes it in a project's root (or set MLFLOW_TRACKING_URI)")
    return uri
