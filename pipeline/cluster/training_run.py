"""A trial's driver: it starts the trial's workers, or trains the trial itself, and reports the scorings to Ray Tune.

A trial of one worker on this machine is trained by its driver. Starting another process and importing torch there takes seconds,
and Ray Train starts a controller as well; a short trial takes no longer to train. Ray Tune keeps the driver for the next trial.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pipeline.config.objectives import BROKEN
from pipeline.storage.filesystem import storage_error
from pipeline.storage.object_store import storage_here
from pipeline.trials.store import folder_of
from pipeline.trials.trial import EarlyStopping, Trial
from pipeline.trials.trial_folder import TrialFolder
from pipeline.utils.atomic_io import room_for
from pipeline.utils.errors import RunError, StorageError, TransientStorageError, UserError

SCORING = ("step", "total_steps", "score", "best_score")
"""Keys of a progress record that are reported to Tune."""


def drive_trial(config: dict[str, Any]) -> None:
    """Body of one Tune trial: a training run with `cluster.workers` workers, unless another pipeline has finished the trial.

    If this process dies, or raises anything but a `RunError` for good, Tune starts it again up to `cluster.max_failures` times.

    Raises:
        TransientStorageError: this process could not reach the storage; Tune starts it again.
        RunError: the trial is not to blame. The search ends.
    """
    from ray import tune

    try:
        trial = Trial.model_validate_json(config["trial"])
    except ValidationError as error:
        name = json.loads(config["trial"])["objective"]["name"]
        why = BROKEN[0] if BROKEN else f"objective {name!r} is not known here, or has other keys ({error.error_count()} errors)"
        raise RunError(f"{socket.gethostname()}: {why}; install the same packages on every node") from None
    rule = EarlyStopping(**config["early_stopping"]) if config["early_stopping"] else None
    with storage_of_trial(config) as (storage, remote):
        _drive(config, folder_of(trial, storage, remote), rule)
    tune.report({"digest": trial.digest})


def _drive(config: dict[str, Any], folder: TrialFolder, rule: EarlyStopping | None) -> None:
    from ray import tune

    if config["in_driver"]:
        fit = _train_here
    else:
        from pipeline.cluster.worker_group import fit

    folder.refresh()
    with folder.driven(config["search"]):
        if folder.outcome() or folder.failure() or folder.stop(rule):
            return
        folder.forget_stop()
        with ThreadPoolExecutor(1) as pool:
            reason = pool.submit(fit, config, folder.for_another_thread())
            records = folder.records()
            running = True
            while running:
                # A rule needs the new scorings soon.
                running = bool(wait([reason], timeout=0.2 if rule else None).not_done)
                with suppress(TransientStorageError):
                    folder.pull_notes()
                for record in records.read() if rule else []:
                    if record["score"] is not None:
                        tune.report({"digest": folder.trial.digest} | {key: record[key] for key in SCORING})
        if (why := reason.result()) is not None:
            folder.note_failure(why)


def _train_here(config: dict[str, Any], folder: TrialFolder) -> str | None:
    """Train as the only worker; returns the reason if the trial cannot be trained, else None."""
    from pipeline.cluster.worker import train_as_worker

    try:
        train_as_worker(config, 0)
    except RunError:
        raise
    except UserError as error:
        return str(error)
    return None


@contextmanager
def storage_of_trial(config: Mapping[str, Any]) -> Iterator[tuple[Path, str | None]]:
    """`storage_here`, for a process that trains or drives a trial; on a standing cluster, an error names the process's node.

    Raises:
        TransientStorageError: the storage has a temporary failure.
        RunError: another failure of the storage, or of this machine's disk.
    """
    try:
        with storage_errors(config["storage"]), storage_here(config["storage"], Path("/")) as (folder, remote), room_for(folder):
            yield folder, remote
    except StorageError as error:
        if not config["standing"]:
            raise
        from ray.util import get_node_ip_address

        # A remote storage has a copy on the disk of each node.
        kind = TransientStorageError if isinstance(error, TransientStorageError) else RunError
        raise kind(f"node {get_node_ip_address()}: {error}") from None


@contextmanager
def storage_errors(name: str) -> Iterator[None]:
    """Turn an OSError into a `StorageError`: the storage is a folder, and its file server may be down.

    Args:
        name: the storage's name.
    """
    try:
        yield
    except OSError as error:
        # Libraries raise OSError without a number for errors that have nothing to do with a file.
        if error.errno is None:
            raise
        raise storage_error(error.filename or name, error) from None
