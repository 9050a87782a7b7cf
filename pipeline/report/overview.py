"""The summary, one paragraph and one figure: how well the model recognises entailment and its direction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pipeline.evaluation.running_text import AMONG
from pipeline.report import paper
from pipeline.report.blocks import Section, Text
from pipeline.report.content import Content
from pipeline.report.numbers import percent
from pipeline.report.recipe import Recipe
from pipeline.report.traces import Trace, error_bars, figure, line, style

_MUTED = {"mode": "markers", "marker": {"symbol": "line-ew-open", "size": 22, "line": {"width": 2}}}
_POINT = "%{x}<br>%{y:.1f}<extra></extra>"


def overview_section(content: Content) -> Section:
    """The main recipe compared with its variants, the baselines that ignore meaning, and the paper."""
    registered = content.registered
    sentences = [
        f"{registered['name']} version {registered['version']} is {registered['alias'] or 'neither champion nor challenger'}"
        + ("." if registered["alias"] == "champion" else f"; the champion is version {registered['champion_version']}."),
        *(_sentence(content, name) for name in content.figure_sets),
        *(_text_sentence(content, name) for name in content.text_sets),
        *(_operation_sentence(content, name) for name in content.operation_sets),
    ]
    if not content.figure_sets and (content.text_sets or content.operation_sets):
        return Section(id="summary", title="In short", blocks=(Text(" ".join(sentences)),), text_matters=True)
    picture = figure(
        "summary-figure",
        "Entailment and its direction",
        "Percent, mean ± standard deviation over seeds. Entailment: PR-AUC of entailment against the rest. Direction: how often "
        "the direction of an entailment pair is right (of one-way pairs, where a set tells them). Grey: what ignores meaning, "
        "and the paper's best.",
        list(_traces(content)),
        x={"type": "category"},
        y={"title": {"text": "percent"}},
    )
    return Section(id="summary", title="In short", blocks=(Text(" ".join(sentences)), picture), text_matters=True)


def _sentence(content: Content, set_name: str) -> str:
    """PR-AUC and direction on a set, each with what it is compared with."""
    by = direction_metric(content.main, set_name)
    entailment = {
        **_variants(content, set_name),
        "hypothesis-only": content.hypothesis_only.get(set_name, {}).get("pr_auc"),
        "the paper's best": _papers(set_name, "pr_auc"),
    }
    directed = {
        **_variants(content, set_name, direction=True),
        "counting tokens": _mean(content.main, set_name, _by_length(by)),
        "the paper's best": _papers_direction(set_name, by),
    }
    auc, right = _mean(content.main, set_name, "pr_auc"), _mean(content.main, set_name, by)
    parts = [f"its recipe has a PR-AUC of {percent(auc)}{_in_brackets(entailment)}"] if auc is not None else []
    if right is not None:
        of = "one-way entailment pairs" if "one_way" in by else "entailment pairs"
        parts.append(f"gets the direction of {percent(right)} % of the {of} right{_in_brackets(directed)}")
    return f"On {set_name} {' and '.join(parts) or 'it has no figure'}."


def _text_sentence(content: Content, set_name: str) -> str:
    found = _mean(content.main, set_name, "next_sentence")
    cosine = _mean(content.main, set_name, "next_sentence_cosine")
    others = {"by the cosine of the means": cosine} if cosine != found else {}
    variants = {recipe.name: value for recipe in content.recipes[1:] if (value := _mean(recipe, set_name, "next_sentence"))}
    best = max(variants, key=lambda name: variants[name], default=None)
    untrained = {recipe.name for recipe in content.recipes if recipe.overrides.get("train.epochs") == 0}
    others |= {name: value for name, value in variants.items() if name == best or name in untrained}
    return f"On {set_name} its recipe finds {percent(found)} % of the next sentences among {AMONG}{_in_brackets(others)}."


def _operation_sentence(content: Content, set_name: str) -> str:
    right = _mean(content.main, set_name, "operator_recall")
    others = {"with arithmetic operators": _mean(content.main, set_name, "arithmetic_recall")}
    exact = _mean(content.main, set_name, "exact")
    decoded = "" if exact is None else f"; its decoder writes exactly the target for {percent(exact)} %"
    return f"On {set_name} its operators rank the target first for {percent(right)} % of the rows{_in_brackets(others)}{decoded}."


def direction_metric(recipe: Recipe, set_name: str) -> str:
    """The direction that counts on a set: of one-way pairs where they are known, by the head's score if there is one."""
    subset = "one_way_" if recipe.numbers(set_name, "direction.one_way_pairs") else ""
    return next(
        (name for by in ("score", "sim") if recipe.numbers(set_name, name := f"direction.{subset}{by}")), f"direction.{subset}sim"
    )


