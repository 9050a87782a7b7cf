"""Puts the page together in reading order, and writes it with the points of its figures."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

from pipeline.families.family import deciding_metrics, families, family_of, part
from pipeline.families.prepare import warnings
from pipeline.report import differences, page
from pipeline.report.differences import Difference
from pipeline.report.results import Recipe, Results, Seed, TrialRow
from pipeline.report.tables import QUOTED, Headline, opening
from pipeline.trials.progress_log import duration
from pipeline.trials.trial import score_label

_SELECTION = (
    "A selection score is measured in training, on the development set, before any relation head; it selects steps and points of "
    "the grid. The dev figure is that of the finished model."
)
HTML, MARKDOWN, SERIES = "index.html", "report.md", "curves"


def write_report(results: Results, folder: Path, found: Sequence[Difference] = ()) -> None:
    """Write index.html and report.md, both from the same sections, the points of the figures into curves/, and the differences
    between recipes that were found, as csv and LaTeX.

    Raises:
        UserError: a result file is missing or damaged.
    """
    seeds, variants = len(results.main.seeds), len(results.recipes) - 1
    sets = ", ".join(results.main.summary) or "no set"
    lead = f"{_objective(results.main)}; seeds: {seeds}; variants: {variants}; scored on {sets}."
    (folder / SERIES).mkdir()
    parts = "Gaussian sentence embeddings: report", lead, _sections(results, folder / SERIES, found)
    differences.write(found, folder)
    (folder / HTML).write_text(page.as_html(*parts), encoding="utf-8")
    (folder / MARKDOWN).write_text(page.as_markdown(*parts), encoding="utf-8")


def _sections(results: Results, series: Path, found: Sequence[Difference]) -> list[page.Section]:
    """Everything, in reading order."""
    registered, recipes = results.registered, results.recipes
    decides = family_of(registered["metric"])
    # The family of the metric that decides opens the page.
    ordered = sorted(families(), key=lambda family: family != decides)
    shown = [part(family, "report") for family in ordered if family.profiled in results.profile]
    every = [headline for one in shown for headline in one.headlines(results)]
    figures, headlines = opening(results, every)
    # As stage register chose it.
    seed = max(results.main.per_seed, key=lambda seed: results.main.per_seed[seed][decides.dev][registered["metric"]])
    verdicts = [text for one in every if (text := _verdict(results, one, seed))]
    blocks: list[page.Block] = [page.Lines("Verdict", tuple(verdicts[:1])), _decision(registered, len(results.main.seeds))]
    blocks += [block for one in shown if (champion := getattr(one, "champion", None)) for block in champion(results, seed)]
    blocks += [page.Lines("Try next", _next_steps(results)), page.Lines("Warning", tuple(warnings(results.profile)))]
    return [
        page.Section("summary", "In short", (*blocks, *([tuple(figures)] if figures else []), *headlines)),
        _registered(registered),
        page.Section("recipes", "Recipes", (*_recipes(results), *differences.table(found), *_failures(recipes))),
        # Of every family: dvc.yaml names the files of their points.
        *(section for family in families() for section in part(family, "report").sections(results, series)),
        _grids(recipes),
        _learning(recipes),
        page.Section("data", "Data", tuple(table for one in shown for table in one.data(results.profile))),
        _repeat(results),
    ]


def _version(registered: Mapping[str, Any]) -> str:
    other = f" (the champion is version {registered['champion_version']})" if registered["alias"] != "champion" else ""
    alias = f"the {registered['alias']}" if registered["alias"] else "neither champion nor challenger"
    return f"{registered['name']} version {registered['version']}, {alias}{other},"


def _decision(registered: Mapping[str, Any], seeds: int) -> str:
    """Its development figure, and why it is what it is."""
    score = f"dev {deciding_metrics()[registered['metric']]} {page.percent(registered['dev_score'], 2)}"
    chosen = f", the highest of {seeds} seeds" if seeds > 1 else ""
    back = f" To make it champion again: {registered['rollback']}" if registered.get("rollback") else ""
    return f"It has {score}{chosen}. Why it is {registered['alias'] or 'neither'}: {registered['reason']}.{back}"


def _verdict(results: Results, headline: Headline, seed: int) -> str:
    """One sentence: what the registered version is better than, and what not; empty without figures."""
    figures: list[str] = []
    worse: dict[str, list[str]] = {}
    for measure in headline.measures:
        rivals = {name: row.get(measure.key) for name, row in headline.baselines.items() if not name.startswith(QUOTED)}
        rivals |= {recipe.name: recipe.mean(*measure.key) for recipe in results.recipes[1:]}
        known = {name: value for name, value in rivals.items() if value is not None}
        value = results.main.per_seed[seed].get(measure.set_name, {}).get(measure.metric)
        if value is not None and known:
            name = max(known, key=lambda one: known[one])
            figures.append(f"{page.share(value)} on {measure.heading} (next: {name}, {page.share(known[name])})")
            for name in known:
                worse.setdefault(name, []).extend([measure.heading] if known[name] >= value else [])
    beaten = [name for name, sets in worse.items() if not sets]
    parts = [f"better than {_listed(beaten)}"] if beaten else []
    parts += [f"not better than {name} on {_listed(sets)}" for name, sets in worse.items() if sets]
    missing = "".join(f"; {name} was not trained (experiments.variants)" for name, row in headline.baselines.items() if not row)
    version = _version(results.registered)
    return f"{version} is {', '.join(parts)}: {headline.title} {', '.join(figures)}{missing}." if figures else ""


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _next_steps(results: Results) -> tuple[str, ...]:
    """The changes that the results suggest to try next."""
    main, tune = results.main, results.params.get("tune", {})
    steps: list[str] = []
    if main.seeds and all(seed.best_step == seed.total_steps for seed in main.seeds):
        steps.append(
            "the curve still rises: the selection score was best at the last step of each seed; train longer (train.epochs)"
        )
    for key, chosen in (("learning_rates", "learning_rate"), ("batch_sizes", "batch_size")):
        tried = tune.get(key, ())
        if main.choice and len(tried) > 1 and (value := getattr(main.choice, chosen)) in (min(tried), max(tried)):
            steps.append(f"the grid chose {value:g}, the end of tune.{key}: search beyond it")
    counts = results.profile.get("train", {}).get("counts", {})
    unused = counts.get("triplets", 0) - counts.get("triplets_with_contradiction", 0)
    if unused and results.params.get("train", {}).get("triplets") == "with-contradiction":
        steps.append(f"{unused:,} of {counts['triplets']:,} triplets lack a contradiction and are not used (train.triplets: all)")
    cut, sentences = results.cut
    if cut:
        longest = f"model.max_length: {results.params['model']['max_length']}"
        share = page.share(100 * cut / sentences)
        steps.append(f"{cut:,} of {sentences:,} sentences ({share}) are cut, since they are longer than {longest}: raise it")
    return tuple(steps)


def _objective(recipe: Recipe) -> str:
    return f"{recipe.objective} ({recipe.similarity})"


def _registered(registered: Mapping[str, Any]) -> page.Section:
    """The model, and the conditions of the registry's rule one by one."""
    about = f"The best seed of the main recipe is {registered['model_uri']}; variants are compared, not registered."
    decision = registered["decision"] or {}
    columns = {
        "condition": lambda check: check["name"],
        "met": lambda check: "yes" if check["passed"] else "no",
        "what was found": lambda check: check["said"],
    }
    caption = f"Compared with version {decision.get('champion')}, on the same pairs, scored by the same code."
    checks = page.table("registered-checks", "The rule, condition by condition", caption, columns, decision.get("checks", ()))
    return page.Section("registered", "What was registered, and why", (about, *checks))


