"""Small but complete results to make a report of: scores drawn by seed, everything after them by the pipeline's own code."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from conftest import PLAIN
from numpy.typing import NDArray

from pipeline.config.load import load_params
from pipeline.config.objectives import own_keys
from pipeline.config.params import Params
from pipeline.config.paths import EVALUATE, EXPERIMENTS, PREPARED, PROFILE, REGISTER, TOKENS, TRAIN, TUNE
from pipeline.data.token_store import MANIFEST
from pipeline.evaluation.aggregate import pr_curve_rows, write_evaluated
from pipeline.evaluation.score_cache import numbers_of
from pipeline.trials.recipe_run import MAIN, RecipeRun, choice_yaml, choose, write_tables, write_variants
from pipeline.trials.trial import Outcome, Recipe, Timing, Trial, TrialResult
from pipeline.utils.atomic_io import write_json

SETS = {"dev": 240, "sick_test": 300, "snli_test": 260}
GRADED = "stsb_test"
HYPOTHESIS_ONLY = {"pr_auc": 41.25, "accuracy": 63.5, "entailments": 33.0, "majority_accuracy": 67.0}
SENTENCES = (
    "A dog runs & barks.",
    "<script>alert('premise')</script> is what the | sign says.",
    "Nobody *sleeps* [here](there).",
)

# A profile of prepared data, small enough to check by eye; no text goes into one.
NLI: dict[str, Any] = {
    "counts": {
        "rows_in": 1011,
        "rows_out": 11,
        "dropped": {"empty": 1000, "duplicate": 0},
        "sentences": 20,
        "sentences_in_train": 5,
        "premises": 20,
        "kept_duplicate": 3,
        "kept_contradictory": 2,
    },
    "labels": {"contradiction": 1, "entailment": 5, "neutral": 5},
    "direction": {"pairs": 5, "length_only": 62.5, "premise_not_longer": 40.0},
    "dominant_script": "Latin",
    "oddities": {"html": {"rows": 2, "premise": 2, "hypothesis": 0, "first_rows": [4, 7]}},
}
STS = {key: NLI[key] for key in ("counts", "dominant_script")} | {"oddities": {}}
PROFILE_OF_SETS: dict[str, Any] = {
    "train": NLI | {"counts": NLI["counts"] | {"triplets": 1234, "triplets_with_contradiction": 0}},
    "dev": NLI,
    "promotion": NLI,
    "tests": {name: {**NLI, "counts": {**NLI["counts"], "pairs_in_dev": 4}} for name in SETS if name != "dev"},
    "sts": {GRADED: STS},
    "text": {},
    "operations": {},
    "tasks": {},
    "hypothesis_only": dict.fromkeys(SETS, HYPOTHESIS_ONLY),
    "files": {
        f"tests/{name}.parquet": {"sha256": f"{k:064x}", "rows": rows, "columns": [["premise", "string"]]}
        for k, (name, rows) in enumerate(SETS.items())
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A variant of the fake results."""

    name: str
    objective: str = "ent+con+rev"
    failure: str | None = None
    skill: float = 1.0


VARIANTS = (
    Asked(name="ent", objective="ent", skill=0.5),
    Asked(name="simcse", objective="simcse", skill=1.4),
    Asked(name="hot", failure="loss is not finite at step 3: <script>alert('reason')</script> | **bold** & more"),
)


def scored(name: str, rows: int, seed: int, *, variance: bool, skill: float) -> pa.Table:
    """A table as `pipeline.families.pairs.scoring.score_nli` gives it; labels and lengths depend on the set alone."""
    given = np.random.default_rng(zlib.crc32(name.encode()))
    label = given.integers(0, 3, rows)
    premise, hypothesis = given.integers(5, 30, rows), given.integers(4, 16, rows)
    reverse = np.where(given.random(rows) < 0.5, 0, 1) if name == "sick_test" else np.full(rows, -1)
    r = np.random.default_rng([seed, zlib.crc32(name.encode()), int(1000 * skill)])
    logit = skill * (1.2 * (label == 0) - 0.6 * (label == 2)) + r.normal(0, 1, rows)
    score = 1 / (1 + np.exp(-logit))
    columns: dict[str, Any] = {
        "label": pa.array(label, pa.int8()),
        "reverse_label": pa.array(reverse, pa.int8()),
        "premise_tokens": pa.array(premise, pa.int32()),
        "hypothesis_tokens": pa.array(hypothesis, pa.int32()),
        "score": score if variance else 2 * score - 1,
        "reverse_score": 2 * score - 1,
    }
    if variance:
        columns["sim_hp"] = score
        columns["sim_ph"] = columns["reverse_score"] = np.clip(
            score - 0.01 * (premise - hypothesis) * (label == 0) + r.normal(0, 0.1, rows), 0.001, 1
        )
        columns["premise_log_var"] = -300 + 3.0 * premise + r.normal(0, 15, rows)
        columns["hypothesis_log_var"] = -300 + 3.0 * hypothesis + r.normal(0, 15, rows)
    return pa.table(columns)


