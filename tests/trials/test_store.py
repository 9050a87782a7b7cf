"""The parameters of a trial, what the files in its folder say, and what a run over several trials knows of them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.trials.store import TrialStore
from pipeline.trials.trial import OUTCOME, STOPPED, EarlyStopping, TrialResult
from pipeline.utils.atomic_io import write_json
from tests.conftest import PLAIN
from tests.tracking.runs import TIMING, finish, trial
from tests.trial_of import folder_at, plain_trial

RULE = EarlyStopping(grace_scorings=1, reduction_factor=2)
OTHER = EarlyStopping(grace_scorings=2, reduction_factor=2)
DONE, BEHIND, ELSE, FAILED, DAMAGED, FRESH = (trial(seed) for seed in range(6))


def test_its_parameters_are_those_of_the_file_but_the_list_of_seeds() -> None:
    written = yaml.safe_load((PLAIN).read_text(encoding="utf-8"))
    expected = {
        f"{section}.{key}": value for section in ("model", "objective", "train") for key, value in written[section].items()
    }
    assert expected.pop("train.seeds") is not None
    # The head is fitted to the finished model; a trial does not depend on it.
    assert expected.pop("model.relation_head") == "none"
    assert plain_trial(3e-5, seed=7).parameters() == {"learning_rate": 3e-5, "batch_size": 8, "seed": 7, **expected}


@pytest.mark.parametrize("note", [{}, {"reason": "x", "early_stopping": {}}, {"early_stopping": asdict(RULE)}, "not an object"])
def test_a_stop_of_another_format_is_none(tmp_path: Path, note: Any) -> None:
    write_json(tmp_path / STOPPED, note)
    assert folder_at(DONE, tmp_path).stop(RULE) is None


@pytest.mark.parametrize("weights", ["../" + "a" * 61, "a" * 65, None])
def test_what_is_no_digest_becomes_no_file_name(tmp_path: Path, weights: str | None) -> None:
    folder = folder_at(DONE, tmp_path)
    assert folder._weights() is None
    write_json(tmp_path / OUTCOME, {"outcome": {"weights": weights}})
    assert folder._weights() is None


@pytest.fixture
def store(tmp_path: Path) -> TrialStore:
    """A finished trial, one stopped under the rule, one under another rule, a failed one, and one whose outcome is damaged."""
    store = TrialStore(train_tokens=tmp_path, dev_tokens=tmp_path, storage=tmp_path)
    for each in (DONE, BEHIND, ELSE, FAILED, DAMAGED, FRESH):
        store.folder(each).path.mkdir(parents=True)
    finish(store.folder(DONE).path, DONE)
    store.folder(BEHIND).note_stop("fell behind", RULE)
    store.folder(ELSE).note_stop("fell behind", OTHER)
    store.folder(FAILED).note_failure("the loss is nan")
    write_json(store.folder(DAMAGED).path / OUTCOME, {})
    return store


def results(store: TrialStore, rule: EarlyStopping | None) -> list[TrialResult]:
    return [store.result(each, rule) for each in (DONE, BEHIND, ELSE, FAILED, DAMAGED, FRESH)]


def test_what_is_finished_or_stopped_under_this_rule_is_not_trained(store: TrialStore) -> None:
    known = results(store, RULE)
    assert [result.trial.seed for result in known if result.unfinished] == [2, 3, 4, 5]
    assert known[0].outcome is not None
    assert store.folder(DONE).timing() == TIMING
    assert str(TIMING).startswith("trained by 2 workers on cpu in fp32")
    assert known[1].stopped == "fell behind"
    assert store.folder(FRESH).fault() is None
    assert "another version of this program wrote it" in str(store.folder(DAMAGED).fault())
    # Without early stopping, an earlier stop does not count.
    assert results(store, None)[1].unfinished


def test_results_say_how_each_trial_ended(store: TrialStore) -> None:
    store.folder(FAILED).path.joinpath("failure.json").unlink()
    store.folder(FAILED).note_stop("stopped now", RULE)
    finish(store.folder(ELSE).path, ELSE)
    store.folder(DAMAGED).note_failure("a worker died")
    ends = [(r.outcome is not None, r.failure, r.stopped) for r in results(store, RULE)]
    assert ends == [
        (True, None, None),
        (False, None, "fell behind"),
        (True, None, None),
        (False, None, "stopped now"),
        (False, "a worker died", None),
        (False, "did not finish", None),
    ]