def _recipes(results: Results) -> list[page.Table]:
    metric = results.registered["metric"]
    columns: dict[str, Callable[[Recipe], object]] = {
        "recipe": lambda r: r.name,
        "objective": _objective,
        "differs in": lambda r: ", ".join(f"{key}: {_value(value)}" for key, value in r.overrides.items()) or page.NONE,
        "learning rate": lambda r: f"{r.choice.learning_rate:g}" if r.choice else page.NONE,
        "batch": lambda r: r.choice and r.choice.batch_size,
        f"dev {deciding_metrics()[metric]}": lambda r: page.seeds_cell(r.by_seed(family_of(metric).dev, metric), 2),
        "seeds": lambda r: ", ".join(str(seed.seed) for seed in r.seeds) or page.NONE,
        "training time": lambda r: duration(sum(seed.seconds for seed in r.seeds)) if r.seeds else page.NONE,
    }
    caption = (
        "The main recipe is params.yaml; a variant differs in the keys named. Learning rate and batch size are those that its "
        "grid chose. The figure on the development set is that of stage evaluate, mean ± standard deviation over seeds."
    )
    return page.table("recipes-table", "Recipes", caption, columns, results.recipes)


def _failures(recipes: Iterable[Recipe]) -> list[page.Table]:
    rows: list[tuple[str, str, str]] = []
    for recipe in recipes:
        rows += [(recipe.name, "all", recipe.failure)] if recipe.failure else []
        failed = [row for row in recipe.trials if row.status == "failed"]
        rows += [(recipe.name, f"rate {t.learning_rate:g}, batch {t.batch_size}, seed {t.seed}", t.failure or "") for t in failed]
    columns = {"recipe": itemgetter(0), "trial": itemgetter(1), "reason": itemgetter(2)}
    return page.table("failures", "What failed", "Every recipe and trial that failed.", columns, rows)


