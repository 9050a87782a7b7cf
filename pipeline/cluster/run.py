"""One trial as a Ray Train run: the process that drives it, and its workers."""

from __future__ import annotations

import faulthandler
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import ray.train
from ray.train import FailureConfig, RunConfig, ScalingConfig, UserCallback

from pipeline import ledger, places
from pipeline.cluster.capacity import wait_for_places
from pipeline.cluster.courier import Courier
from pipeline.errors import RunError, StorageError, TransientStorageError, UserError
from pipeline.execution import ClusterParams
from pipeline.files import room_for, write_json
from pipeline.identity import check_here
from pipeline.mirror import Mirror
from pipeline.place import storage_error
from pipeline.progress import LOG, RECORDS, ProgressLog, RecordReader
from pipeline.reasons import CRASH, reason_of, user_error_in
from pipeline.storage import found, private_folder
from pipeline.trial import (
    FAILURE,
    LATEST,
    OUTCOME,
    PAUSE,
    PREVIOUS,
    STOPPED,
    EarlyStopping,
    Trial,
    failure,
    finished,
    stopped,
)

if TYPE_CHECKING:
    import torch

    from pipeline.training import Progress

SCORING = ("step", "total_steps", "dev_pr_auc", "best_dev_pr_auc")
"""Keys of a progress record that Tune hears."""
ENDED = "ended"
"""Key of what Tune hears where a `RunError` ended a trial's attempts."""
# Seconds that a worker waits for the one that wrote before it: a file server gives up the locks of a dead host after some 90.
_WRITER_PATIENCE = 180.0
# Seconds between two looks at a trial's scorings.
_POLL = 0.2
# Seconds that workers wait for one that works alone: it waits for an earlier writer, or sends a checkpoint to a slow storage.
_ALONE = 1800


def drive_trial(config: dict[str, Any]) -> None:
    """Body of one Tune trial: a Ray Train run over `cluster.workers` workers, unless another pipeline has finished the trial.

    Raises:
        TransientStorageError: this process itself could not reach the storage; Tune starts it again.
    """
    from ray import tune

    trial = Trial.model_validate_json(config["trial"])
    rule = EarlyStopping(**config["early_stopping"]) if config["early_stopping"] else None
    said: dict[str, Any] = {}
    try:
        with _storage_errors(config["storage"]), places.storage_here(config["storage"], Path("/")) as (storage, remote):
            _drive(config, trial, rule, places.mirror_of(storage / places.TRIALS / trial.digest, remote))
    except TransientStorageError:
        raise
    except RunError as error:
        said = {ENDED: str(error)}
    tune.report({"digest": trial.digest, **said})


def _drive(config: dict[str, Any], trial: Trial, rule: EarlyStopping | None, mirror: Mirror) -> None:
    from ray import tune

    folder = mirror.folder
    places.look(mirror)
    with ledger.driven(folder, config["search"]):
        if finished(folder, trial) is None and failure(folder) is None and stopped(folder, rule) is None:
            (folder / STOPPED).unlink(missing_ok=True)
            mirror.push(STOPPED)
            with ThreadPoolExecutor(1) as pool:
                reason = pool.submit(_fit, config, trial, mirror)
                records = RecordReader(folder)
                running = True
                while running:
                    running = bool(wait([reason], timeout=_POLL if rule else None).not_done)
                    with suppress(TransientStorageError):
                        mirror.pull_at_times(RECORDS)
                    for record in records.read() if rule else []:
                        if record["dev_pr_auc"] is not None:
                            tune.report({"digest": trial.digest} | {key: record[key] for key in SCORING})
            mirror.pull(FAILURE)
            if (why := reason.result()) is not None and failure(folder) is None:
                write_json(folder / FAILURE, {"reason": why})
                mirror.push(FAILURE)


def _fit(config: dict[str, Any], trial: Trial, mirror: Mirror) -> str | None:
    """The Ray Train run of a trial; returns why it failed after all restarts.

    Raises:
        RunError: the storage, or other code on a worker's machine, ended the last attempt. This says nothing about the trial.
    """
    from ray.exceptions import RayActorError
    from ray.train import ControllerError, TrainingFailedError
    from ray.train.torch import TorchConfig, TorchTrainer

    cluster = ClusterParams(**config["cluster"])
    resources = {"CPU": cluster.cpus_per_worker, **({"GPU": 1.0} if config["use_gpu"] else {})}
    reason, attempts, waiting = "", 0, False
    while attempts <= cluster.max_failures:
        try:
            # As many as there are places for: a host may be gone since the last attempt.
            workers = min(cluster.workers, wait_for_places(cluster, config["use_gpu"]))
        except UserError as error:
            return str(error)
        try:
            # Ray Train writes only a mark there: it gets no checkpoints.
            with TemporaryDirectory(prefix="train-", dir=private_folder()) as own:
                TorchTrainer(
                    _train_worker,
                    train_loop_config=config,
                    # For `collectives.barrier`; the workers make the group for everything else.
                    torch_config=TorchConfig(backend="gloo", timeout_s=_ALONE),
                    scaling_config=ScalingConfig(num_workers=workers, use_gpu=config["use_gpu"], resources_per_worker=resources),
                    run_config=RunConfig(
                        name=f"train-{trial.digest[:16]}",
                        storage_path=own,
                        failure_config=FailureConfig(max_failures=cluster.max_failures, controller_failure_limit=0),
                        callbacks=[_NoRestart()],
                    ),
                ).fit()
            return None
        except (TrainingFailedError, RayActorError) as error:
            if (why := user_error_in(error)) is not None:
                if isinstance(why, TransientStorageError):
                    raise StorageError(given_up(str(why), cluster)) from None
                if isinstance(why, RunError):
                    raise why from None
                return str(why)
            reason = reason_of(error, mirror.folder)
            if isinstance(error, ControllerError):
                if type(error.controller_failure).__name__ == "WorkerGroupStartupTimeoutError":
                    # The places are there and somebody else has them, or they went with a host: either is seen above.
                    if not waiting:
                        ProgressLog(trial.name, mirror.folder).note(f"no room for {workers} workers; waiting for it")
                        mirror.push(RECORDS, LOG)
                    waiting = True
                    continue
            elif isinstance(error, TrainingFailedError):
                # Ray Train has restarted the workers as often as it may.
                break
            # Workers that died before they began, or the process that watches over them: nobody else restarts those.
            attempts += 1
    return given_up(reason, cluster)


