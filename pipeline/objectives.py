"""What a batch holds, which representations it needs, its loss and its development score.

Shapes: n triplets in the global batch (all workers together), n_r of them on this worker, D dimensions.
The training loop knows only the protocol `Objective`; the paper's four objectives and the point-embedding baseline are the two
implementations.
"""

# pyright: strict, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
# (torch, scipy and sklearn leave some of their functions untyped)

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from pipeline import collectives
from pipeline.gaussian import Gaussian, SimilarityKind, pairwise_similarity
from pipeline.gaussian import similarity as paired_similarity
from pipeline.params import ObjectiveParams

GaussianObjectiveName = Literal["ent", "ent+con", "ent+rev", "ent+con+rev"]
ObjectiveName = Literal["ent", "ent+con", "ent+rev", "ent+con+rev", "simcse"]


class Objective(Protocol):
    """A training objective: owns its batches, its loss and its development score."""

    @property
    def uses_variance(self) -> bool:
        """Whether the loss reaches the variance head; if not, it is not trained and directions are not defined."""
        ...

    def sentences(self, triplets: NDArray[np.int32]) -> list[NDArray[np.int32]]:
        """Columns of sentence numbers to encode, one array (n_r,) a role; −1 where a row has no such sentence."""
        ...

    def loss(self, roles: list[Gaussian], present: list[Tensor], n: int, hidden: Tensor | None) -> Tensor:
        """Σ over this worker's rows of the row loss of Eq. 4, ().

        Args:
            roles: a Gaussian (n_r, D) for each column of `sentences`; rows that are not present hold anything finite.
            present: (n_r,) bool for each role.
            n: rows of the global batch.
            hidden: (n_r, n) bool, columns of block E that a row does not count among its candidates; None for none.
        """
        ...

    def score(self, premise: Gaussian, hypothesis: Gaussian) -> Tensor:
        """(...,) higher means "the premise entails the hypothesis" """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianObjective:
    """`ent`, `ent+con`, `ent+rev`, `ent+con+rev`: Eq. 4 over the Gaussian similarity.

    Attributes:
        neutrals: with a block N of negatives, sim(n_j‖s_i), of the neutral hypotheses (not in the paper).
        simcse_weight: λ; the row loss of `SimCSEObjective` over the same candidates but R is added λ times (released code).
        reverse_weight: how often a row's own pair, turned round, counts among its negatives (diagonal of R); once in Eq. 4.
    """

    name: GaussianObjectiveName
    similarity: SimilarityKind
    temperature: float
    neutrals: bool = False
    simcse_weight: float = 0.0
    reverse_weight: float = 1.0

    @property
    def uses_variance(self) -> bool:
        return True

    def sentences(self, triplets: NDArray[np.int32]) -> list[NDArray[np.int32]]:
        return _columns(triplets, contradictions="con" in self.name, neutrals=self.neutrals)

    def loss(self, roles: list[Gaussian], present: list[Tensor], n: int, hidden: Tensor | None) -> Tensor:
        premise, entailment = roles[0], roles[1]
        reverse = "rev" in self.name
        columns = _gather([*roles[1:], *([premise] if reverse else [])], n)
        allowed = _allowed(present[2:], n)
        # E: sim(s⁺_j‖s_i), C: sim(s⁻_j‖s_i) and N have the row's premise on the right: one product.
        forward = Gaussian.cat(columns[: len(roles) - 1])
        blocks = [pairwise_similarity(forward, premise, self.similarity).T]
        if reverse:
            # R: sim(s_j‖s⁺_i), the diagonal included.
            turned = pairwise_similarity(columns[-1], entailment, self.similarity).T
            if self.reverse_weight != 1:
                # w·exp(sim/τ) = exp((sim + τ ln w)/τ).
                own = collectives.shard(n)
                rows = torch.arange(len(premise), device=turned.device)
                more = torch.zeros_like(turned).index_put_(
                    (rows, rows + own.start), turned.new_tensor(self.temperature * math.log(self.reverse_weight))
                )
                turned = turned + more
            blocks.append(turned)
        total = _cross_entropy(torch.cat(blocks, 1), self.temperature, n, allowed, hidden)
        if self.simcse_weight:
            cosines = F.normalize(premise.mean, dim=-1) @ F.normalize(forward.mean, dim=-1).T
            total = total + self.simcse_weight * _cross_entropy(cosines, self.temperature, n, allowed, hidden)
        return total

    def score(self, premise: Gaussian, hypothesis: Gaussian) -> Tensor:
        return paired_similarity(hypothesis, premise, self.similarity)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimCSEObjective:
    """`simcse`: supervised SimCSE, the cosine of the means over blocks E and C (and N); the variances are not used."""

    temperature: float
    neutrals: bool = False

    @property
    def uses_variance(self) -> bool:
        return False

    def sentences(self, triplets: NDArray[np.int32]) -> list[NDArray[np.int32]]:
        return _columns(triplets, contradictions=True, neutrals=self.neutrals)

    def loss(self, roles: list[Gaussian], present: list[Tensor], n: int, hidden: Tensor | None) -> Tensor:
        unit = [F.normalize(role.mean, dim=-1) for role in roles]
        everyone = collectives.gather_rows(torch.stack(unit[1:], 1), n)
        cosines = unit[0] @ torch.cat(everyone.unbind(1)).T
        return _cross_entropy(cosines, self.temperature, n, _allowed(present[2:], n), hidden)

    def score(self, premise: Gaussian, hypothesis: Gaussian) -> Tensor:
        return F.cosine_similarity(premise.mean, hypothesis.mean, dim=-1)


