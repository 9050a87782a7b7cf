"""What a run over a set of trials knows when it begins, and the results when it is over."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.trials.plan import Plan
from pipeline.trials.store import TrialStore
from pipeline.trials.trial import OUTCOME, EarlyStopping, Stop
from pipeline.utils.atomic_io import write_json
from tests.tracking.runs import finish, progress, trial

RULE = EarlyStopping(grace_scorings=1, reduction_factor=2)
OTHER = EarlyStopping(grace_scorings=2, reduction_factor=2)
DONE, STOPPED, ELSE, FAILED, DAMAGED, FRESH = (trial(seed) for seed in range(6))


def stop(reason: str, rule: EarlyStopping = RULE) -> Stop:
    return Stop(step=10, best_score=0.1, reason=reason, early_stopping=rule)


@pytest.fixture
def store(tmp_path: Path) -> TrialStore:
    """A finished trial, one stopped under the rule, one under another rule, a failed one, and one whose outcome is damaged."""
    store = TrialStore(train_tokens=tmp_path, dev_tokens=tmp_path, storage=tmp_path)
    for each in (DONE, STOPPED, ELSE, FAILED, DAMAGED, FRESH):
        store.folder(each).path.mkdir(parents=True)
    finish(store.folder(DONE).path, DONE)
    store.folder(STOPPED).log(progress(10))
    store.folder(STOPPED).note_stop(stop("fell behind"))
    store.folder(ELSE).note_stop(stop("fell behind", OTHER))
    store.folder(FAILED).note_failure("the loss is nan")
    write_json(store.folder(DAMAGED).path / OUTCOME, {})
    return store


def plan_of(store: TrialStore, rule: EarlyStopping | None = RULE) -> Plan:
    return Plan.of([DONE, STOPPED, ELSE, FAILED, DAMAGED, FRESH], store, rule, lambda each: f"seed {each.seed}")


def test_what_is_finished_or_stopped_under_this_rule_does_not_wait(store: TrialStore) -> None:
    plan = plan_of(store)
    done, stopped, _, _, damaged, _ = plan.trials
    assert [planned.name for planned in plan.waiting] == ["seed 2", "seed 3", "seed 4", "seed 5"]
    assert done.outcome is not None
    assert str(done.timing) == "trained by 2 workers on cpu"
    assert stopped.stop == stop("fell behind")
    assert [record["step"] for record in stopped.history] == [10]
    assert [planned for planned in plan.trials if planned.fault] == [damaged]
    assert "another version of this program wrote it" in str(damaged.fault)
    # Without early stopping, an earlier stop does not count.
    assert "seed 1" in [planned.name for planned in plan_of(store, None).waiting]


def test_results_come_in_order_and_say_how_each_trial_ended(store: TrialStore) -> None:
    plan = plan_of(store)
    store.folder(FAILED).path.joinpath("failure.json").unlink()
    finish(store.folder(ELSE).path, ELSE)
    store.folder(DAMAGED).note_failure("a worker died")
    results = plan.results({FAILED.digest: stop("stopped now")})
    assert [result.trial for result in results] == [planned.trial for planned in plan.trials]
    ends = [(r.outcome is not None, r.reused, r.failure, r.stopped) for r in results]
    assert ends == [
        (True, True, None, None),
        (False, False, None, "fell behind"),
        (True, False, None, None),
        (False, False, None, "stopped now"),
        (False, False, "a worker died", None),
        (False, False, "did not finish", None),
    ]