def _traces(content: Content) -> Iterable[Trace]:
    sets = content.figure_sets
    for k, recipe in enumerate(content.recipes):
        points = [
            (f"{name}: {what}", recipe.numbers(name, metric))
            for name in sets
            for what, metric in (("entailment", "pr_auc"), ("direction", direction_metric(recipe, name)))
        ]
        defined_points = [(label, numbers) for label, numbers in points if numbers is not None]
        if defined_points:
            yield line(
                [label for label, _ in defined_points],
                [numbers["mean"] for _, numbers in defined_points],
                name=recipe.name,
                meta={"model": k, "colour": f"s{k % 8}"},
                hover=_POINT,
                look={"mode": "markers", "marker": {**style(k)["marker"], "size": 11}},
                **error_bars([numbers.get("sd") for _, numbers in defined_points]),
            )
    grey: dict[str, dict[str, float | None]] = {"hypothesis-only, counting tokens": {}, "the paper's best": {}}
    for name in sets:
        by = direction_metric(content.main, name)
        grey["hypothesis-only, counting tokens"] |= {
            f"{name}: entailment": content.hypothesis_only.get(name, {}).get("pr_auc"),
            f"{name}: direction": _mean(content.main, name, _by_length(by)),
        }
        grey["the paper's best"] |= {
            f"{name}: entailment": _papers(name, "pr_auc"),
            f"{name}: direction": _papers_direction(name, by),
        }
    for name, values in grey.items():
        points = [(label, value) for label, value in values.items() if value is not None]
        if points:
            x, y = [label for label, _ in points], [value for _, value in points]
            yield line(x, y, name=name, meta={"colour": "muted"}, hover=_POINT, look=_MUTED)


def _variants(content: Content, set_name: str, *, direction: bool = False) -> dict[str, float | None]:
    """The best variant by PR-AUC or by its direction, and simcse if it is one."""
    values = {
        recipe.name: _mean(recipe, set_name, direction_metric(recipe, set_name) if direction else "pr_auc")
        for recipe in content.recipes[1:]
    }
    known = {name: value for name, value in values.items() if value is not None}
    if not known:
        return {}
    best = max(known, key=lambda name: known[name])
    return {name: known[name] for name in known if name == best or name == "simcse"}


def _papers(set_name: str, metric: str) -> float | None:
    figures = [paper.figure(objective, set_name, metric) for objective in paper.OBJECTIVES]
    return max((float(value) for value in figures if value is not None), default=None)


def _papers_direction(set_name: str, by: str) -> float | None:
    """The paper's direction on a set; None for one-way pairs, because the paper counts all entailment pairs."""
    return None if "one_way" in by else _papers(set_name, "direction.sim")


def _by_length(by: str) -> str:
    return "direction.one_way_length_only" if "one_way" in by else "direction.length_only"


def _mean(recipe: Recipe, set_name: str, metric: str) -> float | None:
    numbers = recipe.numbers(set_name, metric)
    return numbers["mean"] if numbers else None


def _in_brackets(others: Mapping[str, float | None]) -> str:
    listing = ", ".join(f"{name} {percent(value)}" for name, value in others.items() if value is not None)
    return f" ({listing})" if listing else ""