def make_objective(
    name: ObjectiveName,
    similarity: SimilarityKind,
    temperature: float,
    *,
    neutrals: bool = False,
    simcse_weight: float = 0.0,
    reverse_weight: float = 1.0,
) -> Objective:
    """The objective of a name.

    Raises:
        ValueError: unknown name.
    """
    if name == "simcse":
        return SimCSEObjective(temperature=temperature, neutrals=neutrals)
    if name not in ("ent", "ent+con", "ent+rev", "ent+con+rev"):
        raise ValueError(f"unknown objective {name!r}")
    return GaussianObjective(
        name=name,
        similarity=similarity,
        temperature=temperature,
        neutrals=neutrals,
        simcse_weight=simcse_weight,
        reverse_weight=reverse_weight,
    )


def objective_of(params: ObjectiveParams) -> Objective:
    """The objective that the result keys ask for."""
    return make_objective(
        params.name,
        params.similarity,
        params.temperature,
        neutrals=params.neutral_block,
        simcse_weight=params.simcse_weight,
        reverse_weight=params.reverse_weight,
    )


def contrastive_loss(
    premise: Gaussian,
    entailment: Gaussian,
    contradiction: Gaussian | None,
    objective: ObjectiveName = "ent+con+rev",
    similarity: SimilarityKind = "kl",
    temperature: float = 0.05,
    *,
    has_contradiction: Tensor | None = None,
    premise_ids: Tensor | None = None,
    neutral: Gaussian | None = None,
    has_neutral: Tensor | None = None,
    simcse_weight: float = 0.0,
    reverse_weight: float = 1.0,
) -> Tensor:
    """Contrastive loss of a global batch (paper Eq. 4), mean over its rows.

    Row i is the premise s_i; its candidates are E: sim(s⁺_j‖s_i), C: sim(s⁻_j‖s_i) and R: sim(s_j‖s⁺_i), whichever the
    objective names; the positive is the diagonal of E.

    Args:
        premise: (n, D).
        entailment: (n, D).
        contradiction: (n, D), or None for objectives without block C.
        objective: blocks, by the paper's names; simcse is the cosine of the means over E and C.
        similarity: "kl" or "kl-dimwise" (see `pipeline.gaussian`); not used by simcse.
        temperature: τ; logits are similarities divided by it.
        has_contradiction: (n,) bool; columns of C where it is false are left out. Default: all true.
        premise_ids: (n,) integers; where another row has the same one, its entailment is entailed by this row's premise too, and
            its column of E is left out (`train.same_premise: mask`). Default: every column counts, as in the paper.
        neutral: (n, D), a further block of negatives, sim(n_j‖s_i); None for none, as in the paper.
        has_neutral: (n,) bool; columns of that block where it is false are left out. Default: all true.
        simcse_weight: λ of the added SimCSE term (see `GaussianObjective`); not used by simcse.
        reverse_weight: of a row's own reversed pair in block R (see `GaussianObjective`); not used without that block.

    Returns:
        () tensor.

    Raises:
        ValueError: unknown objective or similarity, or no contradiction where the objective needs one.
    """
    chosen = make_objective(
        objective,
        similarity,
        temperature,
        neutrals=neutral is not None,
        simcse_weight=simcse_weight,
        reverse_weight=reverse_weight,
    )
    n = len(premise)
    everything = torch.ones(n, dtype=torch.bool, device=premise.mean.device)
    roles, present = [premise, entailment], [everything, everything]
    if "con" in objective or objective == "simcse":
        if contradiction is None:
            raise ValueError(f"objective {objective!r} needs contradictions")
        roles.append(contradiction)
        present.append(everything if has_contradiction is None else has_contradiction)
    if neutral is not None:
        roles.append(neutral)
        present.append(everything if has_neutral is None else has_neutral)
    hidden = None if premise_ids is None else same_premise(premise_ids, premise_ids, 0)
    return chosen.loss(roles, present, n, hidden) / n


