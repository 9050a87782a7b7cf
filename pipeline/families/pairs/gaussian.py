"""The paper's objectives: contrastive learning with an asymmetric similarity of Gaussians (Eq. 4).

Shapes: n triplets in the global batch (all workers together), n_r of them on this worker, D dimensions.
"""

# pyright: strict, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
# (torch, scipy and sklearn leave some of their functions untyped)

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.data.schema import RELATIONS
from pipeline.distributed import collectives
from pipeline.distributed.transfer import to_device
from pipeline.families.candidates import Hidden, Role, allowed, cross_entropy, gather, roles_of
from pipeline.families.pairs.params import ForwardParams, ReversedParams
from pipeline.families.pairs.triplets import TripletObjective
from pipeline.gaussian.distribution import Gaussian, SimilarityKind, pairwise_similarity
from pipeline.gaussian.distribution import similarity as paired_similarity
from pipeline.models.relation_head import RelationHead

if TYPE_CHECKING:
    from pipeline.families.objective import Batches
    from pipeline.models.encoder import GaussianEncoder

GaussianName = Literal["ent", "ent+con", "ent+rev", "ent+con+rev"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianObjective(TripletObjective):
    """`ent`, `ent+con`, `ent+rev`, `ent+con+rev`: Eq. 4 over the Gaussian similarity.

    Attributes:
        neutrals: add a block N of negatives, sim(n_j‖s_i), from the neutral hypotheses (not in the paper).
        simcse_weight: λ. Adds λ times the row loss of `SimCSEObjective` over the same candidates without R (released code).
        reverse_weight: how many times a row's own reversed pair (diagonal of R) counts among its negatives; once in Eq. 4.
        relation_weight: ρ. Adds ρ times the row's mean cross-entropy of a relation head over its pairs (not in the paper).
    """

    name: GaussianName
    similarity: SimilarityKind
    temperature: float
    reduction: Literal["mean", "sum"] = "mean"
    neutrals: bool = False
    simcse_weight: float = 0.0
    reverse_weight: float = 1.0
    relation_weight: float = 0.0

    @staticmethod
    def of(params: ForwardParams | ReversedParams) -> GaussianObjective:
        """The objective of these keys."""
        return GaussianObjective(
            name=params.name,
            similarity=params.similarity,
            temperature=params.temperature,
            reduction=params.reduction,
            neutrals=params.neutral_block,
            simcse_weight=params.simcse_weight,
            reverse_weight=params.reverse_weight if isinstance(params, ReversedParams) else 1.0,
            relation_weight=params.relation_weight,
        )

    @property
    def roles(self) -> tuple[Role, ...]:
        return roles_of(contradictions="con" in self.name, neutrals=self.neutrals)

    @property
    def uses_variance(self) -> bool:
        return True

    def modules(self, encoder: GaussianEncoder, batches: Batches) -> RelationHead | None:
        return RelationHead(encoder.dim) if self.relation_weight else None

    def loss(
        self, roles: list[Gaussian], present: list[Tensor], n: int, hidden: Hidden, modules: nn.Module | None = None
    ) -> Tensor:
        premise, entailment = roles[0], roles[1]
        reverse = "rev" in self.name
        everyone = gather([*roles[1:], *([premise] if reverse else [])], n)
        exist = allowed(present[2:], n)
        # E: sim(s⁺_j‖s_i), C: sim(s⁻_j‖s_i) and N all have the row's premise on the right, so one product computes them.
        forward = Gaussian.cat(everyone[: len(roles) - 1])
        blocks = [pairwise_similarity(forward, premise, self.similarity).T]
        if reverse:
            # R: sim(s_j‖s⁺_i), including the diagonal, unless the pair is known to hold both ways.
            turned = pairwise_similarity(everyone[-1], entailment, self.similarity).T
            if self.reverse_weight != 1:
                # w·exp(sim/τ) = exp((sim + τ ln w)/τ).
                shard = collectives.shard(n)
                rows = torch.arange(len(premise), device=turned.device)
                boost = torch.zeros_like(turned).index_put_(
                    (rows, rows + shard.start), turned.new_full((), self.temperature * math.log(self.reverse_weight))
                )
                turned = turned + boost
            blocks.append(turned.masked_fill(hidden["R"], float("-inf")) if "R" in hidden else turned)
        total = cross_entropy(torch.cat(blocks, 1), self.temperature, n, exist, hidden.get("E"))
        if self.simcse_weight:
            cosines = F.normalize(premise.mean) @ F.normalize(forward.mean).T
            total = total + self.simcse_weight * cross_entropy(cosines, self.temperature, n, exist, hidden.get("E"))
        if modules is not None:
            one_way = present[1] & ~hidden["R"].diagonal(collectives.shard(n).start) if "R" in hidden else present[1]
            total = total + self.relation_weight * self._relation_loss(roles, present, one_way, modules)
        return total

    def _relation_loss(self, roles: list[Gaussian], present: list[Tensor], one_way: Tensor, head: nn.Module) -> Tensor:
        """Σ over this worker's rows of the mean cross-entropy over a row's pairs: (s, s⁺), (s⁺, s), (s, s⁻) and (s, neutral).

        Every pair counts fully. (s⁺, s) is `reversed` in the `one_way` rows, (n_r,) bool; the others do not have it.
        """
        premise, entailment = roles[0], roles[1]
        others = list(zip(self.roles[2:], roles[2:], present[2:], strict=True))
        pairs = [(premise, entailment, "entailment", present[1]), (entailment, premise, "reversed", one_way)]
        pairs += [(premise, hypothesis, role, exists) for role, hypothesis, exists in others]
        logits = head(Gaussian.cat([pair[0] for pair in pairs]), Gaussian.cat([pair[1] for pair in pairs]))
        target = to_device(torch.tensor([RELATIONS.index(name) for _, _, name, _ in pairs]), logits.device)
        counted = torch.stack([exists for *_, exists in pairs]).to(logits.dtype)
        losses = F.cross_entropy(logits, target.repeat_interleave(len(premise)), reduction="none").view_as(counted)
        return ((losses * counted).sum(0) / counted.sum(0)).sum()

    def score(self, premise: Gaussian, hypothesis: Gaussian) -> Tensor:
        return paired_similarity(hypothesis, premise, self.similarity)