def hard_of(name: str, rows: int) -> NDArray[np.bool_]:
    """Which pairs of a set are hard; as many as it happens."""
    return np.random.default_rng(zlib.crc32(f"hard {name}".encode())).random(rows) < 0.35


def graded(seed: int, *, variance: bool) -> pa.Table:
    """A table as `pipeline.families.pairs.scoring.score_sts` gives it."""
    r = np.random.default_rng(seed)
    gold = r.random(80) * 5
    columns = {"score": gold, "cosine": gold / 5 + r.normal(0, 0.2, 80)}
    return pa.table(columns | ({"similarity": gold / 6 + r.normal(0, 0.2, 80)} if variance else {}))


def tables_of(seed: int, *, variance: bool, skill: float) -> dict[str, pa.Table]:
    """Every set, scored by the model of one seed."""
    tables = {name: scored(name, rows, seed, variance=variance, skill=skill) for name, rows in SETS.items()}
    return tables | {GRADED: graded(seed, variance=variance)}


def finished(trial: Trial) -> TrialResult:
    """A trial with a learning curve of five scorings; the loss is reported in between, too."""
    r = np.random.default_rng(zlib.crc32(trial.digest.encode()))
    best = 55 + 3 * np.log10(trial.learning_rate / 1e-5) + 0.01 * trial.batch_size + float(r.normal(0, 0.4))
    history = [
        {
            "step": step,
            "loss": 4 * np.exp(-step / 40) + 1 + float(r.normal(0, 0.05)),
            "learning_rate": trial.learning_rate,
            "score": None if step % 20 else best * (1 - np.exp(-step / 25)) / (1 - np.exp(-4.0)),
        }
        for step in range(10, 110, 10)
    ]
    outcome = Outcome(
        digest=trial.digest,
        name=trial.name,
        best_step=100,
        score_name="dev_pr_auc",
        best_score=history[-1]["score"],
        weights="a" * 64,
        total_steps=100,
        rows=3200,
        same_source_pairs=41,
        history=history,
    )
    return TrialResult(trial=trial, outcome=outcome)


def write_results(root: Path, variants: Sequence[Asked] = VARIANTS, *, objective: str = "ent+con+rev") -> Params:
    """Write everything that the report reads into a project folder; returns the parameters that go with it."""
    given = load_params(PLAIN)
    train = given.train.model_copy(update={"seeds": (1, 2, 3)})
    tune = given.tune.model_copy(update={"learning_rates": (1e-5, 1e-4), "batch_sizes": (32, 64), "seeds": (1, 2, 3)})
    named = own_keys(given.objective.model_dump() | {"name": objective})
    params = given.model_copy(update={"objective": named, "train": train, "tune": tune})
    _write_main(root, params)
    _write_variants(root / EXPERIMENTS, params, variants)
    _write_profile(root)
    write_json(
        root / REGISTER,
        {
            "name": "gausscse",
            "version": 3,
            "alias": "challenger",
            "champion_version": 2,
            "reason": "a gain of -0.50 is not significantly above 0 <script>alert('why')</script>",
            "model_uri": "models:/gausscse/3",
            "metric": "pr_auc",
            "dev_score": 61.0,
            "decision": {
                "champion": 2,
                "candidate": 3,
                "checks": [
                    {"name": "dev.pr_auc", "passed": False, "said": "a gain of -0.50 (95 % interval -1.20 to +0.20)"},
                    {"name": "dev.direction.sim", "passed": True, "said": "direction.sim on dev 90.00 against 89.50"},
                ],
            },
        },
    )
    return params


def recipe_of(params: Params, objective: str) -> Recipe:
    """The recipe of the parameters with another objective."""
    named = own_keys(params.objective.model_dump() | {"name": objective})
    held = {"train_tokens": "1" * 64, "dev_tokens": "2" * 64, "backbone_files": "3" * 64, "code": "4" * 64}
    return Recipe(model=params.model.encoder, objective=named, train=params.train, **held)


