"""The files of results, read into one object: everything that the report shows comes from here."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from pipeline.files import read_json
from pipeline.grid import Choice, read_choice
from pipeline.metrics import EntailmentIf
from pipeline.params import Params, Section
from pipeline.project import EVALUATE, EXPERIMENTS, PREPARED, PROFILE, REGISTER, TRAIN, TUNE, git_commit
from pipeline.report.files import contents_of, number, read_rows
from pipeline.report.recipe import MAIN, Recipe, Seed, Step, TrialRow

_PACKAGES = ("torch", "transformers", "tokenizers", "ray", "mlflow", "dvc", "pyarrow", "numpy", "scikit-learn", "plotly")


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """Everything the report shows."""

    recipes: tuple[Recipe, ...]
    """The main recipe, then the variants in the order of params.yaml."""
    hypothesis_only: Mapping[str, Mapping[str, float]]
    """Set → metrics of the classifier that never sees the premise; empty where training has one class only."""
    registered: Mapping[str, Any]
    profile: Mapping[str, Any]
    params: Mapping[str, Any]
    """Sections of params.yaml."""
    entailment_if: EntailmentIf
    examples: Literal["full", "ids", "none"]
    commit: str
    versions: Mapping[str, str]
    prepared: Path

    @property
    def main(self) -> Recipe:
        """The recipe of params.yaml."""
        return self.recipes[0]

    @property
    def nli_sets(self) -> tuple[str, ...]:
        """Sets of labelled pairs, "dev" first."""
        return tuple(sorted((name for name, numbers in self.main.summary.items() if "accuracy" in numbers), key=_dev_first))

    @property
    def sts_sets(self) -> tuple[str, ...]:
        """Sets of pairs with a graded similarity."""
        return tuple(sorted(name for name, numbers in self.main.summary.items() if "spearman_cosine" in numbers))

    @property
    def figure_sets(self) -> tuple[str, ...]:
        """Sets whose scores are looked at closely: the test sets, or the development set where there are none."""
        return tuple(name for name in self.nli_sets if name != "dev") or self.nli_sets


def read_content(params: Params, shown: Mapping[str, Section], root: Path) -> Content:
    """Read what the stages before the report have left in a project folder.

    Args:
        shown: the sections of params.yaml that the report lists, by name.

    Raises:
        UserError: a file is missing or damaged.
    """
    evaluated = read_json(root / EVALUATE / "summary.json")
    with contents_of(root / EVALUATE / "summary.json"):
        hypothesis_only = evaluated["hypothesis_only"]
        main = _main(params, root, evaluated["sets"])
    return Content(
        recipes=(main, *_variants(root / EXPERIMENTS)),
        hypothesis_only=hypothesis_only,
        registered=read_json(root / REGISTER),
        profile=read_json(root / PROFILE),
        params={name: section.model_dump(mode="json") for name, section in shown.items()},
        entailment_if=params.evaluate.entailment_if,
        examples=params.report.examples,
        commit=git_commit(root),
        versions={"Python": platform.python_version()} | {name: version(name) for name in _PACKAGES},
        prepared=root / PREPARED,
    )


def _main(params: Params, root: Path, summary: Mapping[str, Any]) -> Recipe:
    outcomes, timing = read_json(root / TRAIN / "outcomes.json"), read_json(root / TRAIN / "timing.json")
    with contents_of(root / TRAIN / "outcomes.json"):
        seeds = tuple(_final_seed(entry, timing[f"seed-{entry['trial']['seed']}"]) for entry in outcomes)
        curves = {entry["trial"]["seed"]: entry["outcome"]["name"] for entry in outcomes}
    trials = _trials(read_rows(root / TUNE / "trials.csv"), root / TUNE / "trials.csv")
    return Recipe(
        name=MAIN,
        overrides={},
        objective=params.objective.name,
        similarity=params.objective.similarity,
        uses_variance=params.objective.name != "simcse",
        choice=read_choice(root / TUNE / "best.yaml"),
        failure=None,
        seeds=seeds,
        failures=tuple(
            (trial_name(params.objective.name, row.learning_rate, row.batch_size, row.seed), row.failure)
            for row in trials
            if row.status == "failed"
        ),
        trials=trials,
        summary=summary,
        per_seed=_by_seed(read_json(root / EVALUATE / "per_seed.json")),
        learning=_learning(read_rows(root / TRAIN / "curves.csv"), curves, root / TRAIN / "curves.csv"),
        precision_recall=_precision_recall(read_rows(root / EVALUATE / "pr_curves.csv"), root / EVALUATE / "pr_curves.csv"),
        scores=root / EVALUATE / "scores",
    )


def _variants(folder: Path) -> Iterable[Recipe]:
    listed = read_json(folder / "variants.json")
    if not listed:
        return
    summary, per_seed = read_json(folder / "summary.json"), read_json(folder / "per_seed.json")
    trials, curves, precision = (read_rows(folder / f"{name}.csv") for name in ("trials", "curves", "pr_curves"))
    for entry in listed:
        with contents_of(folder / "variants.json"):
            name = entry["name"]
            chosen = entry["choice"]
            choice = Choice.model_validate({**chosen, "seeds": tuple(chosen["seeds"])}) if chosen else None
            final = tuple(Seed(**{key.name: seed[key.name] for key in fields(Seed)}) for seed in entry["seeds"])
            named = {
                s.seed: trial_name(entry["objective"], choice.learning_rate, choice.batch_size, s.seed)
                for s in final
                if choice is not None
            }
            yield Recipe(
                name=name,
                overrides=entry["overrides"],
                objective=entry["objective"],
                similarity=entry["similarity"],
                uses_variance=entry["uses_variance"],
                choice=choice,
                failure=entry["failure"],
                seeds=final,
                failures=tuple((failed["trial"], failed["reason"]) for failed in entry["failures"]),
                trials=_trials(_of(trials, name), folder / "trials.csv"),
                summary=summary.get(name, {}),
                per_seed=_by_seed(per_seed.get(name, {})),
                learning=_learning(_of(curves, name), named, folder / "curves.csv"),
                precision_recall=_precision_recall(_of(precision, name), folder / "pr_curves.csv"),
                scores=folder / "scores" / name,
            )


def trial_name(objective: str, learning_rate: float, batch_size: int, seed: int) -> str:
    """`pipeline.trial.Trial.name`, by which curves.csv names a trial."""
    return f"{objective}-lr{learning_rate:g}-b{batch_size}-s{seed}"


def _dev_first(name: str) -> tuple[bool, str]:
    return name != "dev", name


def _of(rows: Sequence[dict[str, str]], variant: str) -> list[dict[str, str]]:
    return [row for row in rows if row["variant"] == variant]


def _final_seed(entry: Mapping[str, Any], timing: Mapping[str, Any]) -> Seed:
    outcome = entry["outcome"]
    return Seed(
        seed=entry["trial"]["seed"],
        trial=outcome["digest"],
        **{key: outcome[key] for key in ("best_dev_pr_auc", "best_step", "total_steps", "triplets", "same_premise_pairs")},
        seconds=timing["seconds"],
        workers=timing["workers"],
        precision=timing["precision"],
        device=timing.get("device"),
    )


def _by_seed(per_seed: Mapping[str, Any]) -> dict[int, Any]:
    return {int(name.removeprefix("seed-")): sets for name, sets in per_seed.items()}


def _trials(rows: Iterable[dict[str, str]], path: Path) -> tuple[TrialRow, ...]:
    with contents_of(path):
        return tuple(
            TrialRow(
                learning_rate=float(row["learning_rate"]),
                batch_size=int(row["batch_size"]),
                seed=int(row["seed"]),
                best_dev_pr_auc=number(row["best_dev_pr_auc"]),
                **{key: row[key] for key in ("status", "best_step", "total_steps", "trial", "failure")},
            )
            for row in rows
        )


def _learning(rows: Sequence[dict[str, str]], names: Mapping[int, str], path: Path) -> dict[int, tuple[Step, ...]]:
    with contents_of(path):
        return {
            seed: tuple(
                Step(step=int(row["step"]), loss=number(row["loss"]), dev_pr_auc=number(row["dev_pr_auc"]))
                for row in rows
                if row["trial"] == name
            )
            for seed, name in names.items()
        }


def _precision_recall(
    rows: Iterable[dict[str, str]], path: Path
) -> dict[tuple[str, int], tuple[tuple[float, float, float], ...]]:
    found: dict[tuple[str, int], list[tuple[float, float, float]]] = {}
    with contents_of(path):
        for row in rows:
            key = row["set"], int(row["seed"].removeprefix("seed-"))
            found.setdefault(key, []).append((float(row["recall"]), float(row["precision"]), float(row["threshold"])))
    return {key: tuple(points) for key, points in found.items()}
