"""The contrastive objectives over triplets: the paper's (Eq. 4) with a similarity of Gaussians, and supervised SimCSE.

Shapes: n triplets in the global batch (all workers together), n_r of them on this worker, m sentences to encode, D dimensions.
"""

# pyright: strict, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
# (torch, scipy and sklearn leave some of their functions untyped)

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.data.schema import RELATIONS
from pipeline.data.token_sets import PairSet, read_dev
from pipeline.data.token_store import TRIPLETS, Rows, TokenStore
from pipeline.distributed import collectives
from pipeline.distributed.transfer import to_device
from pipeline.families.objective import Objective
from pipeline.families.pairs.params import ContrastiveParams, GaussianParams, ObjectiveName, SimilarityKind
from pipeline.families.pairs.triplets import Hidden, TripletBatches
from pipeline.gaussian.distribution import Gaussian, pairwise_similarity
from pipeline.gaussian.distribution import similarity as paired_similarity
from pipeline.models.token_head import DIM, TokenHead, TokenProjection

if TYPE_CHECKING:
    from pipeline.config.params import TrainParams
    from pipeline.families.objective import Batches
    from pipeline.models.encoder import GaussianEncoder
    from pipeline.models.packing import TokenBlocks


@dataclass(frozen=True, slots=True)
class TripletObjective(Objective):
    """An objective over triplets whose loss compares each premise with candidates from the whole global batch."""

    params: ContrastiveParams[Any]

    @abstractmethod
    def loss(self, roles: list[Gaussian], present: list[Tensor], n: int, hidden: Hidden, modules: nn.Module | None) -> Tensor:
        """Σ over this worker's rows of the row loss of Eq. 4, ().

        Args:
            roles: one Gaussian (n_r, D) for each of `params.roles`; rows that are not present may hold any finite values.
            present: (n_r,) bool for each role.
            n: rows of the global batch.
            hidden: the columns that are not candidates of a row. The diagonal of R is true for pairs known to hold both ways.
            modules: what `modules` returned.
        """

    def batches(self, rows: Rows, store: TokenStore, train: TrainParams, batch_size: int, seed: int) -> TripletBatches:
        return TripletBatches(self, rows, store, train, batch_size, seed)

    def dev_rows(self, tokens: Path) -> PairSet:
        return read_dev(tokens, TRIPLETS)

    def dev_score(
        self, encoder: GaussianEncoder, store: TokenStore, rows: PairSet, modules: nn.Module | None, bf16: bool
    ) -> float:
        """PR-AUC of `score` on the development pairs."""
        from pipeline.families.pairs.scoring import dev_pr_auc

        return dev_pr_auc(encoder, self.score, store, rows, bf16=bf16)


