"""Checks of a project before anything runs: params.yaml, execution.yaml, and a lock file that DVC may have left.

All stages and commands read their parameters through `load_project`, so all of them refuse the same mistakes.
"""

from __future__ import annotations

import fcntl
import json
from pathlib import Path

from pipeline.config.execution import EXECUTION_FILE, Execution
from pipeline.config.job_inputs import in_job
from pipeline.config.load import load_execution, load_name, load_params
from pipeline.config.params import PARAMS_FILE, Params
from pipeline.models.backbone import check_files, resolve
from pipeline.storage.object_store import everywhere
from pipeline.trials.variants import variants_of
from pipeline.utils.errors import UserError
from pipeline.utils.logs import log
from pipeline.utils.uris import URI_VARIABLE, uri_fault, uri_of_environment, without_password


def load_project() -> tuple[Params, Execution]:
    """Read both parameter files of the project in the current folder; checks each of them and both together.

    Raises:
        UserError: a value is wrong; the message names the file and the key.
    """
    params, (_, execution) = load_params(), load_place()
    _check_batches(params, execution)
    if not in_job():
        check_backbone(params)
    for variant in variants_of(params):
        try:
            _check_batches(variant.params, execution)
        except UserError as error:
            raise UserError(f"{error} (variant {variant.name!r})") from None
    return params, execution


def load_place() -> tuple[str, Execution]:
    """`register.name` and execution.yaml: enough for commands that use a registered model.

    Raises:
        UserError: a value of these is wrong; the message names the file and the key.
    """
    name, execution = load_name(), load_execution()
    check_storage(execution, shared=execution.cluster.by_jobs or in_job())
    _check_tracking(execution)
    return name, execution


def _check_batches(params: Params, execution: Execution) -> None:
    workers, smallest = execution.cluster.workers, min(params.tune.batch_sizes)
    if 2 * workers > smallest:
        raise UserError(
            f"{EXECUTION_FILE}: cluster.workers: got {workers}: each needs two triplets of a batch, and the smallest of "
            f"tune.batch_sizes ({PARAMS_FILE}) has {smallest}; lower it to {smallest // 2} or raise the batch size"
        )


def check_backbone(params: Params) -> None:
    """Check that the backbone exists, as far as its name says, and that the files of a folder are not pointers or web pages.

    A job may have got its files with the code.

    Raises:
        UserError: it does not, or a file is something else.
    """
    try:
        check_files(resolve(params.model.backbone, params.model.revision))
    except UserError as error:
        raise UserError(f"{PARAMS_FILE}: {error}") from None


def check_storage(execution: Execution, *, shared: bool) -> None:
    """Check what `cluster.storage` names.

    Args:
        shared: whether jobs must find the same place.

    Raises:
        UserError: it has a password, is a file, or is not the same place everywhere.
    """
    name = execution.cluster.storage
    if name != without_password(name):
        raise UserError(
            f"{EXECUTION_FILE}: cluster.storage: contains a password or key; leave it out, and set it in the environment of this "
            "machine and of the nodes (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY)"
        )
    if shared and not everywhere(name):
        raise UserError(
            f"{EXECUTION_FILE}: cluster.storage: got {name!r}, a relative path, which is a different folder in each job; "
            "write the absolute path of a folder that this machine and all nodes see, or s3://bucket/prefix"
        )
    if "://" in name:
        return
    storage = Path(name)
    # The folder may not exist yet.
    existing = next((place for place in (storage, *storage.parents) if place.exists()), None)
    if existing is not None and not existing.is_dir():
        raise UserError(f"{EXECUTION_FILE}: cluster.storage: got {name!r}: {existing} is a file; name a folder")


def _check_tracking(execution: Execution) -> None:
    uri, where = uri_of_environment(), f"the environment variable {URI_VARIABLE}"
    if uri and (fault := uri_fault(uri)):
        raise UserError(f"{where}: got {without_password(uri)!r}: {fault}, or unset it to use tracking.uri of {EXECUTION_FILE}")
    if not execution.cluster.by_jobs and not in_job():
        return
    if not uri:
        uri, where = execution.tracking.uri, f"{EXECUTION_FILE}: tracking.uri"
    if uri is None or uri.startswith("sqlite"):
        raise UserError(
            f"{where}: {'is null' if uri is None else 'is a file'}, which a job on a cluster cannot write to; name the MLflow "
            "server that this machine and the nodes reach (http://host:port)"
        )
    if uri != without_password(uri):
        raise UserError(
            f"{where}: contains a password, which Ray shows on its pages; leave it out, and set it in the environment of this "
            "machine and of the nodes (MLFLOW_TRACKING_USERNAME, MLFLOW_TRACKING_PASSWORD)"
        )


def repair_dvc() -> None:
    """Remove a lock file that a killed DVC left half-written; DVC would refuse to start until it is gone.

    A running DVC holds the guard lock, and its file is left alone.
    """
    # Running DVC processes record here which files they read and write.
    lock = Path(".dvc/tmp/rwlock")
    if not lock.is_file():
        return
    with lock.with_name("rwlock.lock").open("a", encoding="utf-8") as guard:
        try:
            fcntl.flock(guard.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            json.loads(lock.read_bytes())
        except (BlockingIOError, FileNotFoundError):
            return
        except ValueError:
            lock.unlink()
            log.warning(f"removed {lock}, which a killed `dvc repro` left half-written")
