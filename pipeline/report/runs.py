"""The sections on the registered model and on the runs: recipes, seeds, data, parameters, versions, trials."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from pipeline.config.params import METRIC_NAMES
from pipeline.report.blocks import Block, Cell, Column, Details, Row, Section, Table, Text, plain_table
from pipeline.report.content import Content
from pipeline.report.numbers import NONE, count, mean_sd, over, percent, rate
from pipeline.report.recipe import Recipe, Seed
from pipeline.trials.progress_log import duration

_DIGITS = 12
"""Number of digits shown of a digest; the files have all of them."""


def registered_section(content: Content) -> Section:
    """The section on the registry's decision and its reasons."""
    registered = content.registered
    metric = METRIC_NAMES[registered["metric"]]
    rows = [
        ("model", f"{registered['name']} version {registered['version']} ({registered['model_uri']})"),
        ("alias", str(registered["alias"] or "none")),
        ("why", str(registered["reason"])),
        (f"development {metric} of this version", percent(registered["dev_score"], 2)),
        (f"promotion {metric} of the champion it was compared with", percent(registered["previous_champion_score"], 2)),
        ("champion now", f"version {registered['champion_version']}"),
        *([("to make this version champion again", registered["rollback"])] if registered.get("rollback") else []),
    ]
    return Section(
        id="registered",
        title="What was registered, and why",
        blocks=(
            Text(
                f"{registered['name']} version {registered['version']} is {_standing(registered['alias'])}: "
                f"{registered['reason']}."
            ),
            plain_table("registered-table", "The registry's decision", "", ["", "decision"], rows),
            *_checks(registered["decision"]),
            Text(
                f"The version is the best seed of the main recipe by development {metric}; variants are compared, not registered."
            ),
        ),
    )


def _standing(alias: str | None) -> str:
    return f"the {alias}" if alias else "neither champion nor challenger"


def _checks(decision: Mapping[str, Any] | None) -> list[Block]:
    """The conditions of the rule, one by one; empty if the rule was not applied."""
    if not decision or "checks" not in decision:
        return []
    rows = [(check["name"], "yes" if check["passed"] else "no", check["said"]) for check in decision["checks"]]
    caption = f"Compared with version {decision['champion']}, on the same pairs, scored by the same code."
    return [
        plain_table(
            "registered-checks", "The rule, condition by condition", caption, ["condition", "met", "what was found"], rows
        )
    ]


def runs_section(content: Content) -> Section:
    """The section with everything that a reader needs to repeat the runs."""
    seconds = sum(seed.seconds for recipe in content.recipes for seed in recipe.seeds)
    blocks: list[Block] = [
        Text(
            f"Written at commit {content.commit}. Training of the final models below took {duration(seconds)} in all, with the "
            "scorings of the development set; a trial that several recipes share counts in each. Data and trials are named by "
            "digests of what they are made of."
        ),
        _recipes(content.recipes),
        _failures(content.recipes),
        Details("Final models, seed by seed", (_seeds(content.recipes),)),
        Details("Data, by content", (_data(content.profile),)),
        Details("Parameters (params.yaml)", (_parameters(content.params),)),
        Details(
            "Versions",
            (
                plain_table(
                    "versions",
                    "Versions",
                    "Of the environment that wrote this report.",
                    ["", "version"],
                    content.versions.items(),
                ),
            ),
        ),
    ]
    return Section(id="runs", title="What was run", blocks=tuple(b for b in blocks if not (isinstance(b, Table) and not b.rows)))