def same_premise(own: Tensor, everyone: Tensor, first: int) -> Tensor:
    """(n_r, n) bool: whether another row of the global batch has the premise of this one; false for the row itself.

    own: (n_r,) premises of this worker's rows, which are rows `first` … of the n of `everyone`.
    """
    same = own[:, None] == everyone[None]
    rows = torch.arange(len(own), device=own.device)
    same[rows, first + rows] = False
    return same


def _gather(own: list[Gaussian], n: int) -> list[Gaussian]:
    """Gaussians of (n_r, D) → the same of all workers, (n, D), in one exchange."""
    if collectives.world_size() == 1:
        return own
    everyone = collectives.gather_rows(torch.stack([torch.stack((g.mean, g.log_var), 1) for g in own], 1), n)
    return [Gaussian(everyone[:, k, 0], everyone[:, k, 1]) for k in range(len(own))]


def _columns(triplets: NDArray[np.int32], *, contradictions: bool, neutrals: bool) -> list[NDArray[np.int32]]:
    chosen = [0, 1, *([2] if contradictions else []), *([3] if neutrals else [])]
    return [triplets[:, k] for k in chosen]


def _allowed(present: list[Tensor], n: int) -> Tensor | None:
    """(blocks·n,) bool: which columns of the blocks after E exist, over all workers; None where there are no such blocks.

    present: (n_r,) bool for each block.
    """
    if not present:
        return None
    return (collectives.gather_rows(torch.stack(present, 1).to(torch.float32), n) > 0).T.reshape(-1)


def _cross_entropy(similarities: Tensor, temperature: float, n: int, allowed: Tensor | None, hidden: Tensor | None) -> Tensor:
    """Sum over the rows of −log softmax at the diagonal of the first block.

    similarities: (n_r, blocks·n). allowed: over the columns that follow the first block. hidden: (n_r, n) in the first block.
    """
    logits = similarities / temperature
    if allowed is not None or hidden is not None:
        gone = torch.zeros((1 if hidden is None else len(logits), logits.shape[1]), dtype=torch.bool, device=logits.device)
        if hidden is not None:
            gone[:, :n] = hidden
        if allowed is not None:
            gone[:, n : n + len(allowed)] = ~allowed
        logits = logits.masked_fill(gone, float("-inf"))
    own = collectives.shard(n)
    return F.cross_entropy(logits, torch.arange(own.start, own.stop, device=logits.device), reduction="sum")
