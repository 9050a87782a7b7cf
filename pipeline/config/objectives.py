"""The parameter types of all objectives: those of the families, and those of installed packages."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from importlib.metadata import entry_points
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, get_args

from pydantic import Field, TypeAdapter

from pipeline.config.objective import ObjectiveSection
from pipeline.families.family import NAMES, Family, families, family_named

GROUP = "gausscse.objectives"
"""The entry point group in which a package names the parameter types of its objectives."""


BROKEN: list[str] = []
"""What is wrong with the entry points, in one line each; whatever reads parameters refuses to go on."""


def _of_packages() -> list[type[ObjectiveSection]]:
    kinds: list[type[ObjectiveSection]] = []
    known = {name for family in families() for kind in family.objectives for name in names_of(kind)}
    for point in sorted(entry_points(group=GROUP), key=lambda one: one.name):
        fault = ""
        try:
            kind = point.load()
            if not (isinstance(kind, type) and issubclass(kind, ObjectiveSection)):
                fault = "is not a subclass of ObjectiveSection"
            elif not names_of(kind):
                fault = "declares no name: Literal[...]"
            elif getattr(kind, "family", None) not in NAMES:
                fault = f"has no family of {', '.join(NAMES)}"
            elif taken := known & names_of(kind):
                fault = f"has the name {min(taken)!r}, which another objective has"
            else:
                known |= names_of(kind)
                kinds.append(kind)
        except Exception as error:
            fault = f"cannot be loaded: {type(error).__name__}: {error}"
        if fault:
            BROKEN.append(f"entry point {point.name} of {GROUP} ({point.value}) {fault}")
    return kinds


def names_of(kind: type[ObjectiveSection]) -> set[str]:
    """The names that select a parameter type."""
    return {*get_args(kind.model_fields["name"].annotation)}


KINDS = (*(kind for family in families() for kind in family.objectives), *_of_packages())
"""All parameter types."""

if TYPE_CHECKING:
    ObjectiveParams = ObjectiveSection
else:
    ObjectiveParams = Annotated[reduce(or_, KINDS), Field(discriminator="name", description="The loss.")]
_ANY: TypeAdapter[ObjectiveParams] = TypeAdapter(ObjectiveParams)


def kinds_named(name: object) -> list[type[ObjectiveSection]]:
    """The parameter type that a name selects; empty if none has the name."""
    return [kind for kind in KINDS if name in names_of(kind)]


def objective_keys(name: object) -> frozenset[str]:
    """The keys of the objective with this name; the keys of all objectives if none has the name."""
    return frozenset(key for kind in kinds_named(name) or KINDS for key in kind.model_fields)


def family_trained_by(name: object) -> Family | None:
    """The family that the objective with this name trains on; None if none has the name."""
    return next((family_named(kind.family) for kind in kinds_named(name)), None)


def own_keys(given: Mapping[str, Any]) -> ObjectiveParams:
    """Validate section `objective`, ignoring keys that the named objective does not have.

    Raises:
        pydantic.ValidationError: the name is not an objective, or a key is missing or wrong.
    """
    keys = objective_keys(given.get("name"))
    return _ANY.validate_python({key: value for key, value in given.items() if key in keys})