def _recipes(recipes: Iterable[Recipe]) -> Table:
    rows: list[Row] = []
    for recipe in recipes:
        chosen = recipe.choice
        texts = [
            recipe.name,
            recipe.shown_objective,
            ", ".join(f"{key}: {_value(value)}" for key, value in recipe.overrides.items()) or NONE,
            rate(chosen.learning_rate) if chosen else NONE,
            str(chosen.batch_size) if chosen else NONE,
            mean_sd(_dev(recipe.seeds), 2) if recipe.seeds else NONE,
            ", ".join(str(seed.seed) for seed in recipe.seeds) or NONE,
            duration(sum(seed.seconds for seed in recipe.seeds)) if recipe.seeds else NONE,
        ]
        rows.append(Row(cells=tuple(Cell(text=text) for text in texts)))
    names = ["recipe", "objective", "differs in", "learning rate", "batch", "best development score", "seeds", "training time"]
    return Table(
        id="recipes",
        title="Recipes",
        caption="The main recipe is params.yaml; a variant differs in the keys named. Learning rate and batch size are those "
        "that its grid chose. Best development score as seen in training, mean ± standard deviation over seeds.",
        columns=tuple(Column(name=name, number=i > 2) for i, name in enumerate(names)),
        rows=tuple(rows),
    )


def _dev(seeds: Iterable[Seed]) -> dict[str, float]:
    return over([seed.best_dev_score for seed in seeds])


def _failures(recipes: Iterable[Recipe]) -> Table:
    rows = [[r.name, NONE, r.failure] for r in recipes if r.failure]
    rows += [[r.name, trial, reason] for r in recipes for trial, reason in r.failures]
    header = ["recipe", "trial", "reason"]
    return plain_table("failures", "What failed", "Nothing is left out: every recipe and trial that failed.", header, rows)


def same_source(seed: Seed, recipe: Recipe) -> str:
    """The pairs, and their share of all pairs of rows that meet in a batch; of running text, that is CURL's τ of the batches."""
    if recipe.choice is None or not seed.total_steps:
        return count(seed.same_source_pairs)
    # In an epoch, the sizes of the batches differ by at most one.
    steps = math.ceil(seed.rows / recipe.choice.batch_size)
    small, larger = divmod(seed.rows, steps)
    pairs = (steps - larger) * small * (small - 1) + larger * (small + 1) * small
    share = 100 * seed.same_source_pairs / (seed.total_steps / steps * pairs) if pairs else 0.0
    return f"{count(seed.same_source_pairs)} ({percent(share)} %)"


def _seeds(recipes: Iterable[Recipe]) -> Table:
    rows = [
        [
            recipe.name,
            str(seed.seed),
            percent(seed.best_dev_score, 2),
            f"{seed.best_step}/{seed.total_steps}",
            count(seed.rows),
            same_source(seed, recipe),
            duration(seed.seconds),
            str(seed.workers),
            seed.precision or NONE,
            (seed.device or NONE) + (f", {seed.threads} threads" if seed.threads and seed.threads > 1 else ""),
            seed.trial[:_DIGITS],
        ]
        for recipe in recipes
        for seed in recipe.seeds
    ]
    names = [
        "recipe",
        "seed",
        "best development score",
        "at step",
        "rows",
        "pairs of one premise or document in a batch",
        "time",
        "workers",
        "precision",
        "device",
    ]
    caption = (
        "Time is that of training with its scorings; precision that of the products, fp32 where bf16 was asked for and a "
        "processor has none. The trial's digest is that of everything that determines its weights."
    )
    return plain_table("seeds", "Final models", caption, [*names, "trial"], rows)


def _data(profile: Mapping[str, Any]) -> Table:
    rows = [[name, count(about["rows"]), about["sha256"]] for name, about in sorted(profile["files"].items())]
    caption = f"Files of data/prepared, made of source {profile['source']}, with the SHA-256 of their bytes."
    table = plain_table("data-files", "Data", caption, ["file", "rows", "SHA-256"], rows)
    return _monospaced(table, 2)


def _parameters(params: Mapping[str, Any]) -> Table:
    rows = [[f"{section}.{key}", _value(value)] for section, keys in params.items() for key, value in keys.items()]
    return _monospaced(plain_table("parameters", "Parameters", "", ["key", "value"], rows), 0)


def _monospaced(table: Table, column: int) -> Table:
    rows = tuple(
        Row(cells=tuple(Cell(text=cell.text, code=i == column) for i, cell in enumerate(row.cells)), kind=row.kind)
        for row in table.rows
    )
    return Table(id=table.id, title=table.title, caption=table.caption, columns=table.columns, rows=rows, notes=table.notes)


def _value(value: Any) -> str:
    if isinstance(value, float):
        return rate(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
