"""One trial as a Ray Train run: the process that drives it, and its workers."""

from __future__ import annotations

import faulthandler
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray.train
from ray.train import FailureConfig, RunConfig, ScalingConfig

from pipeline import ledger, places
from pipeline.cluster.capacity import wait_for_places
from pipeline.errors import UserError
from pipeline.execution import ClusterParams
from pipeline.files import room_for, write_json
from pipeline.identity import check_here
from pipeline.mirror import Mirror
from pipeline.progress import LOG, RECORDS, ProgressLog, RecordReader
from pipeline.reasons import CRASH, reason_of
from pipeline.storage import found
from pipeline.trial import FAILURE, LATEST, OUTCOME, PREVIOUS, STOPPED, EarlyStopping, Trial, failure, finished, stopped

if TYPE_CHECKING:
    import torch

    from pipeline.training import Progress

SCORING = ("step", "total_steps", "dev_pr_auc", "best_dev_pr_auc")
"""Keys of a progress record that Tune hears."""
# Seconds that a worker waits for the one that wrote before it: a file server gives up the locks of a dead host after some 90.
_WRITER_PATIENCE = 180.0
# Seconds between two looks at a trial's scorings.
_POLL = 0.2


def drive_trial(config: dict[str, Any]) -> None:
    """Body of one Tune trial: a Ray Train run over `cluster.workers` workers, unless another pipeline has made that needless."""
    from ray import tune

    trial = Trial.model_validate_json(config["trial"])
    rule = EarlyStopping(**config["early_stopping"]) if config["early_stopping"] else None
    with places.storage_here(config["storage"], Path("/")) as (storage, remote):
        _drive(config, trial, rule, places.mirror_of(storage / places.TRIALS / trial.digest, remote))
    tune.report({"digest": trial.digest})


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
                    mirror.pull_at_times(RECORDS)
                    for record in records.read() if rule else []:
                        if record["dev_pr_auc"] is not None:
                            tune.report({"digest": trial.digest} | {key: record[key] for key in SCORING})
            mirror.pull(FAILURE)
            if (why := reason.result()) is not None and failure(folder) is None:
                write_json(folder / FAILURE, {"reason": why})
                mirror.push(FAILURE)


def _fit(config: dict[str, Any], trial: Trial, mirror: Mirror) -> str | None:
    """The Ray Train run of a trial; returns why it failed after all restarts."""
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
        trainer = TorchTrainer(
            _train_worker,
            train_loop_config=config,
            torch_config=TorchConfig(backend="nccl" if config["use_gpu"] else "gloo"),
            scaling_config=ScalingConfig(num_workers=workers, use_gpu=config["use_gpu"], resources_per_worker=resources),
            run_config=RunConfig(
                name=f"train-{trial.digest[:16]}",
                storage_path=config["private"],
                failure_config=FailureConfig(max_failures=cluster.max_failures, controller_failure_limit=0),
            ),
        )
        try:
            trainer.fit()
            return None
        except (TrainingFailedError, RayActorError) as error:
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


class _Stopped(Exception):
    """Raised by every worker of a run at the same report: its trial is stopped."""


def _train_worker(config: dict[str, Any]) -> None:
    """Body of one Train worker."""
    import torch

    trial = Trial.model_validate_json(config["trial"])
    cluster = ClusterParams(**config["cluster"])
    # Ray sets OMP_NUM_THREADS=1 whatever was reserved.
    torch.set_num_threads(max(1, int(cluster.cpus_per_worker)))
    device = torch.device("cuda", torch.cuda.current_device()) if config["use_gpu"] else torch.device("cpu")
    with places.storage_here(config["storage"], Path("/")) as (storage, remote):
        mirror = places.mirror_of(storage / places.TRIALS / trial.digest, remote)
        rank = ray.train.get_context().get_world_rank()
        with _crash_told(mirror.folder / CRASH.format(rank=rank)):
            _train(config, trial, mirror, device, first=rank == 0)


def _train(config: dict[str, Any], trial: Trial, mirror: Mirror, device: torch.device, *, first: bool) -> None:
    from pipeline import collectives
    from pipeline.training import Paused, TrainingError, train

    folder, done = mirror.folder, False
    log = ProgressLog(trial.name, folder)

    def noted(*notes: str) -> bool:
        # One worker looks, so that all see the same.
        if first:
            mirror.pull_at_times(*notes)
        return bool(collectives.from_first(float(first and any((folder / note).is_file() for note in notes)), device))

    def report(progress: Progress) -> None:
        if first:
            log(progress)
            mirror.push_at_times(RECORDS, LOG)
        if config["early_stopping"] and progress.step < progress.total_steps and noted(STOPPED):
            raise _Stopped

    def written(name: str) -> None:
        if name == OUTCOME:
            places.show(mirror)
        else:
            # The checkpoint before it first: it is what the latest was there until now.
            mirror.push(PREVIOUS, LATEST, RECORDS, LOG)

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
            # The others wait here until the folder is the first one's. The attempt before this one may have died when all was
            # written; or it met something that no restart mends, or the trial was stopped between the two.
            if not collectives.from_first(float(done), device) and not noted(FAILURE, STOPPED):
                # All workers go on from the very same checkpoint, whatever another driver writes meanwhile.
                alone = collectives.world_size() == 1
                checkpoint = collectives.text_from_first("" if alone or not first else mirror.hand_on(LATEST), device)
                if not first:
                    mirror.take(LATEST, checkpoint)
                check_here(trial)
                stores = found(config["train_tokens"]), found(config["dev_tokens"])
                pause = partial(ledger.asked_to_pause, mirror, config["search"])
                with room_for(folder):
                    train(trial, *stores, folder, report, device, pause=pause, written=written)
        except (_Stopped, Paused):
            return
        except UserError as error:
            if first:
                _tell_failure(mirror, str(error))
            # What all workers meet at the same step is told, and that is all. What perhaps only this one met is raised: Ray then
            # ends the others, which wait for it, and the restart finds what was told.
            if not isinstance(error, TrainingError) and collectives.world_size() > 1:
                raise


def _tell_failure(mirror: Mirror, reason: str) -> None:
    try:
        write_json(mirror.folder / FAILURE, {"reason": reason})
    except (UserError, OSError):
        # The disk is full, and without this word the run would meet that again at every restart. The checkpoint before the latest
        # is only there for when that one is damaged.
        shutil.rmtree(mirror.folder / PREVIOUS, ignore_errors=True)
        write_json(mirror.folder / FAILURE, {"reason": reason})
    mirror.push(FAILURE)


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
