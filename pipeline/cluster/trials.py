"""Trials through Ray Tune: those that the ledger does not hold, as many at a time as there is room for."""

from __future__ import annotations

import logging
import secrets
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from pipeline import ledger
from pipeline.cluster.run import ENDED, SCORING, drive_trial, given_up
from pipeline.cluster.session import Session
from pipeline.data.tokens import read_triplets
from pipeline.errors import RunError
from pipeline.files import write_json
from pipeline.identity import other_versions
from pipeline.mirror import Mirror
from pipeline.mixed_precision import bf16_here
from pipeline.places import Places
from pipeline.reasons import reason_of, user_error_in
from pipeline.storage import private_folder
from pipeline.trial import FAILURE, EarlyStopping, Outcome, Stop, Trial, failure, finished, name_of, stopped, timing, unusable

if TYPE_CHECKING:
    from pipeline.grid import Result
    from pipeline.stopping import Stopper
    from pipeline.tracking import Tracker

# A trial's driver only waits for its workers; this reservation is what places it without taking a core from them.
_DRIVER_MEMORY = 64 * 2**20
# Seconds to wait for trials whose drivers may just be dying.
_DRIVER_PATIENCE = 5.0
# More rungs than any trial reaches.
_RUNGS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """What became of a trial: an outcome, the reason it failed, or the reason it was stopped early."""

    trial: Trial
    outcome: Outcome | None
    failure: str | None
    reused: bool
    stopped: str | None = None


def run_trials(
    trials: list[Trial],
    places: Places,
    session: Callable[[], Session],
    tracker: Tracker,
    parent: str,
    early_stopping: EarlyStopping | None = None,
    named: Callable[[Trial], str] = name_of,
) -> list[TrialResult]:
    """Run the trials that the ledger does not hold, as many at once as the cluster has room for.

    The session is asked for only if there are such trials.

    A trial that fails is reported with its reason; the others go on. A worker, or a process that drives a trial, that dies or
    raises is started again `cluster.max_failures` times. A `UserError` is not: a loss that is not finite, a store that is
    damaged meet the same seed again with the same numbers.

    With early stopping, a trial that falls behind those it competes with ends before its end; it is not run again under the same
    rule, and goes on from its latest checkpoint under another or none. Trials compete when they differ in nothing but learning
    rate and batch size.

    Args:
        named: what a trial is called on the terminal and in MLflow.

    Raises:
        RunError: the storage refuses, or did so at every attempt at a trial, or a worker has other code or another backbone. This
            says nothing about that trial, which is as unfinished as before.
    """
    from pipeline import tracking
    from pipeline.watch import tell_stopped

    places.look(trials)
    reused = {t.digest: o for t in trials if (o := finished(places.folder(t), t)) is not None}
    given_up = {t.digest: s for t in trials if t.digest not in reused and (s := stopped(places.folder(t), early_stopping))}
    for trial in trials:
        if trial.digest in reused:
            print(f"{named(trial)}: reused, trained before (best PR-AUC {reused[trial.digest].best_dev_pr_auc:.2f})")
            how = str(timing(places.folder(trial)))
            tracking.ensure_trial(tracker, parent, trial, reused[trial.digest], named(trial), how)
        elif trial.digest in given_up:
            print(f"{named(trial)}: {given_up[trial.digest].reason}, in an earlier run")
            tell_stopped(tracker, parent, trial, named(trial), places.folder(trial), given_up[trial.digest])
        elif (why := unusable(places.folder(trial), trial)) is not None:
            print(f"warning: {named(trial)} is trained again, its result cannot be used: {why}", file=sys.stderr)
    tell_reuse([t for t in trials if t.digest in reused], places)
    waiting = [t for t in trials if t.digest not in reused and t.digest not in given_up]
    if waiting:
        on = session()
        print(f"{len(waiting)} trials of {on.params.workers} workers on {on.device}, {on.concurrent} at a time", flush=True)
        tell_left_out(waiting, places)
        given_up |= _run_tuner(trials, waiting, places, on, tracker, parent, early_stopping, named)
        tell_precision(waiting, places)
    results: list[TrialResult] = []
    places.look(waiting)
    for trial in trials:
        outcome = reused.get(trial.digest) or finished(places.folder(trial), trial)
        told = failure(places.folder(trial))
        stop = None if outcome or told else given_up.get(trial.digest) or stopped(places.folder(trial), early_stopping)
        why = None if outcome or stop else told or "did not finish"
        results.append(
            TrialResult(
                trial=trial, outcome=outcome, failure=why, reused=trial.digest in reused, stopped=stop.reason if stop else None
            )
        )
    return results


