"""What trials write while they run reaches a real MLflow once, whatever becomes of it meanwhile."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.storage.object_store import Storage
from pipeline.storage.sync import Mirror
from pipeline.tracking import forwarder, mlflow_runs
from pipeline.tracking.forwarder import _Meter, _Watch, _worth_a_look, report_known, watched
from pipeline.tracking.server import Tracker
from pipeline.trials.progress_log import RECORDS, ProgressLog
from pipeline.trials.store import TrialStore
from pipeline.trials.trial import FAILURE, OUTCOME, EarlyStopping
from pipeline.trials.trial_folder import TrialFolder
from pipeline.utils.atomic_io import write_json
from pipeline.utils.errors import UserError
from tests.folders import folder_of
from tests.tracking.runs import TIMING, child, finish, points, progress, trial
from tests.trial_of import folder_at


def test_watched_progress_is_logged_once_at_its_steps(
    tracker: Tracker, parent: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = ProgressLog("t", tmp_path)
    with watched([(folder_at(trial(), tmp_path), "t")], tracker, parent):
        for each in (progress(10), progress(20, 0.7)):
            log(each)
        log.note("latest/ is damaged")
        for each in (progress(20, 0.7), progress(30, 0.8)):
            log(each)
        finish(tmp_path, trial())
    run = child(tracker, parent)
    assert points(tracker, run.info.run_id, "loss") == [(10, 0.1), (20, 0.05), (30, 1 / 30)]
    assert points(tracker, run.info.run_id, "dev_pr_auc") == [(20, 0.7), (30, 0.8)]
    assert points(tracker, run.info.run_id, "best_dev_pr_auc") == [(30, 0.8)]
    assert (run.info.status, run.data.tags["gausscse.how"]) == ("FINISHED", str(TIMING))
    printed = capsys.readouterr()
    assert printed.out.count("step 20/30") == 1
    assert printed.err == "warning: t: latest/ is damaged\n"


def test_a_watched_trial_that_fails_says_why(tracker: Tracker, parent: str, tmp_path: Path) -> None:
    with watched([(folder_at(trial(), tmp_path), "t")], tracker, parent):
        ProgressLog("t", tmp_path)(progress(10))
        write_json(tmp_path / FAILURE, {"reason": "the loss is nan"})
    run = child(tracker, parent)
    assert (run.info.status, run.data.tags["gausscse.failure"]) == ("FAILED", "the loss is nan")


def test_metrics_survive_a_server_that_is_away(
    tracker: Tracker, parent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    away = Tracker("http://127.0.0.1:9", tracker.experiment_id)
    with (
        pytest.raises(UserError, match=r"MLflow at http://127\.0\.0\.1:9"),
        watched([(folder_at(trial(), tmp_path), "t")], away, parent),
    ):
        ProgressLog("t", tmp_path)(progress(10))
        ProgressLog("t", tmp_path)(progress(20, 0.7))
    # The next attempt finds the records where the first left them.
    with watched([(folder_at(trial(), tmp_path), "t")], tracker, parent):
        ProgressLog("t", tmp_path)(progress(30, 0.8))
        finish(tmp_path, trial())
    assert [step for step, _ in points(tracker, child(tracker, parent).info.run_id, "loss")] == [10, 20, 30]


def test_the_price_is_that_of_each_machine_s_time_which_its_trials_share(
    tracker: Tracker, parent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(forwarder, "time", SimpleNamespace(monotonic=lambda: 3600.0 * now))
    folders = [folder_at(trial(seed), tmp_path / str(seed)) for seed in range(3)]
    for folder in folders:
        folder.path.mkdir()

    def begin(on: Tracker, price: float) -> tuple[list[_Watch], _Meter]:
        made = [_Watch(folder, f"seed {seed}", on, parent, None) for seed, folder in enumerate(folders)]
        return made, _Meter(made, on, parent, price)

    def report(watch: int, step: int, *machines: str) -> None:
        folders[watch].log(replace(progress(step, 0.5), machines=machines))
        watches[watch].look()

    def has() -> dict[str, tuple[float, float]]:
        """(machine-hours, price) of each run."""
        runs = tracker.client.search_runs([tracker.experiment_id], f"tags.`mlflow.parentRunId` = '{parent}'")
        metrics = {run.info.run_name: run.data.metrics for run in [*runs, tracker.client.get_run(parent)]}
        keys = ("machine_hours", "price")
        return {name.split("-")[0]: tuple(m[key] for key in keys) for name, m in metrics.items() if keys[0] in m}  # type: ignore[misc]

    watches, meter = begin(tracker, 3.0)
    # Nothing runs in the first half of an hour.
    now = 0.5
    meter.read(0.0)
    assert has() == {}
    # Four workers on two machines, an hour.
    report(0, 10, "a", "a", "b", "b")
    now = 1.5
    meter.read(0.0)
    assert has() == {"seed 0": (2.0, 6.0), "pipeline": (2.0, 6.0)}
    # Half an hour in which another one shares machine b, and in which MLflow does not answer.
    report(1, 10, "b")
    now = 2.0
    with monkeypatch.context() as away:
        away.setattr(mlflow_runs, "add_price", refused)
        with pytest.raises(UserError, match="MLflow is away"):
            meter.read(0.0)
    # It is sent later. The first trial moves to c and takes a quarter of an hour there.
    report(0, 20, "c")
    now = 2.25
    meter.read(2700.0)
    assert has() == {"seed 0": (3.0, 9.0), "seed 1": (0.5, 1.5), "pipeline": (3.5, 10.5)}
    # The first one has ended. It is not yet time to send.
    finish(folders[0].path, trial(0))
    watches[0].look(last=True)
    now = 3.25
    meter.read(3601.0)
    assert has()["pipeline"] == (3.5, 10.5)
    meter.read(3600.0)
    assert has() == {"seed 0": (3.0, 9.0), "seed 1": (1.5, 4.5), "pipeline": (4.5, 13.5)}
    # The next search goes on, at another price, on this machine, which has no number, for two trials together.
    watches, meter = begin(tracker, 10.0)
    report(1, 30)
    report(2, 30)
    now = 4.25
    meter.read(0.0)
    assert has() == {"seed 0": (3.0, 9.0), "seed 1": (2.0, 9.5), "seed 2": (0.5, 5.0), "pipeline": (5.5, 23.5)}


def refused(*_: object) -> None:
    raise UserError("MLflow is away")


def test_a_watched_trial_has_a_price_if_one_is_given(tracker: Tracker, parent: str, tmp_path: Path) -> None:
    for number, price in enumerate((0.0, 3600.0)):
        folder = folder_at(trial(number), tmp_path / str(number))
        folder.path.mkdir()
        with watched([(folder, f"seed {number}")], tracker, parent, price=price):
            folder.log(progress(10))
            began = time.monotonic()
            time.sleep(2.0)
            finish(folder.path, trial(number))
        took = time.monotonic() - began
        runs = tracker.client.search_runs([tracker.experiment_id], f"tags.`mlflow.parentRunId` = '{parent}'")
        (run,) = [run for run in runs if run.info.run_name == f"seed {number}"]
        for metrics in (run.data.metrics, tracker.client.get_run(parent).data.metrics):
            assert ("price" in metrics) == ("machine_hours" in metrics) == bool(price)
            if price:
                # From the first look, after half a second, that finds the report.
                assert 0.5 < metrics["price"] <= took + 0.6
                assert metrics["machine_hours"] == pytest.approx(metrics["price"] / 3600)


def test_ctrl_c_does_not_wait_for_a_server_that_is_away(
    tracker: Tracker, parent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", raising=False)
    retries: list[str | None] = []

    def away(*_: Any) -> str:
        retries.append(os.environ.get("MLFLOW_HTTP_REQUEST_MAX_RETRIES"))
        raise UserError("MLflow is away")

    monkeypatch.setattr(mlflow_runs, "trial_run", away)
    with pytest.raises(KeyboardInterrupt), watched([(folder_at(trial(), tmp_path), "t")], tracker, parent):
        ProgressLog("t", tmp_path)(progress(10, 0.7))
        raise KeyboardInterrupt
    assert retries.pop() == "2"
    retries.clear()
    # What the block did not interrupt is sent with MLflow's own patience.
    with (
        pytest.raises(UserError, match="MLflow is away"),
        watched([(folder_at(trial(), tmp_path), "t")], tracker, parent),
    ):
        ProgressLog("t", tmp_path)(progress(20, 0.7))
    assert set(retries) == {None}


def test_known_trials_are_printed_and_logged_once(
    tracker: Tracker, parent: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # As the trial that is reused was computed; otherwise a line would say so.
    monkeypatch.setattr("pipeline.tracking.forwarder.bf16_here", lambda: False)
    rule = EarlyStopping(grace_scorings=1, reduction_factor=2)
    store = TrialStore(train_tokens=tmp_path, dev_tokens=tmp_path, storage=tmp_path)
    done, stopped, damaged, fresh = (trial(seed) for seed in range(4))
    for each in (done, stopped, damaged):
        store.folder(each).path.mkdir(parents=True)
    finish(store.folder(done).path, done)
    store.folder(stopped).log(progress(10))
    store.folder(stopped).note_stop("stopped early at step 10", rule)
    write_json(store.folder(damaged).path / OUTCOME, {})
    known = [store.result(each, rule) for each in (done, stopped, damaged, fresh)]
    for _ in range(2):
        report_known(known, store, lambda each: f"seed {each.seed}", tracker, parent)
        printed = capsys.readouterr()
        assert printed.out.splitlines() == [
            "seed 0: reused, trained before (selection PR-AUC 0.80)",
            "seed 1: stopped early at step 10, in an earlier run",
        ]
        (warning,) = printed.err.splitlines()
        assert warning.startswith("warning: seed 2 is trained again, its result cannot be used: ")
        runs = tracker.client.search_runs([tracker.experiment_id], f"tags.`mlflow.parentRunId` = '{parent}'")
        ends = {run.info.run_name: (run.info.status, run.data.tags["gausscse.how"]) for run in runs}
        assert ends == {"seed 0": ("FINISHED", f"reused: {TIMING}"), "seed 1": ("KILLED", "stopped early at step 10")}
        steps = {run.info.run_name: [step for step, _ in points(tracker, run.info.run_id, "loss")] for run in runs}
        assert steps == {"seed 0": [10, 20, 30], "seed 1": [10]}


def test_a_look_at_a_thousand_trials_is_few_requests(
    s3: str, tracker: Tracker, parent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    storage, read = Storage.open(s3, tmp_path), Storage.read

    def counted(self: Storage, name: str) -> str | None:
        asked.append(name)
        return read(self, name)

    folders = [
        TrialFolder(trial(seed), Mirror(folder_of(tmp_path / str(seed)), storage, f"trials/{seed}")) for seed in range(100)
    ]
    watches = [_Watch(folder, f"seed {seed}", tracker, parent, None) for seed, folder in enumerate(folders)]
    monkeypatch.setattr(Storage, "read", counted)
    # The fifth and the last one run.
    for seed in (4, 99):
        storage.write(f"trials/{seed}/{RECORDS}", json.dumps(asdict(progress(10))) + "\n")
    looked: set[str] = set()
    for turn in range(2 * 23):
        asked.clear()
        for watch in _worth_a_look(watches, turn):
            watch.look()
        assert len(asked) <= 3 * (8 + 4 + 2)
        looked |= {name.split("/")[1] for name in asked}
    # Each was looked at, and those that run each time; not one that early stopping has ended.
    watches[4].stopped = True
    assert sum(watches[4] in _worth_a_look(watches, turn) for turn in range(100, 124)) <= 2
    watches[4].stopped = False
    assert looked == {str(seed) for seed in range(100)}
    assert [seed for seed, watch in enumerate(watches) if watch.begun] == [4, 99]
    assert {watches[4], watches[99]} <= {*_worth_a_look(watches, 50)}
