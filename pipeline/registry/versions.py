"""Versions of a registered model. Each version is one encoder, logged as a models-from-code pyfunc (see `pyfunc_model`)."""

from __future__ import annotations

import re
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from importlib.metadata import version as installed_version
from pathlib import Path

from mlflow import pyfunc
from mlflow.entities import LoggedModelOutput
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException
from mlflow.models import Model, ModelSignature
from mlflow.tracking import MlflowClient
from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema

from pipeline.identity.source import modules_of
from pipeline.models.model_dir import CARD
from pipeline.tracking.mlflow_runs import DIGEST_TAG
from pipeline.tracking.server import Tracker, every
from pipeline.utils.atomic_io import SUMS, check_sums, sha256_file, write_sums
from pipeline.utils.errors import UserError

_PACKAGE = Path(__file__).resolve().parent.parent
WEIGHTS_TAG = "tensors_digest"
"""Tag of a version: `pipeline.models.model_dir.weights_digest` of its encoder."""
TRIAL_TAG = "trial"
"""Tag of a version: the digest of the trial that it came from."""
CONTENT_TAG = "content_digest"
"""Tag of a version: `pipeline.models.model_dir.content_digest` of its encoder."""
# The encoder folder's name inside the logged model, and the key by which `pyfunc_model` finds it.
ARTIFACT = "encoder"
FILES_TAG = "files_digest"
"""Tag of a version: SHA-256 of the list of sums of all its files, code and MLmodel included."""
# The packages that `pyfunc_model` imports, directly or through our package. Without this list, MLflow would load the model in a
# subprocess to find them.
_REQUIRED = (
    *("mlflow", "numpy", "pandas", "pyarrow", "pydantic", "pyyaml", "safetensors", "tokenizers", "torch", "tqdm"),
    "transformers",
)
_COLUMNS = ("sentence", "a", "b", "premise", "hypothesis")
# Characters of a version's description in MLflow's database.
_MOST = 5000
# MLflow's pages use this tag of a logged model to link it to its registered versions.
_VERSIONS_TAG = "mlflow.modelVersions"


class NoSuchVersion(UserError):
    """The registry answers, and has no such version or alias."""


def find_version(client: MlflowClient, model_uri: str) -> ModelVersion:
    """The version that a URI models:/NAME@ALIAS or models:/NAME/VERSION names.

    Raises:
        NoSuchVersion: the registry lacks the version or the alias.
        UserError: the URI has another form.
    """
    parts = re.fullmatch(r"models:/([^/@]+)(?:@([^/@]+)|/(\d+))", model_uri)
    if parts is None:
        raise UserError(f"{model_uri!r} is not a registered model: write models:/NAME@ALIAS or models:/NAME/VERSION")
    name, alias, number = parts.groups()
    try:
        return client.get_model_version_by_alias(name, alias) if alias else client.get_model_version(name, number)
    except MlflowException as error:
        if not is_missing(error):
            raise
    what = f"alias {alias!r}" if alias else f"version {number}"
    raise NoSuchVersion(f"{model_uri}: the registry has no {what} of a model {name!r}; `dvc repro` registers one")


def tag_of(version: ModelVersion, tag: str) -> str:
    """The value of a tag that every registered version has.

    Raises:
        UserError: the version does not have it.
    """
    if tag not in version.tags:
        raise UserError(f"models:/{version.name}/{version.version}: the registry has no tag {tag} of it; register it again")
    return version.tags[tag]


def all_versions(client: MlflowClient, where: str) -> Iterator[ModelVersion]:
    """Every version that a filter of MLflow's matches, by name and number."""
    # MLflow counts where a page begins. By its own order, the newest first, a change meanwhile would move others across.
    order = ["name ASC", "version_number ASC"]
    return every(lambda token: client.search_model_versions(where, max_results=1000, order_by=order, page_token=token))


def same_version(client: MlflowClient, name: str, run_id: str, tags: Mapping[str, str]) -> ModelVersion | None:
    """The version from an earlier registration of the same model by the same run or pipeline; None if there is none."""
    pipeline = tags.get(DIGEST_TAG)
    for version in all_versions(client, f"name = '{name}' and tags.{CONTENT_TAG} = '{tags[CONTENT_TAG]}'"):
        if version.run_id == run_id or (pipeline is not None and version.tags.get(DIGEST_TAG) == pipeline):
            return version
    return None


