"""Runs trials through Ray Tune: the trials that are not in the trial store yet, as many at a time as there is room for."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from pipeline.cluster import backbone_files
from pipeline.cluster.capacity import Demand, nodes, resources_of, worker_places
from pipeline.cluster.failures import KEPT, given_up, reason_of, user_error_in
from pipeline.cluster.memory import wait_for_memory
from pipeline.cluster.ray_private import actor_manager
from pipeline.cluster.session import Session
from pipeline.cluster.training_run import SCORING, drive_trial
from pipeline.config.execution import ClusterParams
from pipeline.config.job_inputs import standing
from pipeline.data.token_store import digest
from pipeline.storage.object_store import at_once, private_folder
from pipeline.trials.early_stopping import Stopper
from pipeline.trials.store import TrialStore, pause
from pipeline.trials.trial import EarlyStopping, Trial, TrialResult, name_of
from pipeline.utils.errors import RunError, TransientStorageError, counted
from pipeline.utils.logs import log

if TYPE_CHECKING:
    from pipeline.tracking.server import Tracker
    from pipeline.trials.trial_folder import TrialFolder


def run_trials(
    trials: list[Trial],
    store: TrialStore,
    session: Callable[[], Session],
    tracker: Tracker,
    parent: str,
    early_stopping: EarlyStopping | None = None,
    named: Callable[[Trial], str] = name_of,
) -> list[TrialResult]:
    """Run the trials that are not in the trial store yet, as many at once as the cluster has room for.

    If there are none, `session` is never called.

    A trial that fails is reported with its reason; the others go on. A worker or driver process that dies or raises is restarted
    up to `cluster.max_failures` times, but not after a `UserError`: a non-finite loss (same seed, same numbers) or a damaged
    store would come up again.

    With early stopping, a trial that falls behind its competitors is stopped. It is not run again under the same rule. Under
    another rule, or none, it goes on from its latest checkpoint. Trials compete if they differ only in learning rate and batch
    size.

    Args:
        named: gives a trial's name on the terminal and in MLflow.

    Raises:
        RunError: the storage refused, or failed at every attempt at a trial, or a worker has other code or another backbone. The
            trial is not to blame and stays unfinished.
    """
    # Only here, because MLflow takes seconds to import.
    from pipeline.tracking.forwarder import report_known, watched

    known = at_once(lambda trial: store.result(trial, early_stopping), trials)
    report_known(known, store, named, tracker, parent)
    if waiting := [(store.folder(result.trial), named(result.trial)) for result in known if result.unfinished]:
        on = session()
        watch = watched(waiting, tracker, parent, early_stopping, on.params.price_per_hour or 0)
        _train(waiting, known, early_stopping, store, on, watch)
    return at_once(lambda result: store.result(result.trial, early_stopping) if result.unfinished else result, known)


def _train(
    waiting: Sequence[tuple[TrialFolder, str]],
    known: Sequence[TrialResult],
    rule: EarlyStopping | None,
    store: TrialStore,
    on: Session,
    watch: AbstractContextManager[None],
) -> None:
    """Run trials through Ray Tune, inside `watch`.

    Args:
        waiting: the folders of those to train, and their names on the terminal.
        known: all trials of the search, also those that are finished.
    """
    from ray import tune
    from ray.tune.execution import class_cache

    # Ray writes what Tune sends with every trial into its logs, and every node has the keys of S3.
    class_cache.ENV_VARS_TO_PROPAGATE -= {name for name in class_cache.ENV_VARS_TO_PROPAGATE if name.startswith("AWS_")}
    # The caller reports a failed trial, in one line.
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
    folders = [folder for folder, _ in waiting]
    workers = counted(on.params.workers, "worker")
    log.info(f"{counted(len(waiting), 'trial')} of {workers} on {on.device}, {on.concurrent} at a time")
    search = secrets.token_hex(8)
    # Drivers of an earlier run may be ending just now.
    deadline = time.monotonic() + 5.0
    claimed = at_once(lambda folder: folder.claim(rule, max(0.0, deadline - time.monotonic())), folders)
    for (_, name), mine in zip(waiting, claimed, strict=True):
        if not mine:
            log.info(f"{name}: another run on {store.storage} is training it; waiting for its result")
    stopper = Stopper([(store.folder(one.trial), one.outcome) for one in known], rule, asha) if rule else None
    fixed = {
        "train_tokens": on.share(store.train_tokens),
        "dev_tokens": on.share(store.dev_tokens),
        "sums": [digest(store.train_tokens), digest(store.dev_tokens)],
        "backbone": backbone_files.share(folders[0].trial.model, on),
        "storage": store.remote or str(store.storage),
        "search": search,
        "cluster": on.params.model_dump(mode="json"),
        # By all trials, not the waiting ones: a run that goes on after a kill then ends with the same digits.
        "threads": on.params.threads(on.cores, min(on.concurrent, len(known))),
        "use_gpu": on.use_gpu,
        "in_driver": on.in_driver,
        "standing": standing(on.params),
        "versions": on.versions,
        "early_stopping": asdict(rule) if rule else None,
    }
    _restart_drivers(on.params)
    # The driver of a trial with workers only waits for them, so it takes no core from them.
    reserved = resources_of(on.params, on.use_gpu) if on.in_driver else {"memory": 64.0 * 2**20}
    # The number of trials at a time is the generator's.
    generator = tune.search.BasicVariantGenerator(max_concurrent=on.concurrent)
    with (
        # Ray's own state is never read back, so it is kept out of the storage and cannot fail with it.
        TemporaryDirectory(prefix="tune-", dir=private_folder()) as tune_folder,
        watch,
        Demand(on.params, on.use_gpu) as more,
    ):
        follow = [_as_many_as_fit(generator, on.params, on.use_gpu, len(waiting), more)] if standing(on.params) else None
        tuner = tune.Tuner(
            tune.with_resources(drive_trial, tune.PlacementGroupFactory([reserved])),
            param_space={**fixed, "trial": tune.grid_search([folder.trial.model_dump_json() for folder in folders])},
            tune_config=tune.TuneConfig(
                scheduler=_listener(stopper.scored) if stopper else None,
                search_alg=generator,
                trial_dirname_creator=lambda t: t.trial_id,
                # A driver process runs several trials, one after the other.
                reuse_actors=True,
            ),
            run_config=tune.RunConfig(
                name="grid",
                storage_path=tune_folder,
                verbose=0,
                callbacks=follow,
                # Restarts of the driver process, which restarts the workers.
                failure_config=tune.FailureConfig(max_failures=on.params.max_failures),
            ),
        )
        try:
            for result in tuner.fit():
                if result.error is not None and result.config:
                    if isinstance(why := user_error_in(result.error), RunError):
                        raise RunError(given_up(str(why), on.params))
                    folder = store.folder(Trial.model_validate_json(result.config["trial"]))
                    reason = reason_of(result.error, in_driver=on.in_driver)
                    folder.note_failure(given_up(reason, on.params))
        except KeyboardInterrupt:
            grace = on.params.grace_s
            log.warning(f"stopping: training runs write a checkpoint ({grace:g} s at most; Ctrl-C again leaves at once)")
            if left := pause(folders, search, grace):
                log.warning(f"{counted(left, 'trial')} had written none after {grace:g} s and will go on from an earlier one")
            raise
        except RunError as error:
            raise RunError(f"{error}; {KEPT}") from None


def _restart_drivers(params: ClusterParams) -> None:
    """Have Tune take each error of Ray as the end of a driver process, and start it again.

    By itself Tune knows `RayActorError`, and ends the search at others, such as `OutOfMemoryError`. After a lack of memory, this
    waits. A `RunError` ends the search.
    """
    from ray.exceptions import RayActorError, RayTaskError

    kind, holder = actor_manager()

    class Manager(kind):
        def _actor_start_failed(self, tracked_actor: Any, exception: Exception) -> None:
            super()._actor_start_failed(tracked_actor, exception)
            wait_for_memory(exception, params)

        def _actor_task_failed(self, tracked_actor_task: Any, exception: Exception) -> None:
            if isinstance(why := user_error_in(exception), RunError) and not isinstance(why, TransientStorageError):
                raise why
            known = isinstance(exception, RayActorError | RayTaskError)
            super()._actor_task_failed(tracked_actor_task, exception if known else RayActorError(error_msg=str(exception)))
            wait_for_memory(exception, params)

    holder.RayActorManager = Manager


def _as_many_as_fit(generator: Any, params: ClusterParams, use_gpu: bool, total: int, more: Demand) -> Any:
    """A Tune callback for a cluster that may change: it runs as many trials at a time as fit, and asks for room for the others.

    Tune pickles it, and a session cannot be pickled.

    Args:
        generator: gives Tune the trials, at most `max_concurrent` at a time.
        total: how many there are.
    """
    from ray import tune

    class AsManyAsFit(tune.Callback):
        next_look = 0.0

        def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
            if time.monotonic() < self.next_look:
                return
            self.next_look = time.monotonic() + 5.0
            try:
                places = worker_places(nodes(), params.reserved_cpus, use_gpu)
            except Exception:
                # Ray's head does not answer at the moment.
                return
            fit = max(1, places // params.workers)
            if fit != generator.max_concurrent:
                log.info(f"the cluster has room for {counted(places, 'worker')}: {counted(fit, 'trial')} at a time")
            generator.max_concurrent = fit
            more.ask((total - len(trials)) * params.workers)

    return AsManyAsFit()


def asha(rule: EarlyStopping) -> Any:
    """Ray Tune's scheduler for early stopping under this rule."""
    from ray.tune.schedulers import ASHAScheduler

    return ASHAScheduler(
        time_attr="scorings",
        metric="score",
        mode="max",
        grace_period=rule.grace_scorings,
        reduction_factor=rule.reduction_factor,
        # More rungs than any trial reaches.
        max_t=rule.grace_scorings * rule.reduction_factor**30,
    )


def _listener(scored: Callable[[str, dict[str, Any]], None]) -> Any:
    """A scheduler that stops no trial itself. It passes every scoring on, with the trial's digest."""
    from ray.tune.schedulers import FIFOScheduler

    class Listener(FIFOScheduler):
        def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
            if "score" in result:
                scored(result["digest"], {key: result[key] for key in SCORING})
            return FIFOScheduler.CONTINUE

    return Listener()


def warn_failures(results: Iterable[TrialResult], named: Callable[[Trial], str] = name_of) -> None:
    """Print one line on stderr for each failed trial."""
    for result in results:
        if result.failure:
            log.warning(f"trial {named(result.trial)} failed: {result.failure}")
