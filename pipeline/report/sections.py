"""Puts the page together from its sections, in reading order."""

from __future__ import annotations

from pipeline.report.blocks import Block, Page, Section, Text
from pipeline.report.calibration import calibration_section
from pipeline.report.content import Content
from pipeline.report.curves import learning_section, precision_recall_section
from pipeline.report.data import data_section
from pipeline.report.direction import direction_section, similarity_section
from pipeline.report.examples import examples_section
from pipeline.report.grid_section import grid_section
from pipeline.report.measures import Measures
from pipeline.report.overview import overview_section
from pipeline.report.runs import registered_section, runs_section
from pipeline.report.tables import (
    direction_table,
    nli_table,
    parts,
    retrieval_table,
    set_table,
    sts_table,
    task_table,
    text_table,
    writing_table,
)
from pipeline.report.variance import variance_section


def make_page(content: Content, measures: Measures) -> Page:
    """The whole report, from the result files alone."""
    pairs = bool(content.nli_sets) or not content.main.summary
    sections = (
        overview_section(content),
        registered_section(content),
        runs_section(content),
        *([_entailment(content), _direction(content)] if pairs else []),
        _text(content),
        _tasks(content),
        _operators(content),
        grid_section(content),
        _sts(content),
        *([similarity_section(content, measures), precision_recall_section(content, measures)] if pairs else []),
        learning_section(content),
        *(
            [section(content, measures) for section in (direction_section, variance_section, calibration_section)]
            if pairs
            else []
        ),
        examples_section(content) if pairs else None,
        Section(id="data", title="Data", blocks=tuple(data_section(content.profile))),
    )
    variants, seeds = len(content.recipes) - 1, len(content.main.seeds)
    sets = (*content.nli_sets, *content.sts_sets, *content.text_sets, *content.tasks, *content.operation_sets)
    lead = (
        f"{content.main.shown_objective}, {seeds} seed{'s' if seeds > 1 else ''}"
        + (f", compared with {variants} variants" if variants > 1 else ", compared with one variant" if variants else "")
        + f"; scored on {', '.join(sets)}."
    )
    return Page(
        title="Gaussian sentence embeddings: report",
        lead=lead,
        sections=tuple(section for section in sections if section is not None),
        models=tuple((k, recipe.name) for k, recipe in enumerate(content.recipes) if recipe.summary),
        seeds=tuple(sorted({seed for recipe in content.recipes for seed in recipe.per_seed})),
    )


def _entailment(content: Content) -> Section:
    tables = (nli_table(content), *(set_table(content, name, part) for name, part in parts(content.nli_sets).items()))
    return Section(id="nli", title="Entailment against the rest", blocks=tables)


def _direction(content: Content) -> Section:
    tables: list[Block] = [
        table for name, part in parts(content.nli_sets).items() if (table := direction_table(content, name, part)) is not None
    ]
    none = (Text("No set has entailment pairs."),)
    return Section(id="direction", title="Direction of entailment", blocks=tuple(tables) or none)


def _text(content: Content) -> Section | None:
    table = text_table(content)
    return None if table is None else Section(id="text", title="Running text", blocks=(table,))


def _tasks(content: Content) -> Section | None:
    table = task_table(content)
    return None if table is None else Section(id="tasks", title="Transfer tasks", blocks=(table,))


def _operators(content: Content) -> Section | None:
    named = parts(content.operation_sets).items()
    retrieved = [retrieval_table(content, name, part) for name, part in named]
    written = [table for name, part in named if (table := writing_table(content, name, part)) is not None]
    return Section(id="operators", title="Sentence operators", blocks=(*retrieved, *written)) if retrieved else None


def _sts(content: Content) -> Section | None:
    table = sts_table(content)
    return None if table is None else Section(id="sts", title="Graded similarity", blocks=(table,))
