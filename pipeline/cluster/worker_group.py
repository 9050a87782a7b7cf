"""A trial as a Ray Train run: workers that train it together (DDP), restarted when one dies or when they should move."""

from __future__ import annotations

from functools import partial
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import ray.train
from ray.train import FailureConfig, RunConfig, ScalingConfig, UserCallback

from pipeline.cluster.capacity import free_places, resources_of, wait_for_places
from pipeline.cluster.elastic import workers_after_move
from pipeline.cluster.failures import given_up, reason_of, shortage_in, user_error_in
from pipeline.cluster.process_group import GlooConfig
from pipeline.cluster.worker import train_as_worker
from pipeline.config.execution import ClusterParams
from pipeline.storage.object_store import private_folder
from pipeline.utils.errors import RunError, TransientStorageError, UserError, counted

if TYPE_CHECKING:
    from pipeline.trials.trial_folder import TrialFolder

# Seconds that workers wait while one works alone: it waits for an earlier writer, or sends a checkpoint to a slow storage.
_ALONE = 1800


def fit(config: dict[str, Any], folder: TrialFolder) -> str | None:
    """Run a trial with Ray Train; returns the reason if it failed after all restarts, else None.

    Raises:
        RunError: the storage, or other code on a worker's machine, ended the last attempt. The trial is not to blame.
        TrainingFailedError, OutOfMemoryError: Ray killed a worker for lack of memory. The process that runs the search waits.
    """
    from ray.exceptions import RayError
    from ray.train import ControllerError, TrainingFailedError
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    cluster = ClusterParams(**config["cluster"])
    resources = resources_of(cluster, config["use_gpu"])
    reason, attempts, waiting, moved = "", 0, False, False
    while attempts <= cluster.max_failures:
        try:
            # Counted again for each attempt, because a host may be lost.
            places = wait_for_places(cluster, config["use_gpu"], say=folder.note)
            free_now = partial(free_places, cluster, config["use_gpu"])
            workers = workers_after_move(cluster, places, free_now) if moved else min(cluster.workers, places)
            moved = False
        except UserError as error:
            return str(error)
        try:
            # Ray Train gets no checkpoints; it writes only a marker file there.
            with TemporaryDirectory(prefix="train-", dir=private_folder()) as scratch:
                why_move = (
                    DataParallelTrainer(
                        _train_worker,
                        train_loop_config=config,
                        # This group is for `collectives.barrier`; the workers create the group for everything else.
                        backend_config=GlooConfig(_ALONE),
                        scaling_config=ScalingConfig(
                            num_workers=workers, use_gpu=config["use_gpu"], resources_per_worker=resources
                        ),
                        run_config=RunConfig(
                            name=f"train-{folder.trial.digest[:16]}",
                            storage_path=scratch,
                            failure_config=FailureConfig(max_failures=cluster.max_failures, controller_failure_limit=0),
                            callbacks=[_NoRestart()],
                        ),
                    )
                    .fit()
                    .return_value
                )
            if not why_move:
                return None
            folder.note(f"{why_move}: the workers have written a checkpoint, and are started again")
            moved = True
        except (TrainingFailedError, RayError) as error:
            if (why := user_error_in(error)) is not None:
                if isinstance(why, TransientStorageError):
                    raise RunError(given_up(str(why), cluster)) from None
                if isinstance(why, RunError):
                    raise why from None
                return str(why)
            if shortage_in(error) is not None:
                raise
            reason = reason_of(error, folder.crash_log)
            if isinstance(error, ControllerError):
                if type(error.controller_failure).__name__ == "WorkerGroupStartupTimeoutError":
                    # Either other runs use the places (then wait), or a host is lost: the next `wait_for_places` shows which.
                    if not waiting:
                        folder.note(f"no room for {counted(workers, 'worker')}; waiting for it")
                    waiting = True
                    continue
            elif isinstance(error, TrainingFailedError):
                # Ray Train has restarted the workers as often as it may.
                break
            # Workers died before they began, or their controller process died: Ray Train does not restart those.
            attempts += 1
    return given_up(reason, cluster)


def _train_worker(config: dict[str, Any]) -> str:
    return train_as_worker(config, ray.train.get_context().get_world_rank())


class _NoRestart(UserCallback):
    """Ends a run at a worker's error that would come up again after a restart: any `UserError` but a `TransientStorageError`, or
    a lack of memory.
    """

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        for error in worker_exceptions.values():
            again = not isinstance(error, UserError) or isinstance(error, TransientStorageError)
            if not again or shortage_in(error) is not None:
                raise error
