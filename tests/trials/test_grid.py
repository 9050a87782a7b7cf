from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from pipeline.config.load import load_params
from pipeline.trials.grid import (
    Recipe,
    choice_yaml,
    choose,
    curves_rows,
    made_whole,
    read_choice,
    table_rows,
    to_csv,
)
from pipeline.trials.trial import Outcome, Trial, TrialResult
from pipeline.utils.errors import UserError
from tests.conftest import PLAIN

P = load_params(PLAIN)
RECIPE = Recipe(
    model=P.model, objective=P.objective, train=P.train, train_tokens="a", dev_tokens="b", backbone_files="c", code="d"
)


def ran(rate: float, size: int, seed: int, score: float | None) -> TrialResult:
    trial = RECIPE.trial(rate, size, seed)
    if score is None:
        return TrialResult(trial=trial, outcome=None, failure="the loss is nan at step 3")
    history = [{"step": 5, "loss": 1.5, "learning_rate": rate, "score": score}]
    outcome = Outcome(
        digest=trial.digest,
        name=trial.name,
        best_step=5,
        score_name="dev_pr_auc",
        best_score=score,
        weights="a" * 64,
        total_steps=9,
        rows=8,
        same_source_pairs=0,
        history=history,
    )
    return TrialResult(trial=trial, outcome=outcome)


@pytest.mark.parametrize("score", [float("nan"), float("inf"), float("-inf")])
def test_a_score_that_is_not_a_number_never_reaches_a_choice(score: float) -> None:
    with pytest.raises(ValueError, match="the best development score is"):
        ran(1e-3, 32, 1, score)


def test_the_mean_over_seeds_decides_not_the_best_run() -> None:
    choice = choose([ran(1e-5, 32, 1, 70.0), ran(1e-5, 32, 2, 50.0), ran(1e-4, 32, 1, 62.0), ran(1e-4, 32, 2, 61.0)])
    assert (choice.learning_rate, choice.mean_dev_score) == (1e-4, 61.5)
    assert choice.sd_dev_score == pytest.approx(0.5**0.5)


def test_a_point_with_a_failed_seed_cannot_win() -> None:
    runs = [ran(1e-5, 32, 1, 90.0), ran(1e-5, 32, 2, None), ran(1e-4, 32, 1, 62.0), ran(1e-4, 32, 2, 61.0)]
    assert choose(runs).learning_rate == 1e-4
    with pytest.raises(UserError, match="first failure was: the loss is nan"):
        choose(runs[:2])


def stopped(rate: float, size: int, seed: int) -> TrialResult:
    return TrialResult(trial=RECIPE.trial(rate, size, seed), outcome=None, stopped="behind")


def test_missing_seeds_of_the_best_point_are_trained_to_the_end() -> None:
    asked: list[Trial] = []

    def run(trials: list[Trial]) -> list[TrialResult]:
        asked.extend(trials)
        return [ran(t.learning_rate, t.batch_size, t.seed, 60.0) for t in trials]

    apart = [ran(1e-5, 32, 1, 70.0), stopped(1e-5, 32, 2), stopped(1e-4, 32, 1), ran(1e-4, 32, 2, 61.0), stopped(1e-3, 32, 1)]
    whole = made_whole(apart, run)
    assert asked == [RECIPE.trial(1e-5, 32, 2)]
    assert [r.trial for r in whole] == [r.trial for r in apart]
    assert choose(whole).mean_dev_score == 65.0
    # A point that has lost a seed for good is not made whole; one that is whole makes the others needless.
    asked.clear()
    with pytest.raises(UserError, match="first failure was"):
        choose(made_whole([ran(1e-5, 32, 1, 70.0), ran(1e-5, 32, 2, None)], run))
    assert made_whole([*apart, ran(1e-2, 32, 1, 20.0)], run) == [*apart, ran(1e-2, 32, 1, 20.0)]
    assert asked == []


def test_the_choice_survives_its_file(tmp_path: Path) -> None:
    choice = choose([ran(1e-5, 32, 1, 70.0)])
    (tmp_path / "best.yaml").write_text(choice_yaml(choice), encoding="utf-8")
    assert read_choice(tmp_path / "best.yaml") == choice
    (tmp_path / "best.yaml").write_text("learning_rate: high\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"best\.yaml: not the choice of a grid"):
        read_choice(tmp_path / "best.yaml")


def test_tables_have_a_row_a_trial_and_reasons() -> None:
    results = [ran(1e-5, 32, 1, 70.0), ran(1e-5, 32, 2, None)]
    rows = list(csv.DictReader(io.StringIO(to_csv(table_rows(results)))))
    assert [row["status"] for row in rows] == ["finished", "failed"]
    assert rows[1]["failure"] == "the loss is nan at step 3"
    curve = list(csv.DictReader(io.StringIO(to_csv(curves_rows(results)))))
    assert [(row["step"], row["dev_score"]) for row in curve] == [("5", "70.0")]
