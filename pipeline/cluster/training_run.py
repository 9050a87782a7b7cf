"""One trial as a Ray Train run: its driver process and its workers."""

from __future__ import annotations

import faulthandler
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import ray.train
from ray.train import FailureConfig, RunConfig, ScalingConfig, UserCallback

from pipeline.cluster.capacity import wait_for_places
from pipeline.cluster.failures import reason_of, user_error_in
from pipeline.cluster.process_group import GlooConfig
from pipeline.config.execution import ClusterParams
from pipeline.identity.digests import check_here
from pipeline.storage.filesystem import storage_error
from pipeline.storage.object_store import found, private_folder, storage_here
from pipeline.trials.store import folder_of
from pipeline.trials.trial import EarlyStopping, Trial
from pipeline.utils.atomic_io import room_for
from pipeline.utils.errors import RunError, StorageError, TransientStorageError, UserError

if TYPE_CHECKING:
    import torch

    from pipeline.training.trainer import Progress
    from pipeline.trials.courier import Courier
    from pipeline.trials.trial_folder import TrialFolder

SCORING = ("step", "total_steps", "score", "best_score")
"""Keys of a progress record that are reported to Tune."""
ENDED = "ended"
"""Key of the message reported to Tune when a `RunError` ended a trial's attempts."""
# Seconds that a worker waits for an earlier writer of the folder. A file server releases the locks of a dead host after about 90.
_WRITER_PATIENCE = 180.0
# Seconds between two checks for new scorings of a trial.
_POLL = 0.2
# Seconds that workers wait while one works alone: it waits for an earlier writer, or sends a checkpoint to a slow storage.
_ALONE = 1800


def drive_trial(config: dict[str, Any]) -> None:
    """Body of one Tune trial: a Ray Train run with `cluster.workers` workers, unless another pipeline has finished the trial.

    Raises:
        TransientStorageError: this process could not reach the storage; Tune restarts it.
    """
    from ray import tune

    trial = Trial.model_validate_json(config["trial"])
    rule = EarlyStopping(**config["early_stopping"]) if config["early_stopping"] else None
    ending: dict[str, Any] = {}
    try:
        with _storage_errors(config["storage"]), storage_here(config["storage"], Path("/")) as (storage, remote):
            _drive(config, folder_of(trial, storage, remote), rule)
    except TransientStorageError:
        raise
    except RunError as error:
        ending = {ENDED: str(error)}
    tune.report({"digest": trial.digest, **ending})


def _drive(config: dict[str, Any], folder: TrialFolder, rule: EarlyStopping | None) -> None:
    from ray import tune

    folder.refresh()
    with folder.driven(config["search"]):
        if folder.settled(rule):
            return
        folder.forget_stop()
        with ThreadPoolExecutor(1) as pool:
            reason = pool.submit(_fit, config, folder.for_another_thread())
            records = folder.records()
            running = True
            while running:
                running = bool(wait([reason], timeout=_POLL if rule else None).not_done)
                folder.pull_records()
                for record in records.read() if rule else []:
                    if record["score"] is not None:
                        tune.report({"digest": folder.trial.digest} | {key: record[key] for key in SCORING})
        if (why := reason.result()) is not None:
            folder.note_failure(why)


