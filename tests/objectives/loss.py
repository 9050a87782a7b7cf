"""The loss of a global batch that is given as Gaussians, by the product's own objective."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from pipeline.families.pairs.contrastive import make_objective
from pipeline.families.pairs.params import ObjectiveName, SimilarityKind
from pipeline.families.pairs.triplets import holds_back, same_sentence
from pipeline.gaussian.distribution import Gaussian


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
    two_way: Tensor | None = None,
) -> Tensor:
    """Contrastive loss of a global batch (paper Eq. 4), mean over its rows.

    Row i is the premise s_i. Its candidates are the blocks that the objective names (`GaussianObjective`).

    Args:
        premise: (n, D).
        entailment: (n, D).
        contradiction: (n, D), or None for objectives without block C.
        objective: the blocks, by the paper's names; "simcse" uses the cosine of the means over E and C.
        similarity: "kl" or "kl-dimwise" (see `pipeline.gaussian.distribution`); not used by simcse.
        temperature: τ; logits are similarities divided by it.
        has_contradiction: (n,) bool; columns of C that are false here are left out. Default: all true.
        premise_ids: (n,) integers. If another row has the same id, this row's premise entails that row's entailment too, so
            its column of E is left out (`train.same_premise: mask`). Default: every column counts, as in the paper.
        neutral: (n, D), one more block of negatives, sim(n_j‖s_i). None: no such block, as in the paper.
        has_neutral: (n,) bool; columns of that block that are false here are left out. Default: all true.
        simcse_weight: λ of the added SimCSE term (`GaussianParams`); not used by simcse.
        two_way: (n,) bool, whether a row's pair is known to hold both ways. Turned round it is then no negative: the columns of R
            with the row's premise are left out of its row. Default: every column counts, as in the paper.

    Returns:
        () tensor.

    Raises:
        ValueError: unknown objective or similarity, or the objective needs contradictions and there are none.
    """
    keys: dict[str, object] = {"neutral_block": neutral is not None, "simcse_weight": float(simcse_weight)}
    chosen = make_objective(objective, similarity, temperature, **keys)
    given = {"premise": premise, "entailment": entailment, "contradiction": contradiction, "neutral": neutral}
    roles = [gaussian for role in chosen.params.roles if (gaussian := given[role]) is not None]
    if len(roles) < len(chosen.params.roles):
        raise ValueError(f"objective {objective!r} needs contradictions")
    n = len(premise)
    everything = torch.ones(n, dtype=torch.bool, device=premise.mean.device)
    has = {"contradiction": has_contradiction, "neutral": has_neutral}
    present = [everything if (exists := has.get(role)) is None else exists for role in chosen.params.roles]
    ids = torch.arange(n, device=everything.device) if premise_ids is None else premise_ids
    hidden: dict[Literal["E", "R"], Tensor] = {} if premise_ids is None else {"E": same_sentence(ids, ids, 0)}
    if two_way is not None:
        hidden["R"] = holds_back(two_way, ids[:, None], ids)
    return chosen.loss(roles, present, n, hidden, None) / n
