"""Make a contrastive objective from its name; compute the loss of one batch."""

# pyright: strict, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
# (torch, scipy and sklearn leave some of their functions untyped)

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from pipeline.families.candidates import holds_back, same_sentence
from pipeline.families.pairs.gaussian import GaussianName, GaussianObjective
from pipeline.families.pairs.params import ObjectiveName
from pipeline.families.pairs.simcse import SimCSEObjective
from pipeline.gaussian.distribution import Gaussian, SimilarityKind


def make_objective(
    name: ObjectiveName,
    similarity: SimilarityKind,
    temperature: float,
    *,
    neutrals: bool = False,
    simcse_weight: float = 0.0,
    reverse_weight: float = 1.0,
) -> GaussianObjective | SimCSEObjective:
    """The contrastive objective with this name.

    Raises:
        ValueError: unknown name.
    """
    if name == "simcse":
        return SimCSEObjective(temperature=temperature, neutrals=neutrals)
    if name not in get_args(GaussianName):
        raise ValueError(f"unknown objective {name!r}")
    return GaussianObjective(
        name=name,
        similarity=similarity,
        temperature=temperature,
        neutrals=neutrals,
        simcse_weight=simcse_weight,
        reverse_weight=reverse_weight,
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
    two_way: Tensor | None = None,
) -> Tensor:
    """Contrastive loss of a global batch (paper Eq. 4), mean over its rows.

    Row i is the premise s_i. Its candidates are the blocks that the objective names, out of E: sim(s⁺_j‖s_i), C: sim(s⁻_j‖s_i)
    and R: sim(s_j‖s⁺_i). The positive is the diagonal of E.

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
        simcse_weight: λ of the added SimCSE term (see `GaussianObjective`); not used by simcse.
        reverse_weight: weight of a row's own reversed pair in block R (see `GaussianObjective`); not used without block R.
        two_way: (n,) bool, whether a row's pair is known to hold both ways. Turned round it is then no negative: the columns of R
            with the row's premise are left out of its row. Default: every column counts, as in the paper.

    Returns:
        () tensor.

    Raises:
        ValueError: unknown objective or similarity, or the objective needs contradictions and there are none.
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
    if "contradiction" in chosen.roles:
        if contradiction is None:
            raise ValueError(f"objective {objective!r} needs contradictions")
        roles.append(contradiction)
        present.append(everything if has_contradiction is None else has_contradiction)
    if neutral is not None:
        roles.append(neutral)
        present.append(everything if has_neutral is None else has_neutral)
    ids = torch.arange(n, device=everything.device) if premise_ids is None else premise_ids
    hidden: dict[Literal["E", "R"], Tensor] = {} if premise_ids is None else {"E": same_sentence(ids, ids, 0)}
    if two_way is not None:
        hidden["R"] = holds_back(two_way, ids[:, None], ids)
    return chosen.loss(roles, present, n, hidden) / n
