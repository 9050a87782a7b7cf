"""Which trials are stopped, why runs failed in words, how many workers there is room for: without a cluster."""

from __future__ import annotations

import inspect
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray.data.exceptions
import ray.serve.exceptions
import ray.tune
from ray.exceptions import OutOfMemoryError, RayActorError, RayTaskError
from ray.train import WorkerGroupError

from pipeline.cluster.capacity import worker_places
from pipeline.cluster.failures import one_line, reason_of
from pipeline.cluster.grid_search import asha
from pipeline.config.load import load_params
from pipeline.config.objectives import own_keys
from pipeline.trials.early_stopping import Stopper, scorings
from pipeline.trials.progress_log import RECORDS
from pipeline.trials.store import TrialStore
from pipeline.trials.trial import STOPPED, EarlyStopping
from pipeline.utils.atomic_io import read_json
from pipeline.utils.errors import RunError, StorageError
from tests.conftest import PLAIN
from tests.tracking.runs import outcome
from tests.trial_of import plain_trial

P = load_params(PLAIN)
RULE = EarlyStopping(grace_scorings=2, reduction_factor=2)
BASE = plain_trial(batch_size=32, eval_every=10)
BETTER, WORSE = BASE, BASE.model_copy(update={"learning_rate": 1e-2})
# Of another seed: the seeds of a point do not stop each other.
SEED = BASE.model_copy(update={"seed": 2})
OTHER = BASE.model_copy(update={"objective": own_keys(P.objective.model_dump() | {"name": "ent"})})


def scored(step: int, score: float, total: int = 100) -> dict[str, Any]:
    return {"step": step, "total_steps": total, "score": score, "best_score": score}


@pytest.fixture
def places(tmp_path: Path) -> TrialStore:
    for trial in (BETTER, WORSE, SEED, OTHER):
        (tmp_path / "trials" / trial.digest).mkdir(parents=True)
    return TrialStore(train_tokens=tmp_path, dev_tokens=tmp_path, storage=tmp_path)


@pytest.fixture
def stopper(places: TrialStore) -> Stopper:
    return Stopper([(places.folder(trial), None) for trial in (BETTER, WORSE, SEED, OTHER)], RULE, asha)


def test_the_worse_half_is_stopped_at_a_rung_and_nowhere_else(stopper: Stopper, places: TrialStore) -> None:
    stopper.scored(BETTER.digest, scored(10, 60.0))
    stopper.scored(WORSE.digest, scored(10, 40.0))
    assert not stopper.stopped
    stopper.scored(BETTER.digest, scored(20, 61.0))
    stopper.scored(WORSE.digest, scored(20, 45.0))
    assert stopper.stopped == {WORSE.digest}
    folder = places.folder(WORSE)
    assert "step 20: selection PR-AUC 45.00 at scoring 2" in str(folder.stop(RULE))
    assert folder.stop(EarlyStopping(grace_scorings=3, reduction_factor=2)) is None
    assert folder.stop(None) is None


def test_other_recipes_and_the_untrained_model_stop_no_trial(stopper: Stopper) -> None:
    assert [scorings(BASE, step) for step in (0, 10, 20, 95)] == [0, 1, 2, 10]
    stopper.scored(BETTER.digest, scored(20, 90.0))
    stopper.scored(OTHER.digest, scored(20, 10.0))
    stopper.scored(SEED.digest, scored(20, 10.0))
    stopper.scored(WORSE.digest, scored(0, 10.0))
    stopper.scored(WORSE.digest, scored(10, 10.0))
    assert not stopper.stopped


def test_a_score_that_is_not_a_number_stops_nothing_and_moves_no_rung(stopper: Stopper) -> None:
    stopper.scored(BETTER.digest, scored(20, 60.0))
    stopper.scored(WORSE.digest, scored(20, float("nan")))
    assert not stopper.stopped


def test_a_trial_at_its_end_is_not_stopped(stopper: Stopper, places: TrialStore) -> None:
    stopper.scored(BETTER.digest, scored(20, 90.0, total=20))
    stopper.scored(WORSE.digest, scored(20, 10.0, total=20))
    assert not stopper.stopped
    assert not (places.folder(WORSE).path / STOPPED).exists()


def test_trials_of_an_earlier_run_compete_and_its_decisions_stay(places: TrialStore) -> None:
    for trial, *records in ((BETTER, scored(20, 90.0), scored(40, 10.0)), (WORSE, scored(20, 10.0))):
        (places.folder(trial).path / RECORDS).write_text("".join(f"{json.dumps(one)}\n" for one in records), encoding="utf-8")
    stopper = Stopper([(places.folder(trial), None) for trial in (BETTER, WORSE)], RULE, asha)
    # The driver tells everything again from the beginning.
    stopper.scored(WORSE.digest, scored(20, 10.0))
    assert not stopper.stopped
    stopper.scored(WORSE.digest, scored(40, 9.0))
    assert stopper.stopped == {WORSE.digest}
    assert "at step 40" in read_json(places.folder(WORSE).path / STOPPED)["reason"]


