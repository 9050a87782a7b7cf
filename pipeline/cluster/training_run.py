"""A trial's driver: it watches the trial's workers and reports their scorings to Ray Tune."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

from pipeline.cluster.worker import storage_of_trial
from pipeline.trials.store import folder_of
from pipeline.trials.trial import EarlyStopping, Trial

if TYPE_CHECKING:
    from pipeline.trials.trial_folder import TrialFolder

SCORING = ("step", "total_steps", "score", "best_score")
"""Keys of a progress record that are reported to Tune."""
# Seconds between two checks for new scorings of a trial.
_POLL = 0.2


def drive_trial(config: dict[str, Any]) -> None:
    """Body of one Tune trial: a training run with `cluster.workers` workers, unless another pipeline has finished the trial.

    Raises:
        TransientStorageError: this process could not reach the storage; Tune restarts it.
        RunError: the trial is not to blame. The search ends.
    """
    from ray import tune

    trial = Trial.model_validate_json(config["trial"])
    rule = EarlyStopping(**config["early_stopping"]) if config["early_stopping"] else None
    with storage_of_trial(config) as (storage, remote):
        _drive(config, folder_of(trial, storage, remote), rule)
    tune.report({"digest": trial.digest})


def _drive(config: dict[str, Any], folder: TrialFolder, rule: EarlyStopping | None) -> None:
    from ray import tune

    if config["keeps_worker"]:
        from pipeline.cluster.kept_worker import fit
    else:
        from pipeline.cluster.worker_group import fit

    folder.refresh()
    with folder.driven(config["search"]):
        if folder.settled(rule):
            return
        folder.forget_stop()
        with ThreadPoolExecutor(1) as pool:
            reason = pool.submit(fit, config, folder.for_another_thread())
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
