"""MLflow tracking: one parent run a pipeline run, one child a trial. The only importer of mlflow besides `registry`.

A parent is found by the tag `gausscse.digest`, the digest of data, backbone, code and result parameters, so that a stage joins
the same parent even if the stages before it came from DVC's cache. A child is found by its parent and the trial's digest.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, Run, RunTag
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient
from sqlalchemy.exc import SQLAlchemyError

from pipeline.errors import UserError
from pipeline.execution import TrackingParams
from pipeline.files import read_json
from pipeline.lineage import DataSet, data_sets
from pipeline.params import Params
from pipeline.project import PROFILE, data_digests, flat_params, git_commit, home, pipeline_digest
from pipeline.trial import Outcome, Trial
from pipeline.uris import uri_of_environment, without_password

DIGEST_TAG = "gausscse.digest"
TRIAL_TAG = "gausscse.trial"
PARENT_TAG = "mlflow.parentRunId"
CONTEXT_TAG = "mlflow.data.context"
_NAME_TAG = "mlflow.runName"
_FAILURE_TAG = "gausscse.failure"
_PROGRESS = ("loss", "learning_rate", "dev_pr_auc", "triplets_per_second")
# Metrics a call; MLflow takes a thousand.
_BATCH = 900
_NO_METRIC_NAME = re.compile(r"[^\w./ -]", re.ASCII)
# Passwords that MLflow's and other people's examples have, or had.
_KNOWN = ("password", "password1234", "admin", "mlflow", "changeme")
# MLflow's own patience with a server that does not answer is four minutes a call; this is about five seconds.
_IMPATIENT = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "20"}


def tracking_uri(params: TrackingParams, root: Path) -> str:
    """Where MLflow is: the environment's MLFLOW_TRACKING_URI, the parameter, or sqlite in the project's home (absolute)."""
    return uri_of_environment() or params.uri or f"sqlite:///{(home(root) / 'mlflow.db').resolve()}"


@dataclass(frozen=True, slots=True)
class Tracker:
    """Where runs are written; plain strings, so that it can travel to a worker."""

    uri: str
    experiment_id: str

    @property
    def client(self) -> MlflowClient:
        """A client of the tracking server."""
        return MlflowClient(tracking_uri=self.uri, registry_uri=self.uri)


def open_tracker(params: TrackingParams, root: Path) -> Tracker:
    """Find or create the experiment.

    Raises:
        UserError: the server cannot be reached or refuses.
    """
    uri = tracking_uri(params, root)
    if os.environ.get("MLFLOW_TRACKING_PASSWORD") in _KNOWN:
        raise UserError("MLFLOW_TRACKING_PASSWORD is one that everybody knows: change it on the server, then here")
    # Migrations of a fresh sqlite database are told line by line otherwise.
    logging.getLogger("alembic").setLevel(logging.WARNING)
    # It logs what it raises, with traceback and SQL; we tell it once, in `mlflow_errors`.
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
    # A wrong address should be told at once; later calls keep MLflow's patience with a server that restarts.
    with mlflow_errors(uri), impatient():
        client = MlflowClient(tracking_uri=uri, registry_uri=uri)
        found = client.get_experiment_by_name(params.experiment)
        if found is not None:
            if found.lifecycle_stage != "active":
                where = f"{params.experiment!r} at {without_password(uri)}"
                raise UserError(f"MLflow experiment {where} is deleted: restore or rename it")
            return Tracker(uri, found.experiment_id)
        # A server proxies artifacts; beside a bare database they need a folder that does not depend on where we stand.
        location = (home(root) / "mlartifacts").resolve().as_uri() if uri.startswith("sqlite:") else None
        return Tracker(uri, client.create_experiment(params.experiment, artifact_location=location))


@contextmanager
def mlflow_errors(uri: str) -> Iterator[None]:
    """Turn what MLflow raises into one line that names the server."""
    try:
        yield
    except (MlflowException, SQLAlchemyError, ImportError) as error:
        # A file that is no database and a missing database driver come unwrapped.
        # Of a database's own words SQLAlchemy makes one line of many: (sqlite3.OperationalError) database or disk is full
        driver = re.search(r"^\(\w+(?:\.\w+)+\) (.+)$", str(error), re.MULTILINE)
        message = driver[1] if driver else next(iter(str(error).strip().splitlines()), type(error).__name__)
        message = message.replace(_credentials(uri), "")
        if re.search(r"error code 40[13]\b|not authenticated|Permission denied", message):
            who = os.environ.get("MLFLOW_TRACKING_USERNAME")
            message = f"it refuses {f'user {who!r}' if who else 'callers without a name'}; " + (
                "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD to those of a user who may"
            )
        raise UserError(f"MLflow at {without_password(uri)}: {message}; check tracking.uri or MLFLOW_TRACKING_URI") from error


@contextmanager
def impatient() -> Iterator[None]:
    """Few and short HTTP retries, where the environment does not say how many."""
    ours = {key: value for key, value in _IMPATIENT.items() if key not in os.environ}
    os.environ.update(ours)
    try:
        yield
    finally:
        for key in ours:
            os.environ.pop(key, None)


def pipeline_run(tracker: Tracker, digest: str, params: Mapping[str, Any], tags: Mapping[str, str]) -> str:
    """Id of the parent run of a pipeline run, found by its digest or created; set to RUNNING."""
    with mlflow_errors(tracker.uri):
        client = tracker.client
        found = _find(tracker, f"tags.`{DIGEST_TAG}` = '{digest}' and tags.`gausscse.kind` = 'pipeline'")
        if found:
            run_id = found[0].info.run_id
            client.update_run(run_id, status="RUNNING")
        else:
            every = {DIGEST_TAG: digest, "gausscse.kind": "pipeline", _NAME_TAG: f"pipeline-{digest[:8]}", **tags}
            run_id = client.create_run(tracker.experiment_id, tags=every).info.run_id
        # Again where the run was found: a kill may have come between the two calls.
        _log_params(client, run_id, params)
        return run_id


def trial_run(tracker: Tracker, parent: str, trial: Trial, name: str | None = None) -> str:
    """Id of the child run of a trial, found or created; set to RUNNING. Its inputs are the parent's, test sets aside.

    Args:
        name: of the run, where it is created; the trial's own where none is given.
    """
    with mlflow_errors(tracker.uri):
        client = tracker.client
        found = _find(tracker, f"tags.`{PARENT_TAG}` = '{parent}' and tags.`{TRIAL_TAG}` = '{trial.digest}'")
        given = client.get_run(parent).inputs
        inputs = [one for one in (given.dataset_inputs if given else []) if _context(one) != "testing"]
        if found:
            run_id = found[0].info.run_id
            client.update_run(run_id, status="RUNNING")
        else:
            tags = {
                PARENT_TAG: parent,
                TRIAL_TAG: trial.digest,
                _NAME_TAG: name or trial.name,
                "gausscse.kind": "trial",
                "gausscse.train_tokens": trial.train_tokens,
                "gausscse.dev_tokens": trial.dev_tokens,
                "mlflow.source.git.commit": git_commit(Path.cwd()),
            }
            run_id = client.create_run(tracker.experiment_id, tags=tags).info.run_id
        _log_params(client, run_id, trial.parameters())
        client.log_inputs(run_id, inputs)
        return run_id


def log_data(tracker: Tracker, run_id: str, profile: Path) -> None:
    """Make the data sets of profile.json inputs of a run, and the file its artifact; what is there already is not repeated."""
    inputs = [_dataset_input(data_set) for data_set in data_sets(read_json(profile))]
    with mlflow_errors(tracker.uri):
        tracker.client.log_inputs(run_id, inputs)
        tracker.client.log_artifact(run_id, str(profile))


def log_progress(tracker: Tracker, run_id: str, history: list[dict[str, Any]]) -> None:
    """Log metrics over steps, given as dictionaries of `Progress`.

    May be repeated, by this process or another: a metric's time is that of the run's start and its step, and MLflow keeps one of
    several that agree in key, value, time and step.
    """
    if not history:
        return
    with mlflow_errors(tracker.uri):
        client = tracker.client
        began = int(client.get_run(run_id).info.start_time)
        # Whole entries: `logged_steps` takes a step that has one metric for one that has all.
        for start in range(0, len(history), _BATCH // len(_PROGRESS)):
            metrics = [
                Metric(key, float(entry[key]), began + int(entry["step"]), int(entry["step"]))
                for entry in history[start : start + _BATCH // len(_PROGRESS)]
                for key in _PROGRESS
                if entry.get(key) is not None
            ]
            client.log_batch(run_id, metrics=metrics)


def end_trial(tracker: Tracker, run_id: str, outcome: Outcome, *, how: str) -> None:
    """Finish a child: its summary, status FINISHED and the tag `gausscse.how` (trained here, or reused from where)."""
    summary = {
        "best_dev_pr_auc": outcome.best_dev_pr_auc,
        "best_step": outcome.best_step,
        "same_premise_pairs": outcome.same_premise_pairs,
    }
    with mlflow_errors(tracker.uri):
        client = tracker.client
        _log_changed(client, run_id, summary, outcome.total_steps)
        client.log_batch(run_id, tags=[RunTag("gausscse.how", how)])
        if _FAILURE_TAG in client.get_run(run_id).data.tags:
            client.delete_tag(run_id, _FAILURE_TAG)
        client.set_terminated(run_id, "FINISHED")


def fail_trial(tracker: Tracker, run_id: str, reason: str) -> None:
    """End a child as FAILED, the reason in the tag `gausscse.failure` (gone again if it is trained in the end)."""
    tag(tracker, run_id, {_FAILURE_TAG: reason[:5000]})
    with mlflow_errors(tracker.uri):
        tracker.client.set_terminated(run_id, "FAILED")


def stop_trial(tracker: Tracker, run_id: str, reason: str) -> None:
    """End a child that was stopped early as KILLED, the reason in the tag `gausscse.how`: FINISHED would say there is a model."""
    tag(tracker, run_id, {"gausscse.how": reason})
    with mlflow_errors(tracker.uri):
        tracker.client.set_terminated(run_id, "KILLED")


def ensure_trial(tracker: Tracker, parent: str, trial: Trial, outcome: Outcome, name: str | None = None, how: str = "") -> str:
    """The finished child run of a trial that was trained earlier; logged from its history if the parent lacks one.

    Args:
        how: how it was trained then, if known.
    """
    with mlflow_errors(tracker.uri):
        found = _find(tracker, f"tags.`{PARENT_TAG}` = '{parent}' and tags.`{TRIAL_TAG}` = '{trial.digest}'")
    if found and found[0].info.status == "FINISHED":
        return found[0].info.run_id
    run_id = trial_run(tracker, parent, trial, name)
    logged = logged_steps(tracker, run_id)
    log_progress(tracker, run_id, [entry for entry in outcome.history if entry["step"] not in logged])
    end_trial(tracker, run_id, outcome, how=f"reused: {how}" if how else "reused")
    return run_id


def logged_steps(tracker: Tracker, run_id: str) -> set[int]:
    """Steps a run has metrics of: one that was killed has logged its first part already."""
    with mlflow_errors(tracker.uri):
        return {metric.step for metric in tracker.client.get_metric_history(run_id, "learning_rate")}


def tag(tracker: Tracker, run_id: str, tags: Mapping[str, str]) -> None:
    """Set tags of a run."""
    with mlflow_errors(tracker.uri):
        tracker.client.log_batch(run_id, tags=[RunTag(k, v) for k, v in tags.items()])


def log_metrics(tracker: Tracker, run_id: str, metrics: Mapping[str, float]) -> None:
    """Log a flat dictionary of final metrics; what MLflow allows in no name (the + of an objective's) becomes `_`."""
    with mlflow_errors(tracker.uri):
        _log_changed(tracker.client, run_id, {_NO_METRIC_NAME.sub("_", key): value for key, value in metrics.items()}, 0)


def log_files(tracker: Tracker, run_id: str, paths: Iterable[Path]) -> None:
    """Make files and folders, given relative to the project's root, artifacts of a run under the very same paths."""
    with mlflow_errors(tracker.uri):
        client = tracker.client
        for path in paths:
            if path.is_dir():
                client.log_artifacts(run_id, str(path), artifact_path=path.as_posix())
            else:
                # The root itself has no name among artifacts.
                client.log_artifact(run_id, str(path), artifact_path=path.parent.as_posix().removeprefix(".") or None)


def end_unfinished(tracker: Tracker, parent: str, status: str) -> int:
    """End every child of the parent that is still RUNNING; returns how many there were.

    Called when a stage fails, and again when one starts, for those that a killed process left behind.
    """
    with mlflow_errors(tracker.uri):
        left = _find(tracker, f"tags.`{PARENT_TAG}` = '{parent}' and attributes.status = 'RUNNING'")
        for run in left:
            tracker.client.set_terminated(run.info.run_id, status)
        return len(left)


@contextmanager
def stage_of(tracker: Tracker, parent: str) -> Iterator[None]:
    """A stage's work under the parent run: whatever way it ends, neither child nor parent stays RUNNING."""
    end_unfinished(tracker, parent, "KILLED")
    try:
        yield
    except BaseException as error:
        status = "FAILED" if isinstance(error, Exception) else "KILLED"
        # Why the stage ended matters more than a server that cannot be told; the next stage ends what is left.
        with suppress(UserError), impatient():
            end_unfinished(tracker, parent, status)
            with mlflow_errors(tracker.uri):
                tracker.client.set_terminated(parent, status)
        raise
    end_unfinished(tracker, parent, "FAILED")
    with mlflow_errors(tracker.uri):
        tracker.client.set_terminated(parent, "FINISHED")


def enter_pipeline(params: Params, tracking: TrackingParams, root: Path) -> tuple[Tracker, str]:
    """The tracker and the id of the parent run that the project's data and parameters belong to."""
    tracker = open_tracker(tracking, root)
    tags = {
        "mlflow.source.name": "dvc repro",
        "mlflow.source.git.commit": git_commit(root),
        **{f"gausscse.{store}_tokens": digest for store, digest in data_digests().items()},
    }
    parent = pipeline_run(tracker, pipeline_digest(params), flat_params(params), tags)
    if (root / PROFILE).is_file():
        try:
            log_data(tracker, parent, root / PROFILE)
        except BaseException:
            # `stage_of` has not begun: nobody else would end the run.
            with suppress(UserError), impatient(), mlflow_errors(tracker.uri):
                tracker.client.set_terminated(parent, "FAILED")
            raise
    else:
        # What stage prepare wrote may be in DVC's cache alone: the token stores are enough to train.
        print(f"note: {PROFILE} is not here, so MLflow is not told of the data sets; dvc checkout prepare", file=sys.stderr)
    return tracker, parent


def _find(tracker: Tracker, where: str) -> list[Run]:
    return list(tracker.client.search_runs([tracker.experiment_id], filter_string=where, max_results=1000))


def _log_params(client: MlflowClient, run_id: str, params: Mapping[str, Any]) -> None:
    client.log_batch(run_id, params=[Param(key, str(value)[:6000]) for key, value in params.items()])


def _log_changed(client: MlflowClient, run_id: str, metrics: Mapping[str, float], step: int) -> None:
    """Log final numbers that the run does not show already: a stage that is repeated adds no points."""
    shown, now = client.get_run(run_id).data.metrics, int(time.time() * 1000)
    changed = [Metric(key, float(value), now, step) for key, value in metrics.items() if shown.get(key) != float(value)]
    for start in range(0, len(changed), _BATCH):
        client.log_batch(run_id, metrics=changed[start : start + _BATCH])


def _dataset_input(of: DataSet) -> DatasetInput:
    # "local" is MLflow's name for a source that is a path.
    dataset = Dataset(of.name, of.digest, "local", of.source, of.schema, of.profile)
    return DatasetInput(dataset, [InputTag(CONTEXT_TAG, of.context)])


def _context(given: DatasetInput) -> str | None:
    return next((tag.value for tag in given.tags if tag.key == CONTEXT_TAG), None)


def _credentials(uri: str) -> str:
    """user:password@ of a URI, as it stands there."""
    return "".join(uri.partition("://")[2].rpartition("@")[:2])