def tell_reuse(trials: list[Trial], places: Places) -> None:
    """Say in one line each if reused trials were trained with other versions, or in another precision."""
    took = [timing(places.folder(trial)) for trial in trials]
    if others := other_versions(one.versions for one in took):
        print(f"warning: trials that are reused were trained with {others}", file=sys.stderr)
    asked = [one.precision for trial, one in zip(trials, took, strict=True) if trial.train.precision == "bf16" and one.precision]
    here = "bf16" if asked and bf16_here() else "fp32"
    if count := sum(precision != here for precision in asked):
        there = "fp32" if here == "bf16" else "bf16"
        print(
            f"warning: {count} of {len(trials)} trials that are reused were trained in {there}; this machine would use {here}",
            file=sys.stderr,
        )


def tell_left_out(trials: Sequence[Trial], places: Places) -> None:
    """Say in one line how many triplets train.triplets leaves out, if any, and what to set."""
    if all(trial.train.triplets == "all" for trial in trials):
        return
    contradiction = read_triplets(places.train_tokens)[:, 2]
    used = int((contradiction >= 0).sum())
    if used < len(contradiction):
        print(
            f"training on {used:,} of {len(contradiction):,} triplets, those with a contradiction of their premise; set "
            "train.triplets: all (params.yaml) to train on all",
            flush=True,
        )


def tell_precision(trained: list[Trial], places: Places) -> None:
    """Say in one line if trials were not trained in the precision that they ask for."""
    asked = [t for t in trained if t.train.precision == "bf16" and finished(places.folder(t), t) is not None]
    if count := sum("fp32" in (timing(places.folder(t)).precision or "") for t in asked):
        print(
            f"warning: {count} of {len(asked)} trials with train.precision: bf16 were trained in float32: a worker's processor "
            "has no bf16 instructions, and without them it would take many times as long",
            file=sys.stderr,
        )


