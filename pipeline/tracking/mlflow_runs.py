"""MLflow runs: one parent per pipeline run, one child per trial.

A parent is found by the tag `gausscse.digest`, the digest of data, backbone, code and result parameters. So a stage joins the
same parent even if earlier stages came from DVC's cache. A child is found by its parent and the trial's digest.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, Run, RunTag
from mlflow.environment_variables import MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING
from mlflow.tracking import MlflowClient

from pipeline.config.execution import TrackingParams
from pipeline.config.job_inputs import git_commit
from pipeline.config.params import Params, flat_params
from pipeline.config.paths import PROFILE
from pipeline.identity.pipeline_run import data_digests, pipeline_digest
from pipeline.tracking.datasets import data_sets
from pipeline.tracking.server import Tracker, every, impatient, open_tracker
from pipeline.trials.trial import Outcome, Trial
from pipeline.trials.variants import metric_name
from pipeline.utils.atomic_io import read_json
from pipeline.utils.errors import UserError
from pipeline.utils.logs import log

DIGEST_TAG = "gausscse.digest"
TRIAL_TAG = "gausscse.trial"
PARENT_TAG = "mlflow.parentRunId"
_NAME_TAG = "mlflow.runName"
_FAILURE_TAG = "gausscse.failure"
_HOW_TAG = "gausscse.how"
# The last one marks a step as logged.
_PROGRESS = ("loss", "score", "rows_per_second", "tflops", "mfu", "peak_memory_mb", "gathered_mb", "learning_rate")
# Metrics per call; MLflow's limit is a thousand.
_BATCH = 900


def pipeline_run(tracker: Tracker, digest: str, params: Mapping[str, Any], tags: Mapping[str, str]) -> str:
    """The id of a pipeline run's parent run, found by its digest or created; its status is set to RUNNING."""
    with tracker.calls():
        where = {DIGEST_TAG: digest, "gausscse.kind": "pipeline"}
        return _begun(tracker, where, {_NAME_TAG: f"pipeline-{digest[:8]}", **tags}, params)


def trial_run(tracker: Tracker, parent: str, trial: Trial, name: str | None = None) -> str:
    """The id of a trial's child run, found or created; its status is set to RUNNING. Its inputs: the parent's without test sets.

    Args:
        name: name of a newly created run; None uses the trial's name.
    """
    tags = {
        _NAME_TAG: name or trial.name,
        "gausscse.kind": "trial",
        "gausscse.train_tokens": trial.train_tokens,
        "gausscse.dev_tokens": trial.dev_tokens,
        "mlflow.source.git.commit": git_commit(Path.cwd()),
    }
    with tracker.calls() as client:
        run_id = _begun(tracker, {PARENT_TAG: parent, TRIAL_TAG: trial.digest}, tags, trial.parameters())
        given = client.get_run(parent).inputs
        sets = given.dataset_inputs if given else []
        client.log_inputs(run_id, [one for one in sets if all(tag.value != "testing" for tag in one.tags)])
        return run_id


def log_data(tracker: Tracker, run_id: str, profile: Path) -> None:
    """Log the data sets of profile.json as inputs of a run, and the file as an artifact. Existing entries are not repeated."""
    # MLflow's source type for a path is "local".
    inputs = [
        DatasetInput(
            Dataset(one.name, one.digest, "local", one.source, one.schema, json.dumps({"num_rows": one.rows})),
            [InputTag("mlflow.data.context", one.context)],
        )
        for one in data_sets(read_json(profile))
    ]
    with tracker.calls() as client:
        client.log_inputs(run_id, inputs)
        client.log_artifact(run_id, str(profile))


def log_progress(
    tracker: Tracker, run_id: str, history: Sequence[dict[str, Any]], score_name: str, logged: set[int] | None = None
) -> set[int]:
    """Log metrics over steps, given as dictionaries of `Progress`; the score is logged under its name.

    Steps that the run has, for example from before a kill, are left out. Should another process log the same steps just now: a
    metric's time is the run's start time plus its step number, and MLflow keeps only one of several metrics with the same key,
    value, time and step.

    Args:
        logged: the steps that the run has, if that is known; otherwise they are asked for.

    Returns:
        the steps that the run has now.
    """
    if not history:
        return logged or set()
    with tracker.calls() as client:
        began = int(client.get_run(run_id).info.start_time)
        if logged is None:
            logged = {metric.step for metric in client.get_metric_history(run_id, "learning_rate")}
        system = MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING.get() or not MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING.is_set()
        metrics: list[Metric] = []
        for entry in history:
            step = int(entry["step"])
            if step not in logged:
                values = {f"system/{key}": value for key, value in (entry.get("system") or {}).items() if system}
                values |= {score_name if key == "score" else key: entry[key] for key in _PROGRESS if entry.get(key) is not None}
                metrics += [Metric(key, float(value), began + step, step) for key, value in values.items()]
        _log(client, run_id, metrics)
    return logged | {int(entry["step"]) for entry in history}


