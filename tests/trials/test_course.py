from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from pipeline.evaluation.aggregate import write_evaluated
from pipeline.trials.course import MAIN, Course, one_line, run_finals, run_grids, write_tables, write_variants
from pipeline.trials.trial import EarlyStopping, Timing, Trial, TrialResult
from tests.trials.test_grid import RECIPE, P, ran, stopped

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
    runs, courses = Runs(), [Course.of(MAIN, RECIPE, TUNE), Course.of("same", RECIPE, TUNE)]
    run_grids(courses, runs)
    run_finals(courses, runs)
    assert runs.calls == [([name(rate, seed) for rate in ("1e-05", "0.0001") for seed in (1, 2)], None)]
    assert [course.choice and course.choice.learning_rate for course in courses] == [1e-4, 1e-4]
    assert [trial.name for trial, _ in courses[0].finished] == [name("0.0001", 1), name("0.0001", 2)]
    assert len(courses[0].results) == 4
    assert one_line(courses[0]) == "main recipe: development PR-AUC 71.50 ± 0.71 over 2 seeds"


def test_with_early_stopping_each_recipe_has_its_own_call() -> None:
    runs, courses = Runs(), [Course.of(MAIN, RECIPE, ASHA), Course.of("other", RECIPE, ASHA)]
    run_grids(courses, runs)
    rule = EarlyStopping.of(ASHA)
    assert rule is not None
    assert [early_stopping for _, early_stopping in runs.calls] == [rule, rule, None, None]
    assert runs.calls[2] == ([name("0.0001", 2)], None)
    assert [course.failure for course in courses] == [None, None]
    assert [course.choice and course.choice.mean_dev_score for course in courses] == [71.5, 71.5]


def test_a_recipe_that_fails_is_kept_with_its_reason() -> None:
    runs = Runs(*(name(rate, seed) for rate in ("1e-05", "0.0001") for seed in (1, 2)))
    lost, sound = Course.of("lost", RECIPE, TUNE), Course.of("sound", RECIPE, TUNE.model_copy(update={"learning_rates": (2e-4,)}))
    run_grids([lost, sound], runs)
    run_finals([lost, sound], runs)
    assert lost.failure == "no point of the grid finished on all its seeds; the first failure was: the loss is nan at step 3"
    assert (lost.final, len(sound.finished)) == ([], 2)
    assert one_line(lost).startswith("lost: failed: no point")


def test_every_recipe_has_the_same_files(tmp_path: Path) -> None:
    courses = [Course.of(MAIN, RECIPE, TUNE), Course.of("ent", RECIPE, TUNE, {"objective.name": "ent"})]
    run_grids(courses, Runs())
    run_finals(courses, Runs())
    write_tables(tmp_path, courses)
    write_variants(tmp_path, courses, {trial.digest: Timing(seconds=1.0, workers=2) for trial, _ in courses[0].finished})
    trials = list(csv.DictReader((tmp_path / "trials.csv").open(encoding="utf-8")))
    assert [row["variant"] for row in trials] == [MAIN] * 4 + ["ent"] * 4
    main, ent = json.loads((tmp_path / "variants.json").read_text(encoding="utf-8"))
    assert (main.pop("name"), main.pop("overrides")) == (MAIN, {})
    assert (ent.pop("name"), ent.pop("overrides")) == ("ent", {"objective.name": "ent"})
    assert main == ent
    assert main["choice"]["learning_rate"] == 1e-4
    assert [(seed["seed"], seed["workers"]) for seed in main["seeds"]] == [(1, 2), (2, 2)]


@pytest.mark.parametrize(
    ("lost", "failure", "line"),
    [
        ((1,), None, "main recipe: development PR-AUC 72.00 over 1 seed, 1 failed"),
        ((1, 2), "the loss is nan at step 3", "main recipe: failed: the loss is nan at step 3"),
    ],
)
def test_a_recipe_fails_only_if_all_its_final_seeds_fail(lost: tuple[int, ...], failure: str | None, line: str) -> None:
    course = Course.of(MAIN, RECIPE, TUNE.model_copy(update={"seeds": (7,)}))
    runs = Runs(*(name("0.0001", seed) for seed in lost))
    run_grids([course], runs)
    run_finals([course], runs)
    assert course.failure == failure
    assert one_line(course) == line


def test_metrics_of_the_main_recipe_have_no_prefix(tmp_path: Path) -> None:
    sets = {"dev": {"pr_auc": 50.0}}
    write_evaluated(tmp_path, {MAIN: {"seed-1": sets}, "ent": {"seed-1": sets}}, [])
    assert json.loads((tmp_path / "metrics.json").read_text(encoding="utf-8")) == {**sets, "ent": sets}
