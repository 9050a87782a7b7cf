"""Supervised SimCSE: contrastive learning of the means alone.

Shapes: n triplets in the global batch (all workers together), n_r of them on this worker, D dimensions.
"""

# pyright: strict, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
# (torch, scipy and sklearn leave some of their functions untyped)

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.distributed import collectives
from pipeline.families.candidates import Hidden, Role, allowed, cross_entropy, roles_of
from pipeline.families.pairs.params import SimcseParams
from pipeline.families.pairs.triplets import TripletObjective
from pipeline.gaussian.distribution import Gaussian


@dataclass(frozen=True, slots=True, kw_only=True)
class SimCSEObjective(TripletObjective):
    """`simcse`: supervised SimCSE, the cosine of the means over blocks E and C (and N); the variances are not used."""

    temperature: float
    reduction: Literal["mean", "sum"] = "mean"
    neutrals: bool = False

    @staticmethod
    def of(params: SimcseParams) -> SimCSEObjective:
        """The objective of these keys."""
        return SimCSEObjective(temperature=params.temperature, reduction=params.reduction, neutrals=params.neutral_block)

    @property
    def roles(self) -> tuple[Role, ...]:
        return roles_of(contradictions=True, neutrals=self.neutrals)

    @property
    def similarity(self) -> None:
        return None

    @property
    def uses_variance(self) -> bool:
        return False

    def loss(
        self, roles: list[Gaussian], present: list[Tensor], n: int, hidden: Hidden, modules: nn.Module | None = None
    ) -> Tensor:
        unit = [F.normalize(role.mean) for role in roles]
        everyone = collectives.gather_rows(torch.stack(unit[1:], 1), n)
        cosines = unit[0] @ torch.cat(everyone.unbind(1)).T
        return cross_entropy(cosines, self.temperature, n, allowed(present[2:], n), hidden.get("E"))

    def score(self, premise: Gaussian, hypothesis: Gaussian) -> Tensor:
        return F.cosine_similarity(premise.mean, hypothesis.mean, dim=-1)