def end_trial(tracker: Tracker, run_id: str, outcome: Outcome, *, how: str) -> None:
    """Finish a child run: log its summary, status FINISHED and the tag `gausscse.how` (trained here, or reused from where)."""
    summary = {
        f"best_{outcome.score_name}": outcome.best_score,
        "best_step": outcome.best_step,
        "same_source_pairs": outcome.same_source_pairs,
    }
    with tracker.calls() as client:
        _log_changed(client, run_id, summary, outcome.total_steps)
        if _FAILURE_TAG in client.get_run(run_id).data.tags:
            client.delete_tag(run_id, _FAILURE_TAG)
    _end(tracker, run_id, "FINISHED", {_HOW_TAG: how})


def fail_trial(tracker: Tracker, run_id: str, reason: str) -> None:
    """End a child run as FAILED, with the reason in the tag `gausscse.failure` (removed if the trial finishes later)."""
    _end(tracker, run_id, "FAILED", {_FAILURE_TAG: reason[:5000]})


def stop_trial(tracker: Tracker, run_id: str, reason: str) -> None:
    """End an early-stopped child run as KILLED, with the reason in the tag `gausscse.how`. FINISHED would imply a model."""
    _end(tracker, run_id, "KILLED", {_HOW_TAG: reason})


def finished_trials(tracker: Tracker, parent: str) -> set[str]:
    """Digests of the trials that have a finished child run, in one search."""
    with tracker.calls():
        runs = _find(tracker, {PARENT_TAG: parent, "gausscse.kind": "trial"}, " and attributes.status = 'FINISHED'")
    return {run.data.tags[TRIAL_TAG] for run in runs}


def ensure_trial(tracker: Tracker, parent: str, trial: Trial, outcome: Outcome, name: str | None = None, how: str = "") -> str:
    """The finished child run of a trial that was trained earlier; if the parent has none, it is logged from the history.

    Args:
        how: how it was trained, if known.
    """
    with tracker.calls():
        runs = _find(tracker, {PARENT_TAG: parent, TRIAL_TAG: trial.digest})
    if runs and runs[0].info.status == "FINISHED":
        return runs[0].info.run_id
    run_id = trial_run(tracker, parent, trial, name)
    log_progress(tracker, run_id, outcome.history, outcome.score_name)
    end_trial(tracker, run_id, outcome, how=f"reused: {how}" if how else "reused")
    return run_id


def tag(tracker: Tracker, run_id: str, tags: Mapping[str, str]) -> None:
    """Set tags of a run."""
    with tracker.calls() as client:
        client.log_batch(run_id, tags=[RunTag(k, v) for k, v in tags.items()])


def tags_of(tracker: Tracker, run_id: str) -> dict[str, str]:
    """The tags of a run."""
    with tracker.calls() as client:
        return dict(client.get_run(run_id).data.tags)


def log_metrics(tracker: Tracker, run_id: str, metrics: Mapping[str, float]) -> None:
    """Log a flat dictionary of final metrics. Characters that MLflow does not allow in names (+ in an objective's) become `_`."""
    with tracker.calls() as client:
        _log_changed(client, run_id, {metric_name(key): value for key, value in metrics.items()}, 0)


def add_price(tracker: Tracker, run_id: str, machine_hours: float, price: float) -> None:
    """Add to the metrics `machine_hours` and `price` of a run."""
    with tracker.calls() as client:
        before = client.get_run(run_id).data.metrics
        spent = {"machine_hours": machine_hours, "price": price}
        _log_changed(client, run_id, {key: before.get(key, 0.0) + value for key, value in spent.items()}, 0)