def _fit(config: dict[str, Any], folder: TrialFolder) -> str | None:
    """Run a trial with Ray Train; returns the reason if it failed after all restarts, else None.

    Raises:
        RunError: the storage, or other code on a worker's machine, ended the last attempt. The trial is not to blame.
    """
    from ray.exceptions import RayActorError
    from ray.train import ControllerError, TrainingFailedError
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    cluster = ClusterParams(**config["cluster"])
    resources = {"CPU": cluster.cpus_per_worker, **({"GPU": 1.0} if config["use_gpu"] else {})}
    reason, attempts, waiting = "", 0, False
    while attempts <= cluster.max_failures:
        try:
            # Counted again for each attempt, because a host may be lost.
            workers = min(cluster.workers, wait_for_places(cluster, config["use_gpu"]))
        except UserError as error:
            return str(error)
        try:
            # Ray Train gets no checkpoints; it writes only a marker file there.
            with TemporaryDirectory(prefix="train-", dir=private_folder()) as scratch:
                DataParallelTrainer(
                    _train_worker,
                    train_loop_config=config,
                    # This group is for `collectives.barrier`; the workers create the group for everything else.
                    backend_config=GlooConfig(_ALONE),
                    scaling_config=ScalingConfig(num_workers=workers, use_gpu=config["use_gpu"], resources_per_worker=resources),
                    run_config=RunConfig(
                        name=f"train-{folder.trial.digest[:16]}",
                        storage_path=scratch,
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
            reason = reason_of(error, folder.crash_log)
            if isinstance(error, ControllerError):
                if type(error.controller_failure).__name__ == "WorkerGroupStartupTimeoutError":
                    # Either other runs use the places (then wait), or a host is lost: the next `wait_for_places` shows which.
                    if not waiting:
                        folder.note(f"no room for {workers} workers; waiting for it")
                    waiting = True
                    continue
            elif isinstance(error, TrainingFailedError):
                # Ray Train has restarted the workers as often as it may.
                break
            # Workers died before they began, or their controller process died: Ray Train does not restart those.
            attempts += 1
    return given_up(reason, cluster)


def given_up(reason: str, params: ClusterParams) -> str:
    """The reason with the number of attempts added."""
    tries = params.max_failures + 1
    return f"{reason} (given up after {tries} attempt{'s' if tries > 1 else ''})"


class _NoRestart(UserCallback):
    """Ends a run at a worker's error that would come up again after a restart: any `UserError` but a `TransientStorageError`."""

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        for error in worker_exceptions.values():
            if isinstance(error, UserError) and not isinstance(error, TransientStorageError):
                raise error


class _Stopped(Exception):
    """The trial is stopped. All workers raise this at the same report."""


def _train_worker(config: dict[str, Any]) -> None:
    """Body of one Train worker."""
    import torch

    from pipeline.distributed import collectives

    trial = Trial.model_validate_json(config["trial"])
    cluster = ClusterParams(**config["cluster"])
    # Ray sets OMP_NUM_THREADS=1, however many cores are reserved.
    torch.set_num_threads(max(1, int(cluster.cpus_per_worker)))
    device = torch.device("cuda", torch.cuda.current_device()) if config["use_gpu"] else torch.device("cpu")
    collectives.give_up_after(cluster.hang_timeout_s, "nccl" if config["use_gpu"] else "gloo")
    with _storage_errors(config["storage"]), storage_here(config["storage"], Path("/")) as (storage, remote):
        folder = folder_of(trial, storage, remote)
        rank = ray.train.get_context().get_world_rank()
        with _crash_told(folder.crash_log(rank)):
            _train(config, folder, device, first=rank == 0)


def _train(config: dict[str, Any], folder: TrialFolder, device: torch.device, *, first: bool) -> None:
    from pipeline.distributed import collectives
    from pipeline.training.trainer import Paused, train

    done = False

    def was_stopped() -> bool:
        # Only the first worker looks, so that all get the same answer.
        return bool(collectives.from_first(float(first and folder.asked_to_stop()), device))

    def report(progress: Progress) -> None:
        if first:
            folder.log(progress)
        if config["early_stopping"] and progress.step < progress.total_steps and was_stopped():
            raise _Stopped

    with ExitStack() as stack:
        courier: Courier | None = None

        def pause() -> bool:
            if courier is not None:
                courier.check()
            return folder.asked_to_pause(config["search"])

        try:
            if first:
                if not stack.enter_context(folder.written(config["search"], _WRITER_PATIENCE)):
                    waited = f"another process has been writing there for {_WRITER_PATIENCE:g} seconds; end it"
                    raise UserError(f"{folder.path}: {waited}")
                folder.refresh()
                done = folder.outcome() is not None
                if not done:
                    for fault in folder.open_checkpoint():
                        folder.log.note(fault)
                courier = stack.enter_context(folder.courier())
            # The others wait here until the first worker owns the folder. The trial may be done already (the last attempt died
            # after writing everything), or may have been stopped since then.
            collectives.barrier()
            if not collectives.from_first(float(done), device) and not was_stopped():
                # All workers must start from the same checkpoint, even if another driver writes one now.
                alone = collectives.world_size() == 1
                handed_on = "" if alone or not first else folder.hand_on_checkpoint()
                collectives.barrier()
                checkpoint = collectives.text_from_first(handed_on, device)
                if not first:
                    folder.take_checkpoint(checkpoint)
                check_here(folder.trial)
                stores = found(config["train_tokens"]), found(config["dev_tokens"])
                with room_for(folder.path):
                    train(*stores, folder, report, device, pause=pause)
        except (_Stopped, Paused):
            return


@contextmanager
def _storage_errors(name: str) -> Iterator[None]:
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


@contextmanager
def _crash_told(file: Path) -> Iterator[None]:
    """Have a crash of this process (SIGSEGV, SIGABRT, …) written to a file, which is removed when the block ends."""
    with file.open("w", encoding="utf-8") as out:
        faulthandler.enable(out)
        try:
            yield
        finally:
            faulthandler.disable()
            file.unlink(missing_ok=True)