def _run_tuner(
    trials: list[Trial],
    waiting: list[Trial],
    places: Places,
    on: Session,
    tracker: Tracker,
    parent: str,
    rule: EarlyStopping | None,
    named: Callable[[Trial], str],
) -> dict[str, Stop]:
    """Run the waiting ones of the trials through Ray Tune; returns those that were stopped, by digest."""
    from ray import tune

    from pipeline.watch import watched

    # A trial that failed is told once, in one line, by whoever asked for it.
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
    search = secrets.token_hex(8)
    deadline = time.monotonic() + _DRIVER_PATIENCE
    for trial in waiting:
        if not ledger.claim(places.mirror(trial), rule, max(0.0, deadline - time.monotonic())):
            print(f"{named(trial)}: another run on {places.storage} is training it; waiting for its result", flush=True)
    scheduler, stopper = scheduler_of(trials, places, rule) if rule else (None, None)
    fixed = {
        "train_tokens": on.share(places.train_tokens),
        "dev_tokens": on.share(places.dev_tokens),
        "storage": places.remote or str(places.storage),
        "search": search,
        "cluster": on.params.model_dump(mode="json"),
        "use_gpu": on.use_gpu,
        "early_stopping": asdict(rule) if rule else None,
    }
    ends: Any = _run_ends()
    mirrors = [places.mirror(trial) for trial in waiting]
    with (
        # Ray's own state is never read back: it need not be in the storage, and must not fail with it.
        TemporaryDirectory(prefix="tune-", dir=private_folder()) as own,
        watched([(t, named(t), mirror) for t, mirror in zip(waiting, mirrors, strict=True)], tracker, parent, rule),
    ):
        tuner = tune.Tuner(
            tune.with_resources(drive_trial, {"memory": _DRIVER_MEMORY}),
            param_space={**fixed, "trial": tune.grid_search([t.model_dump_json() for t in waiting])},
            tune_config=tune.TuneConfig(
                scheduler=scheduler,
                max_concurrent_trials=on.concurrent,
                trial_dirname_creator=lambda t: t.trial_id,
                # One driver process runs one trial after the other.
                reuse_actors=True,
            ),
            run_config=tune.RunConfig(
                name="grid",
                storage_path=own,
                verbose=0,
                stop=ends,
                # For the process that drives a trial; Ray Train restarts the workers.
                failure_config=tune.FailureConfig(max_failures=on.params.max_failures),
            ),
        )
        try:
            for result in tuner.fit():
                if result.error is not None and result.config:
                    mirror = places.mirror(Trial.model_validate_json(result.config["trial"]))
                    if isinstance(why := user_error_in(result.error), RunError):
                        ends.reason = ends.reason or given_up(str(why), on.params)
                        continue
                    mirror.pull(FAILURE)
                    if failure(mirror.folder) is None:
                        reason = given_up(reason_of(result.error, mirror.folder), on.params)
                        write_json(mirror.folder / FAILURE, {"reason": reason})
                        mirror.push(FAILURE)
        except KeyboardInterrupt:
            _pause(mirrors, search, on.params.grace_s)
            raise
        if ends.reason:
            raise RunError(f"{ends.reason}; what is finished is kept, the next run goes on with the rest")
    return stopper.stopped if stopper else {}


def _run_ends() -> Any:
    """A stopper of Tune's that ends a search when a trial says that a `RunError` ended it; `reason` is what it said."""
    from ray import tune

    class Ends(tune.Stopper):
        reason = ""

        def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
            self.reason = self.reason or result.get(ENDED, "")
            return False

        def stop_all(self) -> bool:
            return bool(self.reason)

    return Ends()


def _pause(mirrors: Sequence[Mirror], search: str, grace: float) -> None:
    """Have the trials that are being trained write a checkpoint, for as long as the grace period allows."""
    print(f"stopping: training runs write a checkpoint ({grace:g} s at most; Ctrl-C again leaves at once)", file=sys.stderr)
    if left := ledger.pause(mirrors, search, grace):
        print(f"warning: {left} trials had written none after {grace:g} s and will go on from an earlier one", file=sys.stderr)


def scheduler_of(trials: list[Trial], places: Places, rule: EarlyStopping) -> tuple[Any, Stopper]:
    """A scheduler that hears of every scoring and stops nothing itself, and the one it tells (see `pipeline.stopping`)."""
    from ray.tune.schedulers import ASHAScheduler, FIFOScheduler

    from pipeline.stopping import Stopper

    stopper = Stopper(
        trials,
        places,
        rule,
        lambda rule: ASHAScheduler(
            time_attr="scorings",
            metric="dev_pr_auc",
            mode="max",
            grace_period=rule.grace_scorings,
            reduction_factor=rule.reduction_factor,
            max_t=rule.grace_scorings * rule.reduction_factor**_RUNGS,
        ),
    )

    class Listener(FIFOScheduler):
        def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
            if "dev_pr_auc" in result:
                stopper.scored(result["digest"], {key: result[key] for key in SCORING})
            return FIFOScheduler.CONTINUE

    return Listener(), stopper


def warn_failures(results: Iterable[Result], named: Callable[[Trial], str] = name_of) -> None:
    """One line on stderr for each trial without an outcome."""
    for result in results:
        if result.failure:
            print(f"warning: trial {named(result.trial)} failed: {result.failure}", file=sys.stderr)