def log_files(tracker: Tracker, run_id: str, paths: Iterable[Path]) -> None:
    """Log files and folders, given relative to the project root, as artifacts of a run under the same paths."""
    with tracker.calls() as client:
        for path in paths:
            if path.is_dir():
                client.log_artifacts(run_id, str(path), artifact_path=path.as_posix())
            else:
                # For a file in the project root, the artifact path is empty.
                client.log_artifact(run_id, str(path), artifact_path=path.parent.as_posix().removeprefix(".") or None)


def end_unfinished(tracker: Tracker, parent: str, status: str) -> None:
    """End every child of the parent that is still RUNNING.

    Called when a stage fails, and when a stage starts, for runs that a killed process left.
    """
    with tracker.calls() as client:
        for run in _find(tracker, {PARENT_TAG: parent}, " and attributes.status = 'RUNNING'"):
            client.set_terminated(run.info.run_id, status)


@contextmanager
def stage_of(tracker: Tracker, parent: str) -> Iterator[None]:
    """Run a stage's work under the parent run; however it ends, neither the parent nor a child stays RUNNING."""
    end_unfinished(tracker, parent, "KILLED")
    try:
        yield
    except BaseException as error:
        status = "FAILED" if isinstance(error, Exception) else "KILLED"
        # The stage's error matters more than an unreachable server; the next stage ends the remaining runs.
        with suppress(UserError), impatient():
            end_unfinished(tracker, parent, status)
            _end(tracker, parent, status)
        raise
    end_unfinished(tracker, parent, "FAILED")
    _end(tracker, parent, "FINISHED")


def enter_pipeline(params: Params, tracking: TrackingParams, root: Path) -> tuple[Tracker, str]:
    """Open the tracker and the parent run for the project's data and parameters; returns the tracker and the run's id."""
    tracker = open_tracker(tracking, root)
    tags = {
        "mlflow.source.name": "dvc repro",
        "mlflow.source.git.commit": git_commit(root),
        **{f"gausscse.{store}_tokens": digest for store, digest in data_digests().items()},
    }
    parent = pipeline_run(tracker, pipeline_digest(params), flat_params(params), tags)
    if (root / PROFILE).is_file():
        log_data(tracker, parent, root / PROFILE)
    else:
        # The output of stage prepare may be only in DVC's cache; training needs only the token stores.
        log.warning(f"{PROFILE} is missing, so MLflow does not record the data sets; `dvc checkout prepare` fetches it")
    return tracker, parent


def _begun(tracker: Tracker, where: Mapping[str, str], tags: Mapping[str, str], params: Mapping[str, Any]) -> str:
    """The id of the run that has the tags in `where`, found or created, RUNNING and with its parameters."""
    client, runs = tracker.client, _find(tracker, where)
    if runs:
        run_id = runs[0].info.run_id
        client.update_run(run_id, status="RUNNING")
    else:
        run_id = client.create_run(tracker.experiment_id, tags={**where, **tags}).info.run_id
    # Also for an existing run: a kill may have come between the two calls. But MLflow refuses to change a value, such as another
    # folder with the same data.
    there = runs[0].data.params if runs else {}
    client.log_batch(run_id, params=[Param(key, str(value)[:6000]) for key, value in params.items() if key not in there])
    return run_id


def _end(tracker: Tracker, run_id: str, status: str, tags: Mapping[str, str] | None = None) -> None:
    tag(tracker, run_id, tags or {})
    with tracker.calls() as client:
        client.set_terminated(run_id, status)


def _find(tracker: Tracker, tags: Mapping[str, str], more: str = "") -> list[Run]:
    where = " and ".join(f"tags.`{key}` = '{value}'" for key, value in tags.items()) + more
    client, of = tracker.client, [tracker.experiment_id]
    return [*every(lambda token: client.search_runs(of, where, max_results=1000, page_token=token))]


def _log_changed(client: MlflowClient, run_id: str, metrics: Mapping[str, float], step: int) -> None:
    """Log final numbers unless the run already has the same values, so that a repeated stage adds no points."""
    shown, now = client.get_run(run_id).data.metrics, int(time.time() * 1000)
    changed = {key: float(value) for key, value in metrics.items() if shown.get(key) != float(value)}
    _log(client, run_id, [Metric(key, value, now, step) for key, value in changed.items()])


def _log(client: MlflowClient, run_id: str, metrics: Sequence[Metric]) -> None:
    for start in range(0, len(metrics), _BATCH):
        client.log_batch(run_id, metrics=metrics[start : start + _BATCH])
