"""A trial as a Ray Train run: workers that train it together (DDP), restarted when one dies or when they should move."""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from functools import partial
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import psutil
import ray.train
from ray.exceptions import RayError
from ray.train import ControllerError, FailureConfig, RunConfig, ScalingConfig, TrainingFailedError, UserCallback
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from pipeline.cluster.capacity import free_places, resources_of, wait_for_places, workers_after_move
from pipeline.cluster.failures import given_up, reason_of, shortage_in, user_error_in
from pipeline.config.execution import ClusterParams
from pipeline.storage.object_store import private_folder
from pipeline.utils.errors import RunError, TransientStorageError, UserError, counted

if TYPE_CHECKING:
    from pipeline.trials.trial_folder import TrialFolder


def fit(config: dict[str, Any], folder: TrialFolder) -> str | None:
    """Run a trial with Ray Train; returns the reason if it failed after all restarts, else None.

    Raises:
        RunError: the storage, or other code on a worker's machine, ended the last attempt. The trial is not to blame.
        TrainingFailedError, OutOfMemoryError: Ray killed a worker for lack of memory. The process that runs the search waits.
    """
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
                trainer = DataParallelTrainer(
                    _train_worker,
                    train_loop_config=config,
                    scaling_config=ScalingConfig(num_workers=workers, use_gpu=config["use_gpu"], resources_per_worker=resources),
                    run_config=RunConfig(
                        name=f"train-{folder.trial.digest[:16]}",
                        storage_path=scratch,
                        failure_config=FailureConfig(max_failures=cluster.max_failures, controller_failure_limit=0),
                        callbacks=[_NoRestart()],
                    ),
                )
                why_move = trainer.fit().return_value
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
            reason = reason_of(error)
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
    import torch
    from ray.train.collective import broadcast_from_rank_zero

    from pipeline.cluster.worker import train_as_worker

    context = ray.train.get_context()
    rank = context.get_world_rank()
    if config["use_gpu"]:
        from ray.train.torch import get_device

        torch.cuda.set_device(get_device())
    enter_group(broadcast_from_rank_zero(free_url() if rank == 0 else ""), rank, context.get_world_size())
    why_move = train_as_worker(config, rank)
    # A process that ends with the threads of a group running is now and then aborted.
    torch.distributed.destroy_process_group()
    return why_move


def free_url() -> str:
    """A free port of this node."""
    host = ray.util.get_node_ip_address()
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as free:
        free.bind(("", 0))
        return f"tcp://{f'[{host}]' if ':' in host else host}:{free.getsockname()[1]}"


def enter_group(url: str, rank: int, workers: int) -> None:
    """Enter the group for `collectives.barrier`. For everything else, `train_as_worker` makes another one.

    Ray's TorchConfig does the same, but imports torch in the two processes that only watch a run: the trial's driver and Ray
    Train's controller. That costs two seconds and 180 MB in each.
    """
    from torch import distributed

    # By default gloo takes the address of the host's name, often 127.0.1.1, which other nodes cannot reach. They reach Ray's.
    if "GLOO_SOCKET_IFNAME" not in os.environ and (name := interface_with(ray.util.get_node_ip_address())) is not None:
        os.environ["GLOO_SOCKET_IFNAME"] = name
    # So long workers wait while one works alone: it waits for an earlier writer, or sends a checkpoint to a slow storage.
    distributed.init_process_group("gloo", url, timedelta(minutes=30), workers, rank)


def interface_with(address: str) -> str | None:
    """The network interface of this machine that has an address; None if none has it."""
    return next((name for name, held in psutil.net_if_addrs().items() if any(one.address == address for one in held)), None)


class _NoRestart(UserCallback):
    """Ends a run at a worker's error that would come up again after a restart: any `UserError` but a `TransientStorageError`, or
    a lack of memory.
    """

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        for error in worker_exceptions.values():
            again = not isinstance(error, UserError) or isinstance(error, TransientStorageError)
            if not again or shortage_in(error) is not None:
                raise error