def _grids(recipes: Iterable[Recipe]) -> page.Section:
    """Table 3 for each recipe with more than one point."""
    blocks: list[page.Block] = []
    for k, recipe in enumerate(recipes):
        points: dict[tuple[float, int], list[TrialRow]] = {}
        for row in recipe.trials:
            # Trials with other seeds than the choice used were run after it.
            if recipe.choice is None or row.seed in recipe.choice.seeds:
                points.setdefault((row.learning_rate, row.batch_size), []).append(row)
        blocks += [_grid(recipe, points, k)] if len(points) > 1 else []
    return page.Section(
        "grid", "Learning rate and batch size", tuple(blocks) or ("Every grid had one point: nothing was searched.",)
    )


def _grid(recipe: Recipe, points: Mapping[tuple[float, int], list[TrialRow]], number: int) -> page.Table:
    chosen = (recipe.choice.learning_rate, recipe.choice.batch_size) if recipe.choice else None
    rates, sizes = sorted({rate for rate, _ in points}), sorted({size for _, size in points})

    def cell(at: tuple[float, int]) -> page.Cell:
        states = [row.status for row in points.get(at, ())]
        if {*states} != {"finished"}:
            return page.Cell(", ".join(f"{states.count(state)} {state}" for state in sorted({*states})) or page.NONE)
        found = page.seeds_cell({row.seed: row.best_dev_score for row in points[at] if row.best_dev_score is not None}, 2)
        return replace(found, best=at == chosen)

    rows = [page.Row((page.Cell(f"{rate:g}"), *(cell((rate, size)) for size in sizes))) for rate in rates]
    return page.Table(
        id=f"table-3-{number}",
        title=f"Table 3. Grid of {recipe.name}",
        caption=f"Best {score_label(recipe.score_name)} in percent by peak learning rate (rows) and batch size (columns), "
        f"mean ± standard deviation over seeds. {_SELECTION} A point with a seed that failed or was stopped cannot be chosen.",
        header=("learning rate", *(f"batch {size}" for size in sizes)),
        rows=tuple(rows),
        notes=("Bold: the chosen point, which has the highest mean.",),
    )


def _learning(recipes: Iterable[Recipe]) -> page.Section:
    figures: list[page.Figure] = []
    for key, title in (("dev_score", "selection score"), ("loss", "training loss")):
        curves = {
            r.name: [
                {row.step: (row.step, y) for row in rows if (y := getattr(row, key)) is not None} for rows in r.learning.values()
            ]
            for r in recipes
        }
        if traces := page.mean_lines(curves):
            x, y = {"title": "step", "rangemode": "tozero"}, {"title": title}
            figures.append(page.figure(f"learning-{key}", title[0].upper() + title[1:], "Of the final models.", traces, x=x, y=y))
    text = f"Mean over seeds ± one standard deviation. {_SELECTION} The best step's weights are kept, not the last."
    return page.Section("learning", "Learning curves", (text, tuple(figures)) if figures else ("No model was trained.",))


def _repeat(results: Results) -> page.Section:
    """Everything else that a reader needs to repeat the runs."""
    finals = [(recipe, seed) for recipe in results.recipes for seed in recipe.seeds]
    columns: dict[str, Callable[[tuple[Recipe, Seed]], object]] = {
        "recipe": lambda one: one[0].name,
        "seed": lambda one: one[1].seed,
        "best selection score": lambda one: page.percent(one[1].best_dev_score, 2),
        "at step": lambda one: f"{one[1].best_step}/{one[1].total_steps}",
        "rows": lambda one: one[1].rows,
        "pairs of one premise or document in a batch": lambda one: one[1].same_source_pairs,
        "time": lambda one: duration(one[1].seconds),
        "workers": lambda one: one[1].workers,
        "precision": lambda one: one[1].precision,
        "device": lambda one: f"{one[1].device or page.NONE}" + (f", {n} threads" if (n := one[1].threads or 1) > 1 else ""),
        # The files have all digits.
        "trial": lambda one: one[1].trial[:12],
    }
    about = (
        f"{_SELECTION} Time includes the scorings; precision is that of the products: fp32 where bf16 was asked for and a "
        "processor has none. The trial's digest is that of everything that determines its weights."
    )
    keys = [(f"{name}.{key}", _value(value)) for name, section in results.params.items() for key, value in section.items()]
    took = duration(sum(seed.seconds for _, seed in finals))
    text = (
        f"Training of the final models took {took} in all; a trial that several recipes share counts in each. The git commit of "
        "the code is in the pipeline's run in MLflow."
    )
    blocks = [
        *page.table("seeds", "Final models", about, columns, finals, folded=True),
        *page.table(
            "parameters", "Parameters", "As in params.yaml.", {"key": itemgetter(0), "value": itemgetter(1)}, keys, folded=True
        ),
    ]
    return page.Section("repeat", "To repeat it", (text, *blocks))


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