@dataclass(frozen=True, slots=True)
class GaussianObjective(TripletObjective):
    """`ent`, `ent+con`, `ent+rev`, `ent+con+rev`: Eq. 4 over the Gaussian similarity.

    Row i is the premise s_i. Its candidates are E: sim(s⁺_j‖s_i), C: sim(s⁻_j‖s_i), N: sim(n_j‖s_i) of the neutral hypotheses
    and R: sim(s_j‖s⁺_i). The positive is the diagonal of E.
    """

    params: GaussianParams

    def modules(self, encoder: GaussianEncoder, batches: Batches) -> TokenHead | None:
        return TokenHead(TokenProjection(encoder.mean_head.in_features, DIM)) if self.params.relation_weight else None

    def represent(self, modules: nn.Module | None, encoder: GaussianEncoder, blocks: TokenBlocks) -> Tensor:
        """(m, 2, D); with a relation head (m, 2 + r, D), where the last r·D numbers hold the token vectors (`as_numbers`)."""
        if not isinstance(modules, TokenHead):
            return encoder(blocks).stacked()
        encoded = encoder(blocks, modules.projection)
        assert encoded.tokens is not None
        numbers = encoded.tokens.as_numbers(encoder.longest)
        rows = F.pad(numbers, (0, -numbers.shape[1] % encoder.dim)).unflatten(1, (-1, encoder.dim))
        return torch.cat((encoded.stacked(), rows), 1)

    def loss(self, roles: list[Gaussian], present: list[Tensor], n: int, hidden: Hidden, modules: nn.Module | None) -> Tensor:
        params, (premise, entailment), with_reversed = self.params, roles[:2], "rev" in self.params.name
        bare = [Gaussian(role.mean, role.log_var) for role in (*roles[1:], *([premise] if with_reversed else []))]
        everyone = collectives.gather_gaussians(bare, n)
        exist = collectives.gather_rows(torch.stack(present[1:], 1).to(torch.float32), n) > 0
        # E, C and N all have the row's premise on the right, so one product computes them.
        forward = Gaussian.cat(everyone[: len(roles) - 1])
        blocks = [pairwise_similarity(forward, premise, params.similarity).T]
        if with_reversed:
            turned = pairwise_similarity(everyone[-1], entailment, params.similarity).T
            blocks.append(turned.masked_fill(hidden["R"], float("-inf")) if "R" in hidden else turned)
        total = _cross_entropy(torch.cat(blocks, 1), params.temperature, exist, hidden)
        if params.simcse_weight:
            cosines = F.normalize(premise.mean) @ F.normalize(forward.mean).T
            total = total + params.simcse_weight * _cross_entropy(cosines, params.temperature, exist, hidden)
        if modules is not None:
            one_way = present[1] & ~hidden["R"].diagonal(collectives.shard(n).start) if "R" in hidden else present[1]
            total = total + params.relation_weight * self._relation_loss(roles, present, one_way, modules)
        return total

    def _relation_loss(self, roles: list[Gaussian], present: list[Tensor], one_way: Tensor, head: nn.Module) -> Tensor:
        """Σ over this worker's rows of the mean cross-entropy over a row's pairs: (s, s⁺), (s⁺, s), (s, s⁻) and (s, neutral).

        Every pair counts fully. (s⁺, s) is `reversed` in the `one_way` rows, (n_r,) bool; the others do not have it.
        """
        premise, entailment = roles[0], roles[1]
        others = list(zip(self.params.roles[2:], roles[2:], present[2:], strict=True))
        pairs = [(premise, entailment, "entailment", present[1]), (entailment, premise, "reversed", one_way)]
        pairs += [(premise, hypothesis, role, exists) for role, hypothesis, exists in others]
        logits = head(Gaussian.cat([pair[0] for pair in pairs]), Gaussian.cat([pair[1] for pair in pairs]))
        target = to_device(torch.tensor([RELATIONS.index(name) for _, _, name, _ in pairs]), logits.device)
        counted = torch.stack([exists for *_, exists in pairs]).to(logits.dtype)
        losses = F.cross_entropy(logits, target.repeat_interleave(len(premise)), reduction="none").view_as(counted)
        return ((losses * counted).sum(0) / counted.sum(0)).sum()

    def score(self, premise: Gaussian, hypothesis: Gaussian) -> Tensor:
        return paired_similarity(hypothesis, premise, self.params.similarity)


class SimCSEObjective(TripletObjective):
    """`simcse`: supervised SimCSE, the cosine of the means over blocks E and C (and N); the variances are not used."""

    __slots__ = ()

    def loss(self, roles: list[Gaussian], present: list[Tensor], n: int, hidden: Hidden, modules: nn.Module | None) -> Tensor:
        unit = [F.normalize(role.mean) for role in roles]
        everyone = collectives.gather_rows(torch.stack(unit[1:], 1), n)
        exist = collectives.gather_rows(torch.stack(present[1:], 1).to(torch.float32), n) > 0
        cosines = unit[0] @ torch.cat(everyone.unbind(1)).T
        return _cross_entropy(cosines, self.params.temperature, exist, hidden)


def _cross_entropy(similarities: Tensor, temperature: float, exist: Tensor, hidden: Hidden) -> Tensor:
    """Sum over the rows of −log softmax at the diagonal of block E.

    Args:
        similarities: (n_r, blocks·n), block E first.
        exist: (n, blocks) bool, for the first blocks; columns that do not exist are left out.
        hidden: its mask of E is left out, too.
    """
    n, width = len(exist), similarities.shape[1]
    excluded = F.pad(~exist.T.reshape(1, -1), (0, width - exist.numel()))
    if "E" in hidden:
        excluded = excluded | F.pad(hidden["E"], (0, width - n))
    logits = (similarities / temperature).masked_fill(excluded, float("-inf"))
    shard = collectives.shard(n)
    return F.cross_entropy(logits, torch.arange(shard.start, shard.stop, device=logits.device), reduction="sum")


def make_objective(name: ObjectiveName, similarity: SimilarityKind, temperature: float, **keys: object) -> TripletObjective:
    """The contrastive objective with this name; `keys` are further ones of section objective.

    Raises:
        ValueError: an unknown name or value.
    """
    # Imported here: it imports the packages that have objectives, and those import this module.
    from pipeline.config.objectives import own_keys

    chosen = {"name": name, "similarity": similarity, "temperature": temperature, "reduction": "mean"}
    off = {"neutral_block": False, "simcse_weight": 0.0, "relation_weight": 0.0}
    objective = own_keys({**off, **chosen, **keys}).make()
    assert isinstance(objective, TripletObjective)
    return objective