def _grid(recipe: Recipe, params: Params) -> list[TrialResult]:
    points = [(rate, size) for rate in params.tune.learning_rates for size in params.tune.batch_sizes]
    trials = [recipe.trial(rate, size, seed) for rate, size in points for seed in params.tune.seeds]
    done = [finished(trial) for trial in trials]
    done[0] = TrialResult(trial=trials[0], outcome=None, failure="a worker was killed (signal 9) <b>four</b> times")
    done[3] = TrialResult(trial=trials[3], outcome=None, stopped="not among the best third at step 20")
    return done


def _write_main(root: Path, params: Params) -> None:
    recipe = recipe_of(params, params.objective.name)
    recipe_run = RecipeRun(name=MAIN, recipe=recipe, grid=[*_grid(recipe, params)])
    recipe_run.choice = choice = choose(recipe_run.grid)
    for folder in (TUNE, TRAIN, EVALUATE):
        (root / folder).mkdir(parents=True)
    write_tables(root / TUNE, [recipe_run])
    (root / TUNE / "best.yaml").write_text(choice_yaml(choice), encoding="utf-8")
    chosen = choice.learning_rate, choice.batch_size
    recipe_run.final = [one for one in recipe_run.grid if (one.trial.learning_rate, one.trial.batch_size) == chosen]
    recipe_run.grid = []
    timing = Timing(seconds=301.5, workers=2, precision="fp32", versions={}, device="cpu", threads=4)
    _write_finals(root / TRAIN, root / EVALUATE, [(recipe_run, 1.0)], timing, params)


def _write_finals(
    trained: Path, evaluated: Path, skilled: Sequence[tuple[RecipeRun, float]], timing: Timing, params: Params
) -> None:
    """Write what is known of the recipes after their final seeds; each recipe comes with its skill."""
    recipe_runs = [recipe_run for recipe_run, _ in skilled]
    write_tables(trained, recipe_runs)
    write_variants(trained, recipe_runs, {trial.digest: timing for recipe_run in recipe_runs for trial, _ in recipe_run.finished})
    per_seed: dict[str, Any] = {}
    curves: list[dict[str, Any]] = []
    for recipe_run, skill in skilled:
        variance = recipe_run.recipe.objective.name != "simcse"
        for trial, _ in recipe_run.finished:
            seed, folder = f"seed-{trial.seed}", evaluated / "scores" / recipe_run.name
            tables = tables_of(trial.seed, variance=variance, skill=skill)
            for name, table in tables.items():
                (folder / name).mkdir(parents=True, exist_ok=True)
                pq.write_table(table, folder / name / f"{seed}.parquet")
                curves += [{"variant": recipe_run.name, **row} for row in pr_curve_rows(name, seed, table)]
            per_seed.setdefault(recipe_run.name, {})[seed] = numbers_of(
                tables, params.evaluate, {name: hard_of(name, rows) for name, rows in SETS.items()}
            )
    write_evaluated(evaluated, per_seed, curves)


def _write_variants(folder: Path, params: Params, variants: Sequence[Asked]) -> None:
    folder.mkdir(parents=True)
    skilled: list[tuple[RecipeRun, float]] = []
    for asked in variants:
        recipe = recipe_of(params, asked.objective)
        overrides = {"objective.name": asked.objective}
        recipe_run = RecipeRun(name=asked.name, overrides=overrides, recipe=recipe, failure=asked.failure)
        skilled.append((recipe_run, asked.skill))
        if asked.failure:
            trials = [recipe.trial(9e-3, 32, seed) for seed in params.tune.seeds]
            recipe_run.grid = [TrialResult(trial=trial, outcome=None, failure=asked.failure) for trial in trials]
            continue
        recipe_run.grid = recipe_run.final = [finished(recipe.trial(1e-4, 32, seed)) for seed in params.tune.seeds]
        recipe_run.choice = choose(recipe_run.grid)
    timing = Timing(seconds=252.25, workers=2, precision="bf16", versions={}, device="NVIDIA H200", threads=1)
    _write_finals(folder, folder, skilled, timing, params)


def _write_profile(root: Path) -> None:
    write_json(root / PROFILE, PROFILE_OF_SETS)
    for store, cut in {"train": 30, "dev": 0, "tests": 2}.items():
        (root / TOKENS / store).mkdir(parents=True)
        write_json(root / TOKENS / store / MANIFEST, {"truncated": cut, "sentences": 1600})
    for name, rows in SETS.items():
        path = root / PREPARED / ("dev/dev.parquet" if name == "dev" else f"tests/{name}.parquet")
        path.parent.mkdir(parents=True, exist_ok=True)
        texts = [f"{SENTENCES[i % len(SENTENCES)]} ({i})" for i in range(rows)]
        pq.write_table(pa.table({"premise": texts, "hypothesis": texts[::-1]}), path)