def test_of_a_finished_trial_the_outcome_is_enough(places: TrialStore) -> None:
    finished = replace(outcome(BETTER), history=[scored(20, 90.0), scored(40, 91.0)])
    # Its folder is empty: a model takes long to read, and there may be a thousand.
    stopper = Stopper([(places.folder(BETTER), finished), (places.folder(WORSE), None)], RULE, asha)
    stopper.scored(WORSE.digest, scored(20, 10.0))
    assert stopper.stopped == {WORSE.digest}


DIED = "The actor died.\n\tclass_name: W\n\tpid: 71\n\tip: 10.0.0.2\nWorker exit type: SYSTEM_ERROR Worker exit detail: "
SILENT = DIED + "Worker unexpectedly exits with a connection error code 2. End of file. Some common causes include: (1) …"


def test_reasons_name_the_worker_that_began_it_and_what_happened_to_it() -> None:
    broken = RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer")
    killed = WorkerGroupError("", {0: broken, 1: RayActorError(error_msg=SILENT)})
    assert reason_of(killed).startswith("worker 1 (process 71 on 10.0.0.2) was killed (SIGKILL) or crashed")
    memory = OutOfMemoryError(
        "2 worker(s) were killed. Memory on the node (IP: 10.0.0.2, ID: a1) was 3GB used\n"
        "OOM kill reason: Memory usage 3221225472B exceeded threshold of 3000000000B (93.1% of 4294967296B limit)\nRefer to\n"
        "Top 10 memory users: PID\tMEM(GB)\tCOMMAND\n12\t1.50\t/usr/bin/python hog.py\n13\t0.50\tray::TrialWorker\nRefer to"
    )
    said = reason_of(WorkerGroupError("", {0: memory, 1: broken}))
    assert said == (
        "its processes were killed because node 10.0.0.2 ran out of memory (3.0 of 4.0 GB in use; largest processes: "
        "python hog.py (process 12, 1.50 GB), ray::TrialWorker (process 13, 0.50 GB))"
    )
    ended = RayActorError(error_msg=DIED + "Worker exits with an exit code 1. The process receives a SIGTERM.")
    assert reason_of(WorkerGroupError("", {0: ended})).endswith("The process receives a SIGTERM.")
    raised = WorkerGroupError("", {0: broken, 1: ValueError("no such column\nin the table")})
    assert reason_of(raised) == "worker 1 raised ValueError: no such column in the table"
    # A driver that trains is its trial's only worker.
    alone = RayActorError(error_msg=SILENT)
    assert reason_of(alone, in_driver=True).startswith("worker 0 (process 71 on 10.0.0.2) was killed (SIGKILL)")
    alone = RayTaskError("f", "Traceback", KeyError("no such column")).as_instanceof_cause()
    assert reason_of(alone, in_driver=True) == "worker 0 raised KeyError: 'no such column'"


def test_every_exception_of_ray_is_one_line() -> None:
    # Ray carries copies of other packages; their exceptions do not leave it.
    modules = {name: one for name, one in sys.modules.items() if name.startswith("ray.") and ".thirdparty" not in name}
    parts = {name: vars(module) for name, module in modules.items()}
    members = [one for part in parts.values() for one in part.values() if inspect.isclass(one) and one.__module__ in parts]
    kinds = {one for one in members if issubclass(one, Exception)}
    assert kinds > {OutOfMemoryError, RayActorError, WorkerGroupError, ray.tune.TuneError, ray.serve.exceptions.RayServeException}
    for kind in kinds:
        # Each kind wants other arguments.
        text = {"__init__": lambda _: None, "__str__": lambda _: "first\nsecond"}
        error, raised_for_it = type(kind.__name__, (kind,), text)(), RuntimeError("Caught unexpected exception")
        raised_for_it.__cause__ = error
        for line in map(one_line, (error, raised_for_it)):
            assert isinstance(line, RunError) and str(line).startswith("Ray: ") and "\n" not in str(line), kind
    ours = StorageError("the storage is full")
    assert one_line(RayTaskError("f", "Traceback (most recent call last):\n  …", ours).as_instanceof_cause()) is ours
    assert one_line(KeyError("of no part of Ray")) is None


def test_room_is_counted_node_by_node() -> None:
    assert worker_places([{"CPU": 3.0}, {"CPU": 3.0}], 2.0, use_gpu=False) == 2
    assert worker_places([{"CPU": 8.0, "GPU": 1.0}, {"CPU": 8.0}], 1.0, use_gpu=True) == 1
    assert worker_places([{"CPU": 1.0}], 0.1, use_gpu=False) == 10
