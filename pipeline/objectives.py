"""What a batch holds, which representations it needs, its loss and its development score.

Shapes: n triplets in the global batch (all workers together), n_r of them on this worker, D dimensions.
The training loop knows only the protocol `Objective`; the paper's four objectives and the point-embedding baseline are the two
implementations.
"""

# pyright: strict, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
# (torch, scipy and sklearn leave some of their functions untyped)

from __future__ import annotations

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
    """`ent`, `ent+con`, `ent+rev`, `ent+con+rev`: Eq. 4 over the Gaussian similarity."""

    name: GaussianObjectiveName
    similarity: SimilarityKind
    temperature: float

    @property
    def uses_variance(self) -> bool:
        return True

    def sentences(self, triplets: NDArray[np.int32]) -> list[NDArray[np.int32]]:
        return _columns(triplets, "con" in self.name)

    def loss(self, roles: list[Gaussian], present: list[Tensor], n: int, hidden: Tensor | None) -> Tensor:
        premise, entailment = roles[0], roles[1]
        candidates = [entailment, *(roles[2:] if "con" in self.name else []), *([premise] if "rev" in self.name else [])]
        columns = _gather(candidates, n)
        forward = 2 if "con" in self.name else 1
        # E: sim(s⁺_j‖s_i) and C: sim(s⁻_j‖s_i) have the row's premise on the right: one product.
        blocks = [pairwise_similarity(Gaussian.cat(columns[:forward]), premise, self.similarity).T]
        if "rev" in self.name:
            # R: sim(s_j‖s⁺_i), the diagonal included.
            blocks.append(pairwise_similarity(columns[-1], entailment, self.similarity).T)
        allowed = _allowed(present, n) if "con" in self.name else None
        return _cross_entropy(torch.cat(blocks, 1), self.temperature, n, allowed, hidden)

    def score(self, premise: Gaussian, hypothesis: Gaussian) -> Tensor:
        return paired_similarity(hypothesis, premise, self.similarity)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimCSEObjective:
    """`simcse`: supervised SimCSE, the cosine of the means over blocks E and C; the variances are not used."""

    temperature: float

    @property
    def uses_variance(self) -> bool:
        return False

    def sentences(self, triplets: NDArray[np.int32]) -> list[NDArray[np.int32]]:
        return _columns(triplets, True)

    def loss(self, roles: list[Gaussian], present: list[Tensor], n: int, hidden: Tensor | None) -> Tensor:
        unit = [F.normalize(role.mean, dim=-1) for role in roles]
        everyone = collectives.gather_rows(torch.stack(unit[1:], 1), n)
        cosines = unit[0] @ torch.cat((everyone[:, 0], everyone[:, 1])).T
        return _cross_entropy(cosines, self.temperature, n, _allowed(present, n), hidden)

    def score(self, premise: Gaussian, hypothesis: Gaussian) -> Tensor:
        return F.cosine_similarity(premise.mean, hypothesis.mean, dim=-1)


def make_objective(name: ObjectiveName, similarity: SimilarityKind, temperature: float) -> Objective:
    """The objective of a name.

    Raises:
        ValueError: unknown name.
    """
    if name == "simcse":
        return SimCSEObjective(temperature=temperature)
    if name not in ("ent", "ent+con", "ent+rev", "ent+con+rev"):
        raise ValueError(f"unknown objective {name!r}")
    return GaussianObjective(name=name, similarity=similarity, temperature=temperature)


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

    Returns:
        () tensor.

    Raises:
        ValueError: unknown objective or similarity, or no contradiction where the objective needs one.
    """
    chosen = make_objective(objective, similarity, temperature)
    n = len(premise)
    everything = torch.ones(n, dtype=torch.bool, device=premise.mean.device)
    roles, present = [premise, entailment], [everything, everything]
    if "con" in objective or objective == "simcse":
        if contradiction is None:
            raise ValueError(f"objective {objective!r} needs contradictions")
        roles.append(contradiction)
        present.append(everything if has_contradiction is None else has_contradiction)
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


def _columns(triplets: NDArray[np.int32], contradictions: bool) -> list[NDArray[np.int32]]:
    return [triplets[:, k] for k in range(3 if contradictions else 2)]


def _allowed(present: list[Tensor], n: int) -> Tensor:
    """(n,) bool: which columns of block C exist, over all workers."""
    return collectives.gather_rows(present[2].to(torch.float32), n) > 0


def _cross_entropy(similarities: Tensor, temperature: float, n: int, allowed: Tensor | None, hidden: Tensor | None) -> Tensor:
    """Sum over the rows of −log softmax at the diagonal of the first block.

    similarities: (n_r, blocks·n). allowed: (n,) over the columns of the second block. hidden: (n_r, n) in the first block.
    """
    logits = similarities / temperature
    if allowed is not None or hidden is not None:
        gone = torch.zeros((1 if hidden is None else len(logits), logits.shape[1]), dtype=torch.bool, device=logits.device)
        if hidden is not None:
            gone[:, :n] = hidden
        if allowed is not None:
            gone[:, n : 2 * n] = ~allowed
        logits = logits.masked_fill(gone, float("-inf"))
    own = collectives.shard(n)
    return F.cross_entropy(logits, torch.arange(own.start, own.stop, device=logits.device), reduction="sum")
