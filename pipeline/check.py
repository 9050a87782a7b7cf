"""`python -m pipeline.check`: everything that can be wrong with params.yaml and execution.yaml, told before anything runs.

Prints nothing when all is well. One thing it mends: a file of DVC's that a kill left half-written. Stages read their parameters
through `load_project`, so each refuses what this refuses; what it says of the raw input (`check_sources`) only stage prepare
repeats, since the others also run where the raw input is not.
"""

from __future__ import annotations

import fcntl
import json
import re
import sys
from pathlib import Path
from typing import Any

import yaml

from pipeline.backbone import resolve
from pipeline.config import load_execution, load_params
from pipeline.data_sets import check_sources
from pipeline.errors import UserError, run_stage
from pipeline.execution import EXECUTION_FILE, Execution
from pipeline.job import in_job, inputs_of
from pipeline.params import PARAMS_FILE, Params
from pipeline.storage import everywhere
from pipeline.strict_yaml import BrokenYaml, read_yaml
from pipeline.uris import URI_VARIABLE, uri_fault, uri_of_environment, without_password
from pipeline.variants import variants_of

DVC_FILE = "dvc.yaml"
# Who reads and writes what, as the running DVCs wrote it.
DVC_LOCK = ".dvc/tmp/rwlock"


def load_project() -> tuple[Params, Execution]:
    """Both parameter files of the project we stand in, each right in itself and right together.

    Raises:
        UserError: names the file and the key.
    """
    params, execution = load_params(), load_execution()
    _check_batches(params, execution)
    _check_backbone(params)
    for variant in variants_of(params):
        try:
            _check_batches(variant.params, execution)
        except UserError as error:
            raise UserError(f"{error} (variant {variant.name!r})") from None
    _check_places(execution)
    return params, execution


def _check_batches(params: Params, execution: Execution) -> None:
    workers, smallest = execution.cluster.workers, min(params.tune.batch_sizes)
    if 2 * workers > smallest:
        raise UserError(
            f"{EXECUTION_FILE}: cluster.workers: got {workers}: each wants two triplets of a batch, and the smallest of "
            f"tune.batch_sizes ({PARAMS_FILE}) has {smallest}; lower it to {smallest // 2} or raise the batch size"
        )


def _check_backbone(params: Params) -> None:
    try:
        resolve(params.model.backbone, params.model.revision)
    except UserError as error:
        raise UserError(f"{PARAMS_FILE}: {error}") from None


def _check_places(execution: Execution) -> None:
    _check_storage(execution)
    uri = uri_of_environment()
    fault = uri_fault(uri) if uri else None
    if uri and fault:
        shown = f"the environment variable {URI_VARIABLE}: got {without_password(uri)!r}"
        raise UserError(f"{shown}: {fault}, or unset it to use tracking.uri of {EXECUTION_FILE}")
    if execution.cluster.by_jobs or in_job():
        _check_job_tracking(uri, execution.tracking.uri)


def _check_storage(execution: Execution) -> None:
    name = execution.cluster.storage
    if name != without_password(name):
        raise UserError(
            f"{EXECUTION_FILE}: cluster.storage: names a password or key; leave it out, and give it to the environment of this "
            "machine and of the nodes (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY)"
        )
    sent = execution.cluster.by_jobs or (in_job() and inputs_of(Path.cwd()) is not None)
    if sent and not everywhere(name):
        raise UserError(
            f"{EXECUTION_FILE}: cluster.storage: got {name!r}, a relative path, which is another place for each job; "
            "write the absolute path of a folder that this machine and all nodes see, or s3://bucket/prefix"
        )
    if "://" in name:
        return
    storage = Path(name)
    # The folder itself may be yet to be made.
    taken = next((place for place in (storage, *storage.parents) if place.exists()), None)
    if taken is not None and not taken.is_dir():
        raise UserError(f"{EXECUTION_FILE}: cluster.storage: got {name!r}: {taken} is a file; name a folder")


def _check_job_tracking(of_environment: str | None, of_file: str | None) -> None:
    where = f"the environment variable {URI_VARIABLE}" if of_environment else f"{EXECUTION_FILE}: tracking.uri"
    uri = of_environment or of_file
    if uri is None or uri.startswith("sqlite"):
        raise UserError(
            f"{where}: {'is null' if uri is None else 'is a file'}, which a job on a cluster cannot write to; name the MLflow "
            "server that this machine and the nodes reach (http://host:port)"
        )
    if uri != without_password(uri):
        raise UserError(
            f"{where}: names a password, which Ray shows on its pages; leave it out, and give it to the environment of this "
            "machine and of the nodes (MLFLOW_TRACKING_USERNAME, MLFLOW_TRACKING_PASSWORD)"
        )


def check_dvc() -> None:
    """dvc.yaml asks params.yaml for keys that it has; otherwise DVC stops with words of its own.

    Raises:
        UserError: dvc.yaml cannot be read, or names a key that params.yaml does not have.
    """
    try:
        stages = yaml.safe_load(Path(DVC_FILE).read_text(encoding="utf-8"))["stages"]
        wanted = {key for stage in stages.values() for key in stage.get("params", []) if isinstance(key, str)}
        wanted |= set(re.findall(r"\$\{([^}]+)\}", str(stages)))
    except FileNotFoundError:
        raise UserError(f"{DVC_FILE}: no such file; run from the project root") from None
    except (yaml.YAMLError, UnicodeDecodeError, KeyError, TypeError, AttributeError):
        raise UserError(f"{DVC_FILE}: not a YAML file of stages; compare the committed file") from None
    held = read_yaml(Path(PARAMS_FILE))
    for key in sorted(wanted):
        at: Any = held
        for part in key.split("."):
            if not isinstance(at, dict) or part not in at:
                raise UserError(f"{DVC_FILE}: names {key!r}, which {PARAMS_FILE} does not have; correct one of the two")
            at = at[part]


def mend_dvc() -> None:
    """Put away a lock file that DVC was killed in the middle of writing: DVC itself stops at it until somebody does.

    A DVC that is at work has its guard, and is left alone.
    """
    lock = Path(DVC_LOCK)
    if not _half_written(lock):
        return
    with lock.with_name("rwlock.lock").open("a", encoding="utf-8") as guard:
        try:
            fcntl.flock(guard.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        # It may have been only just being written.
        if not _half_written(lock):
            return
        lock.unlink()
    print(f"warning: removed {DVC_LOCK}, which a killed `dvc repro` left half-written", file=sys.stderr)


def _half_written(lock: Path) -> bool:
    try:
        json.loads(lock.read_bytes())
    except FileNotFoundError:
        return False
    except ValueError:
        return True
    return False


def main() -> None:
    """Check the project we stand in."""
    mend_dvc()
    try:
        params, _ = load_project()
    except BrokenYaml as error:
        if str(error).startswith(f"{PARAMS_FILE}:"):
            raise UserError(f"{error} ({DVC_FILE} takes values from this file: until then DVC cannot read it either)") from None
        raise
    check_dvc()
    check_sources(params.data)


if __name__ == "__main__":
    run_stage(main)
