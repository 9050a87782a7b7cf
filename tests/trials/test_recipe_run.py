from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.config.load import load_params
from pipeline.trials.recipe_run import (
    MAIN,
    RecipeRun,
    choice_yaml,
    choose,
    made_whole,
    one_line,
    read_choice,
    run_finals,
    run_grids,
)
from pipeline.trials.trial import EarlyStopping, Outcome, Recipe, Trial, TrialResult
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


def stopped(rate: float, size: int, seed: int) -> TrialResult:
    return TrialResult(trial=RECIPE.trial(rate, size, seed), outcome=None, stopped="behind")


TUNE = P.tune.model_copy(update={"learning_rates": (1e-5, 1e-4), "batch_sizes": (32,), "seeds": (1, 2)})
ASHA = TUNE.model_copy(update={"early_stopping": "asha"})


class Runs:
    """Trains by a table of scores; records what was asked for."""

    def __init__(self, *without: str) -> None:
        self.calls: list[tuple[list[str], EarlyStopping | None]] = []
        self.without = without

    def __call__(self, trials: list[Trial], early_stopping: EarlyStopping | None) -> list[TrialResult]:
        self.calls.append(([trial.name for trial in trials], early_stopping))
        return [self._ran(trial, early_stopping) for trial in trials]

    def _ran(self, trial: Trial, early_stopping: EarlyStopping | None) -> TrialResult:
        score = 60.0 + 1e5 * trial.learning_rate + trial.seed
        # Each point loses a seed, so no point is whole.
        if early_stopping and (trial.learning_rate, trial.seed) in ((1e-5, 1), (1e-4, 2)):
            return stopped(trial.learning_rate, trial.batch_size, trial.seed)
        return ran(trial.learning_rate, trial.batch_size, trial.seed, None if trial.name in self.without else score)


def name(rate: str, seed: int) -> str:
    return f"ent+con+rev-lr{rate}-b32-s{seed}"


def test_recipes_share_a_call_and_no_trial_is_trained_twice() -> None:
    runs, recipe_runs = Runs(), [RecipeRun.of(MAIN, RECIPE, TUNE), RecipeRun.of("same", RECIPE, TUNE)]
    run_grids(recipe_runs, runs)
    run_finals(recipe_runs, runs)
    assert runs.calls == [([name(rate, seed) for rate in ("1e-05", "0.0001") for seed in (1, 2)], None)]
    assert [recipe_run.choice and recipe_run.choice.learning_rate for recipe_run in recipe_runs] == [1e-4, 1e-4]
    assert [trial.name for trial, _ in recipe_runs[0].finished] == [name("0.0001", 1), name("0.0001", 2)]
    assert len(recipe_runs[0].results) == 4
    assert one_line(recipe_runs[0]) == "main recipe: selection PR-AUC 71.50 ± 0.71 over 2 seeds"


def test_with_early_stopping_each_recipe_has_its_own_call() -> None:
    runs, recipe_runs = Runs(), [RecipeRun.of(MAIN, RECIPE, ASHA), RecipeRun.of("other", RECIPE, ASHA)]
    run_grids(recipe_runs, runs)
    rule = EarlyStopping.of(ASHA)
    assert rule is not None
    assert [early_stopping for _, early_stopping in runs.calls] == [rule, None, rule, None]
    assert runs.calls[1] == ([name("0.0001", 2)], None)
    assert [recipe_run.failure for recipe_run in recipe_runs] == [None, None]
    assert [recipe_run.choice and recipe_run.choice.mean_dev_score for recipe_run in recipe_runs] == [71.5, 71.5]


def test_a_recipe_that_fails_is_kept_with_its_reason() -> None:
    runs = Runs(*(name(rate, seed) for rate in ("1e-05", "0.0001") for seed in (1, 2)))
    lost, sound = (
        RecipeRun.of("lost", RECIPE, TUNE),
        RecipeRun.of("sound", RECIPE, TUNE.model_copy(update={"learning_rates": (2e-4,)})),
    )
    run_grids([lost, sound], runs)
    run_finals([lost, sound], runs)
    assert lost.failure == "no point of the grid finished on all its seeds; the first failure was: the loss is nan at step 3"
    assert (lost.final, len(sound.finished)) == ([], 2)
    assert one_line(lost).startswith("lost: failed: no point")


@pytest.mark.parametrize(
    ("lost", "failure", "line"),
    [
        ((1,), None, "main recipe: selection PR-AUC 72.00 over 1 seed, 1 failed"),
        ((1, 2), "the loss is nan at step 3", "main recipe: failed: the loss is nan at step 3"),
    ],
)
def test_a_recipe_fails_only_if_all_its_final_seeds_fail(lost: tuple[int, ...], failure: str | None, line: str) -> None:
    recipe_run = RecipeRun.of(MAIN, RECIPE, TUNE.model_copy(update={"seeds": (7,)}))
    runs = Runs(*(name("0.0001", seed) for seed in lost))
    run_grids([recipe_run], runs)
    run_finals([recipe_run], runs)
    assert recipe_run.failure == failure
    assert one_line(recipe_run) == line


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


def test_missing_seeds_of_the_best_point_are_trained_to_the_end() -> None:
    asked: list[Trial] = []

    def run(trials: list[Trial], _: EarlyStopping | None) -> list[TrialResult]:
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
