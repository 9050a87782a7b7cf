"""The paper's objectives: contrastive learning with an asymmetric similarity of Gaussians (Eq. 4).

Shapes: n triplets in the global batch (all workers together), n_r of them on this worker, D dimensions.
"""

# pyright: strict, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
# (torch, scipy and sklearn leave some of their functions untyped)

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.distributed import collectives
from pipeline.gaussian.distribution import Gaussian, SimilarityKind, pairwise_similarity
from pipeline.gaussian.distribution import similarity as paired_similarity
from pipeline.objectives.candidates import Role, allowed, cross_entropy, gather, roles_of
from pipeline.objectives.triplets import TripletObjective

GaussianName = Literal["ent", "ent+con", "ent+rev", "ent+con+rev"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianObjective(TripletObjective):
    """`ent`, `ent+con`, `ent+rev`, `ent+con+rev`: Eq. 4 over the Gaussian similarity.

    Attributes:
        neutrals: add a block N of negatives, sim(n_j‖s_i), from the neutral hypotheses (not in the paper).
        simcse_weight: λ. Adds λ times the row loss of `SimCSEObjective` over the same candidates without R (released code).
        reverse_weight: how many times a row's own reversed pair (diagonal of R) counts among its negatives; once in Eq. 4.
    """

    name: GaussianName
    similarity: SimilarityKind
    temperature: float
    reduction: Literal["mean", "sum"] = "mean"
    neutrals: bool = False
    simcse_weight: float = 0.0
    reverse_weight: float = 1.0

    @property
    def roles(self) -> tuple[Role, ...]:
        return roles_of(contradictions="con" in self.name, neutrals=self.neutrals)

    @property
    def uses_variance(self) -> bool:
        return True

    def loss(self, roles: list[Gaussian], present: list[Tensor], n: int, hidden: Tensor | None) -> Tensor:
        premise, entailment = roles[0], roles[1]
        reverse = "rev" in self.name
        everyone = gather([*roles[1:], *([premise] if reverse else [])], n)
        exist = allowed(present[2:], n)
        # E: sim(s⁺_j‖s_i), C: sim(s⁻_j‖s_i) and N all have the row's premise on the right, so one product computes them.
        forward = Gaussian.cat(everyone[: len(roles) - 1])
        blocks = [pairwise_similarity(forward, premise, self.similarity).T]
        if reverse:
            # R: sim(s_j‖s⁺_i), including the diagonal.
            turned = pairwise_similarity(everyone[-1], entailment, self.similarity).T
            if self.reverse_weight != 1:
                # w·exp(sim/τ) = exp((sim + τ ln w)/τ).
                own = collectives.shard(n)
                rows = torch.arange(len(premise), device=turned.device)
                more = torch.zeros_like(turned).index_put_(
                    (rows, rows + own.start), turned.new_tensor(self.temperature * math.log(self.reverse_weight))
                )
                turned = turned + more
            blocks.append(turned)
        total = cross_entropy(torch.cat(blocks, 1), self.temperature, n, exist, hidden)
        if self.simcse_weight:
            cosines = F.normalize(premise.mean) @ F.normalize(forward.mean).T
            total = total + self.simcse_weight * cross_entropy(cosines, self.temperature, n, exist, hidden)
        return total

    def score(self, premise: Gaussian, hypothesis: Gaussian) -> Tensor:
        return paired_similarity(hypothesis, premise, self.similarity)
