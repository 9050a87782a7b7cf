"""What a worker of a training run does. `worker_group` starts workers; a single one on this machine is its own driver."""

from __future__ import annotations

import math
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import ray
import torch

from pipeline.cluster.capacity import ClusterWatch
from pipeline.cluster.gauges import SYSTEM, Gauges, system_metrics
from pipeline.cluster.session import check_this_node
from pipeline.cluster.training_run import storage_of_trial
from pipeline.config.execution import ClusterParams
from pipeline.data.token_shards import FetchedShards
from pipeline.data.token_store import digest
from pipeline.distributed import collectives
from pipeline.identity.digests import check_here
from pipeline.models.backbone import bring
from pipeline.storage.object_store import found, place_of
from pipeline.training.trainer import Paused, Progress, train
from pipeline.trials.progress_log import BackgroundSync
from pipeline.trials.store import folder_of
from pipeline.trials.trial import Trial
from pipeline.trials.trial_folder import TrialFolder
from pipeline.utils.errors import RunError, UserError

# Seconds that a worker waits for an earlier writer of the folder. A file server releases the locks of a dead host after about 90.
_WRITER_PATIENCE = 180.0

_SHUFFLED = (
    "cluster.shard_cache_gb (execution.yaml) has no room for all shards of the training tokens, and in a random order nearly "
    "every batch reads nearly all of them; set train.block_rows (params.yaml)"
)


class _Stopped(Exception):
    """The trial is stopped. All workers raise this at the same report."""


def train_as_worker(config: dict[str, Any], rank: int) -> str:
    """Train a trial as one of its workers.

    Args:
        config: what `grid_search` gives each trial.
        rank: this worker's number.

    Returns:
        on the first worker: why the workers paused and should be started again, empty otherwise (see `capacity`).
    """
    check_this_node(config["versions"], use_gpu=config["use_gpu"])
    trial = Trial.model_validate_json(config["trial"])
    cluster = ClusterParams(**config["cluster"])
    # Ray sets OMP_NUM_THREADS=1, however many cores are reserved.
    torch.set_num_threads(config["threads"])
    device = torch.device("cuda", torch.cuda.current_device()) if config["use_gpu"] else torch.device("cpu")
    collectives.give_up_after(cluster.hang_timeout_s, "nccl" if config["use_gpu"] else "gloo")
    with storage_of_trial(config) as (storage, remote):
        return _train(config, folder_of(trial, storage, remote), device, first=rank == 0)


def _train(config: dict[str, Any], folder: TrialFolder, device: torch.device, *, first: bool) -> str:
    done = False
    machines: list[str] = []

    def was_stopped() -> bool:
        # Only the first worker looks, so that all get the same answer.
        return bool(collectives.from_first(float(first and folder.asked_to_stop()), device))

    gauges = Gauges(folder.trial.name) if first else None
    # The next call gives the use of the processor since now.
    system_metrics(device)

    def report(progress: Progress) -> None:
        everyone = collectives.gather_rows(torch.tensor([system_metrics(device)], device=device), collectives.world_size())
        if gauges is not None:
            gauges(progress)
            # With several workers, MLflow's names say of which one they are.
            system = {
                name if len(everyone) == 1 else f"worker-{worker}/{name}": value
                for worker, row in enumerate(everyone.tolist())
                for name, value in zip(SYSTEM, row, strict=True)
                if not math.isnan(value)
            }
            folder.log(replace(progress, system=system, machines=machines))
        if config["early_stopping"] and progress.step < progress.total_steps and was_stopped():
            raise _Stopped

    with ExitStack() as stack:
        sync: BackgroundSync | None = None
        watch: ClusterWatch | None = None

        def pause() -> bool:
            if sync is not None:
                sync.check()
            return folder.asked_to_pause(config["search"]) or bool(watch and watch.why_move)

        try:
            if first:
                patience = f"another process writes into {folder.path}; waiting for it, {_WRITER_PATIENCE:g} s at most"
                written = folder.written(config["search"], _WRITER_PATIENCE, lambda: folder.log.note(patience))
                if not stack.enter_context(written):
                    waited = f"another process has been writing there for {_WRITER_PATIENCE:g} seconds; end it"
                    raise UserError(f"{folder.path}: {waited}")
                folder.refresh()
                done = folder.outcome() is not None
                if not done:
                    for fault in folder.open_checkpoint():
                        folder.log.note(fault)
                sync = stack.enter_context(folder.background_sync())
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
                if config["backbone"]:
                    bring(folder.trial.model.backbone, folder.trial.model.revision, found(config["backbone"]))
                check_here(folder.trial)
                if (shards := _shards_of(config)) is not None:
                    stack.callback(shards.close)
                    if first and not shards.fits and folder.trial.train.block_rows is None:
                        folder.log.note(_SHUFFLED)
                train_tokens = found(config["train_tokens"]) if shards is None else shards.directory
                stores = train_tokens, found(config["dev_tokens"])
                for store, sums in zip(stores, config["sums"], strict=True):
                    if digest(store) != sums:
                        raise RunError(f"{store}: has changed since the trial was planned; run dvc repro again")
                if config["standing"]:
                    machines += _homes(device)
                    if first:
                        watch = stack.enter_context(ClusterWatch(ClusterParams(**config["cluster"]), config["use_gpu"], machines))
                train(*stores, folder, report, device, pause, shards)
        except _Stopped:
            return ""
        except Paused:
            return watch.why_move if watch and not folder.asked_to_pause(config["search"]) else ""
    return ""


def _shards_of(config: dict[str, Any]) -> FetchedShards | None:
    """The shards of the training store; None if this node sees the whole store, and has no limit for its own copies."""
    shared, gb = config["train_tokens"], ClusterParams(**config["cluster"]).shard_cache_gb
    if not place_of(shared)[2] and (gb is None or not config["standing"]):
        return None
    return FetchedShards(shared, None if gb is None else int(gb * 1e9))


def _homes(device: torch.device) -> list[str]:
    """Ids of the nodes that the workers are on."""
    home = torch.frombuffer(bytearray.fromhex(ray.get_runtime_context().get_node_id()), dtype=torch.uint8)
    everyone = collectives.gather_rows(home[None].to(device), collectives.world_size())
    return [bytes(row).hex() for row in everyone.tolist()]
