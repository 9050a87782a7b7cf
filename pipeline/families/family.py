"""The interface of a family of models: all that the other rooms know of pairs, running text and operation rows.

A family is a folder with parts, modules of fixed names. Other rooms ask for a part by `part`, never by an import:

- `params`: `FAMILY`, and the parameter types of its objectives; imports no torch.
- `prepare`: what it does in stage prepare (`pipeline.families.prepare`).
- `sets`: `SETS`, the kinds of sets that its models are scored on (`pipeline.evaluation.set_kind`).
- `card.txt`: what a model card says of its models; `calibration`: `calibration_of`, the threshold of a family with labels.
- `report`: its tables and figures (`pipeline.report.tables`).
- `encoder`: `Encoder`, a subclass of `GaussianEncoder` with the methods of its models, if they have more.
- `queries`, `command_NAME`: options of `gausscse search`, and commands, if it has some.
- `relation_store`, `real_probe`: the relation head of a family with labels, and its probe on real sentences.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.config.data_params import DataParams
    from pipeline.config.objective import ObjectiveSection

NAMES = ("pairs", "text", "operations")
"""The folders, in the order in which their tables and sets are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A metric of a scored set, in percent."""

    label: str
    """Its heading in a model card; empty if the card does not show it."""
    short: str = ""
    """Its name for people, if it can decide which model is better (`register.metric`)."""
    needs: str = ""
    """The rows that it needs, if it can decide."""
    headline: bool = False
    """True if `dvc metrics`, MLflow's runs and the tags of a version have it. The files of results have all."""
    unless: str = ""
    """The metric that is the headline instead, where a set has it."""
    printed: bool = True
    """Whether stage evaluate prints it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The facts about a family."""

    name: str
    """Its folder."""
    row_kind: str
    """The rows that its objectives train on: a key of `pipeline.data.token_store.ROW_KINDS`."""
    rows: str
    """What they are called, such as "pairs"."""
    keys: str
    """The keys of section data that name them."""
    groups: str
    """What the bootstrap draws whole, such as "premises"."""
    dev: str
    promotion: str
    """Its sets in the two parts of the development set."""
    sets: tuple[str, ...]
    """Its kinds of sets: keys of a token store's manifest."""
    metrics: Mapping[str, Metric]
    """In the order in which they are shown; the first of `guarded` that a test set has may drop only a little."""
    guarded: tuple[str, ...]
    direction: str = ""
    """The metric of direction, which may drop by `register.max_direction_drop` on the promotion set; empty if there is none."""
    encoder: str = ""
    """The capability of models whose encoder is `Encoder` of its part `encoder`; empty if there is none."""
    queries: bool = False
    """Whether its part `queries` has options of `gausscse search`."""
    labelled: bool = False
    """Whether its rows have labels: its part `relation_store` fits a relation head (`model.relation_head`), and `calibration_of`
    of its part `calibration` gives models a threshold."""
    blind: str = ""
    """The metric by which a card shows the baseline of profile.json that sees only a part of a row; empty if there is none."""
    commands: Mapping[str, str] = field(default_factory=dict)
    """Commands of `gausscse`, which are parts of the family: name → what it does, in words."""
    unused: Mapping[str, str]
    """Keys of section train that have no effect with its objectives, and the value that they then must have."""
    has: Callable[[DataParams], bool]
    """Whether section data names its rows, to train on."""
    reads: Callable[[DataParams], bool]
    """Whether section data names a set of it, to train on or to score."""
    profiled: str
    """The key of profile.json that it always writes."""
    objectives: tuple[type[ObjectiveSection], ...]


def part(family: Family | str, name: str) -> Any:
    """A part of a family. The digests of code count a call as an import of that part of every family (`identity.source`)."""
    return import_module(f"pipeline.families.{family if isinstance(family, str) else family.name}.{name}")


@cache
def families() -> tuple[Family, ...]:
    """All families."""
    return tuple(part(name, "params").FAMILY for name in NAMES)


def used(data: DataParams) -> list[Family]:
    """The families whose rows section data names."""
    return [family for family in families() if family.has(data)]


def family_named(name: str) -> Family:
    """The family in this folder."""
    return families()[NAMES.index(name)]


def all_metrics() -> dict[str, Metric]:
    """The metrics of all families."""
    return {name: metric for family in families() for name, metric in family.metrics.items()}


def deciding_metrics() -> dict[str, str]:
    """The values of `register.metric`: metric → its name for people."""
    return {name: metric.short for name, metric in all_metrics().items() if metric.short}


def family_of(metric: str) -> Family:
    """The family whose sets a deciding metric is measured on."""
    return next(family for family in families() if metric in family.metrics and family.metrics[metric].short)


def dev_sets() -> tuple[str, ...]:
    """The sets of the development part, the first family's first."""
    return tuple(family.dev for family in families())


def promotion_sets() -> tuple[str, ...]:
    """The sets of the promotion part."""
    return tuple(family.promotion for family in families())