def given_up(reason: str, params: ClusterParams) -> str:
    """The reason, and how often it was tried."""
    tries = params.max_failures + 1
    return f"{reason} (given up after {tries} attempt{'s' if tries > 1 else ''})"


class _NoRestart(UserCallback):
    """Ends a run at a worker's error that a restart would meet again: every `UserError` except a temporary one of the storage."""

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        for error in worker_exceptions.values():
            if isinstance(error, UserError) and not isinstance(error, TransientStorageError):
                raise error


class _Stopped(Exception):
    """Raised by every worker of a run at the same report: its trial is stopped."""


def _train_worker(config: dict[str, Any]) -> None:
    """Body of one Train worker."""
    import torch

    from pipeline import collectives

    trial = Trial.model_validate_json(config["trial"])
    cluster = ClusterParams(**config["cluster"])
    # Ray sets OMP_NUM_THREADS=1 whatever was reserved.
    torch.set_num_threads(max(1, int(cluster.cpus_per_worker)))
    device = torch.device("cuda", torch.cuda.current_device()) if config["use_gpu"] else torch.device("cpu")
    collectives.give_up_after(cluster.hang_timeout_s, "nccl" if config["use_gpu"] else "gloo")
    with _storage_errors(config["storage"]), places.storage_here(config["storage"], Path("/")) as (storage, remote):
        mirror = places.mirror_of(storage / places.TRIALS / trial.digest, remote)
        rank = ray.train.get_context().get_world_rank()
        with _crash_told(mirror.folder / CRASH.format(rank=rank)):
            _train(config, trial, mirror, device, first=rank == 0)


def _train(config: dict[str, Any], trial: Trial, mirror: Mirror, device: torch.device, *, first: bool) -> None:
    from pipeline import collectives
    from pipeline.training import Paused, train

    folder, done = mirror.folder, False
    log = ProgressLog(trial.name, folder)

    def was_stopped() -> bool:
        # One worker looks, so that all see the same.
        return bool(collectives.from_first(float(first and (folder / STOPPED).is_file()), device))

    def report(progress: Progress) -> None:
        if first:
            log(progress)
        if config["early_stopping"] and progress.step < progress.total_steps and was_stopped():
            raise _Stopped

    def pause() -> bool:
        courier.check()
        return ledger.asked_to_pause(mirror, config["search"])

    def written(name: str) -> None:
        with courier.sending:
            if name == OUTCOME:
                places.show(mirror)
            else:
                # The previous checkpoint first: until now it was the latest one in the storage.
                mirror.push(PREVIOUS, LATEST, RECORDS, LOG)

    courier = Courier(mirror, (STOPPED, PAUSE), (RECORDS, LOG), log.note)
    with ExitStack() as stack:
        try:
            if first:
                if not stack.enter_context(ledger.written(mirror, config["search"], _WRITER_PATIENCE)):
                    raise UserError(f"{folder}: another process has been writing there for {_WRITER_PATIENCE:g} seconds; end it")
                places.look(mirror)
                done = finished(folder, trial) is not None
                if not done:
                    for fault in mirror.pull(LOG, PREVIOUS, LATEST):
                        log.note(f"{fault}; going on without it")
                    if (damage := ledger.tidy(folder)) is not None:
                        log.note(f"{damage}; going on from the checkpoint before it")
                stack.enter_context(courier)
            # The others wait here until the folder is the first one's. The attempt before this one may have died when all was
            # written, or the trial was stopped between the two.
            collectives.barrier()
            if not collectives.from_first(float(done), device) and not was_stopped():
                # All workers go on from the same checkpoint, even if another driver writes one meanwhile.
                alone = collectives.world_size() == 1
                handed_on = "" if alone or not first else mirror.hand_on(LATEST)
                collectives.barrier()
                checkpoint = collectives.text_from_first(handed_on, device)
                if not first:
                    mirror.take(LATEST, checkpoint)
                check_here(trial)
                stores = found(config["train_tokens"]), found(config["dev_tokens"])
                with room_for(folder):
                    train(trial, *stores, folder, report, device, pause=pause, written=written)
        except (_Stopped, Paused):
            return


@contextmanager
def _storage_errors(name: str) -> Iterator[None]:
    """Turn an error of a storage that is a folder into a `StorageError`: its file server may be away.

    Args:
        name: of the storage.
    """
    try:
        yield
    except OSError as error:
        # Libraries raise the kind without a number for what has nothing to do with a file.
        if error.errno is None:
            raise
        raise storage_error(error.filename or name, error) from None


@contextmanager
def _crash_told(file: Path) -> Iterator[None]:
    """Have a crash of this process (SIGSEGV, SIGABRT, …) written to a file; the file is there only while the block runs."""
    with file.open("w", encoding="utf-8") as out:
        faulthandler.enable(out)
        try:
            yield
        finally:
            faulthandler.disable()
            file.unlink(missing_ok=True)
