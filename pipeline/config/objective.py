"""Base of the parameter types of objectives: section `objective` of params.yaml, whose name selects the type."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, ClassVar, Literal

from pipeline.config.types import Section
from pipeline.families.family import family_named

if TYPE_CHECKING:
    from pipeline.config.params import Params
    from pipeline.families.objective import Objective

SimilarityKind = Literal["kl", "kl-dimwise"]


class ObjectiveSection(Section):
    """The keys of an objective. A subclass declares `name` as a literal: the name or names that select it.

    One in a package of yours is found by the entry point group `gausscse.objectives` (docs/tutorials/own-objective.md).
    """

    family: ClassVar[str]
    """The family whose rows it trains on: a folder of pipeline/families."""
    score_name: ClassVar[str]
    """Key of the development score that selects models, in histories and config.json."""

    name: str

    @property
    def row_kind(self) -> str:
        """The rows that it trains on (`Family.row_kind`)."""
        return family_named(self.family).row_kind

    @property
    def gaussian_similarity(self) -> SimilarityKind | None:
        """The similarity of Gaussians that is trained; None if the objective does not use variances."""
        return None

    @property
    def shown_similarity(self) -> str:
        """What compares two sentences in the loss."""
        return self.gaussian_similarity or "cosine"

    @property
    def capabilities(self) -> tuple[str, ...]:
        """What a model of this objective can do besides encoding and comparing, as its config.json lists it."""
        return ()

    @property
    def sentences_per_row(self) -> int:
        """The most sentences of a row."""
        return 1

    def check(self, params: Params) -> None:
        """Check keys of other sections that the objective needs.

        Raises:
            WrongKey: a key does not fit.
        """

    implementation: ClassVar[str] = ""
    """MODULE:CLASS of the objective, made with these keys as `params`. It is loaded only where it is made: a stage that
    trains nothing does not depend on its code."""

    def make(self) -> Objective:
        """The objective that these keys describe. A subclass in a package of yours may make it itself."""
        module, _, name = self.implementation.partition(":")
        return getattr(import_module(module), name)(params=self)