def create_model(client: MlflowClient, name: str, description: str | None = None) -> None:
    """Create a registered model unless there is one."""
    try:
        client.create_registered_model(name, description=description)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise


def add_version(tracker: Tracker, name: str, encoder_dir: Path, run_id: str, tags: Mapping[str, str]) -> ModelVersion:
    """Log the model and register it.

    `pyfunc.log_model` does the same, but it uses MLflow's global tracking URI, which we would have to set and reset. It also
    loads the model once more to try the example.
    """
    client = tracker.client
    create_model(client, name)
    logged = client.create_logged_model(tracker.experiment_id, name=name, source_run_id=run_id, tags=dict(tags))
    try:
        with tempfile.TemporaryDirectory(prefix="gausscse-") as temporary:
            folder = Path(temporary) / "model"
            _save(encoder_dir, folder, Model(logged.artifact_location, run_id, model_id=logged.model_id))
            # The registry keeps the digest: anyone who can change files in the artifact store can also change the sums there.
            write_sums(folder)
            tags = {**tags, FILES_TAG: sha256_file(folder / SUMS)}
            client.log_model_artifacts(logged.model_id, str(folder))
    except BaseException:
        client.finalize_logged_model(logged.model_id, "FAILED")
        raise
    client.finalize_logged_model(logged.model_id, "READY")
    client.log_outputs(run_id, [LoggedModelOutput(logged.model_id, step=0)])
    # The tags are set with the version, not after it, so a version can be checked as soon as it is visible.
    version = client.create_model_version(
        name,
        logged.artifact_location,
        run_id,
        tags=dict(tags),
        description=_description(encoder_dir),
        model_id=logged.model_id,
        await_creation_for=60,
    )
    client.set_logged_model_tags(logged.model_id, {_VERSIONS_TAG: f'[{{"name": "{name}", "version": "{version.version}"}}]'})
    return version


def _description(encoder_dir: Path) -> str | None:
    """The model card without its metadata, as long as MLflow's database allows; None without a card."""
    if not (encoder_dir / CARD).is_file():
        return None
    text = (encoder_dir / CARD).read_text(encoding="utf-8").partition("\n---\n")[2].strip()
    return text if len(text) <= _MOST else f"{text[: _MOST - 100].rpartition(chr(10))[0]}\n\n(README.md of the encoder goes on.)"


def _save(encoder_dir: Path, folder: Path, model: Model) -> None:
    """Write the MLflow model folder. The encoder and the code are copied next to it first; the encoder is not loaded."""
    # MLflow names its copy after the source folder, and `loading.encoder_folder` must know that name. (MLflow refuses a link.)
    named = Path(shutil.copytree(encoder_dir, folder.with_name(ARTIFACT)))
    check_sums(named)
    # All modules, so that the model loads without this package installed, but no other files from the folder.
    code = folder.with_name(_PACKAGE.name)
    for module in modules_of(_PACKAGE):
        (copy := code / module.relative_to(_PACKAGE)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(module, copy)
    with warnings.catch_warnings():
        # It wants an example, which it would then have the model compute once more.
        warnings.filterwarnings("ignore", ".*An input example was not provided", UserWarning)
        pyfunc.save_model(  # pyright: ignore[reportUnknownMemberType]
            folder,
            python_model=str(_PACKAGE / "registry/pyfunc_model.py"),
            artifacts={ARTIFACT: str(named)},
            code_paths=[str(code)],
            signature=ModelSignature(
                # The operation decides which columns are read.
                inputs=Schema([ColSpec(DataType.string, name, required=False) for name in _COLUMNS]),
                params=ParamSchema([ParamSpec("operation", DataType.string, "encode")]),
            ),
            # Without the local part (+cpu), which names a build that other package indexes do not have.
            pip_requirements=[f"{package}=={installed_version(package).partition('+')[0]}" for package in _REQUIRED],
            mlflow_model=model,
        )


def is_missing(error: MlflowException) -> bool:
    """True if the error says that a model, a version or an alias does not exist."""
    # MLflow gives the first code for an unknown model, the second for an unknown alias of a known model.
    return error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE")
