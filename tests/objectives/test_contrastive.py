from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from pipeline.families.pairs.contrastive import make_objective
from pipeline.families.pairs.params import ObjectiveName
from pipeline.families.pairs.triplets import Hidden, triplet_batch
from pipeline.gaussian.distribution import similarity
from tests.objectives.loss import contrastive_loss
from tests.objectives.reference import assert_same, double_loop, draw
from tests.relations import drawn_relation, with_tokens

OBJECTIVES: list[ObjectiveName] = ["ent", "ent+con", "ent+rev", "ent+con+rev", "simcse"]


@pytest.mark.parametrize("kind", ["kl", "kl-dimwise"])
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("missing", [(), (1, 4)])
@pytest.mark.parametrize("premises", [None, [0, 1, 0, 2, 1, 0]])
@pytest.mark.parametrize("two_way", [(), (0, 3)])
def test_loss_and_gradient_equal_the_double_loop(
    objective: ObjectiveName, kind: str, missing: tuple[int, ...], premises: list[int] | None, two_way: tuple[int, ...]
) -> None:
    roles = [draw(6, 5, seed) for seed in (1, 2, 3)]
    has = [j not in missing for j in range(6)]
    loss = contrastive_loss(
        *roles,
        objective=objective,
        similarity=kind,  # type: ignore[arg-type]
        temperature=0.05,
        has_contradiction=torch.tensor(has),
        premise_ids=None if premises is None else torch.tensor(premises),
        two_way=torch.tensor([j in two_way for j in range(6)]) if two_way else None,
    )
    ids = premises or list(range(6))
    expected = double_loop(*roles, objective, kind, 0.05, has, ids, two_way=two_way)  # type: ignore[arg-type]
    assert_same(loss, expected, *roles)


@pytest.mark.parametrize("kind", ["kl", "kl-dimwise"])
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("missing", [(), (0, 3)])
def test_a_neutral_block_and_an_added_simcse_term_equal_the_double_loop(
    objective: ObjectiveName, kind: str, missing: tuple[int, ...]
) -> None:
    premise, entailment, contradiction, neutral = (draw(5, 4, seed) for seed in (1, 2, 3, 4))
    has, has_neutral, weight = [j != 2 for j in range(5)], [j not in missing for j in range(5)], 0.7
    loss = contrastive_loss(
        premise,
        entailment,
        contradiction,
        objective=objective,
        similarity=kind,  # type: ignore[arg-type]
        has_contradiction=torch.tensor(has),
        neutral=neutral,
        has_neutral=torch.tensor(has_neutral),
        simcse_weight=weight,
    )

    def loop(which: str, has_contradiction: list[bool]) -> Tensor:
        rows = list(range(5))
        return double_loop(premise, entailment, contradiction, which, kind, 0.05, has_contradiction, rows, neutral, has_neutral)

    expected = loop(objective, has)
    if objective != "simcse":
        # The same candidates but the reversed ones; without block C those of the contradictions are none.
        expected = expected + weight * loop("simcse", has if "con" in objective else [False] * 5)
    assert_same(loss, expected, premise, entailment, contradiction, neutral)


@pytest.mark.parametrize("objective", ["ent+con+rev", "ent"])
def test_a_relation_head_adds_the_mean_cross_entropy_of_the_pairs_of_each_row(objective: ObjectiveName) -> None:
    seeds = (1, 2, 3, 4) if objective == "ent+con+rev" else (1, 2, 4)
    roles = [with_tokens(draw(5, 4, seed), seed=seed) for seed in seeds]
    plain, weighted = (make_objective(objective, "kl", 0.05, neutral_block=True, relation_weight=weight) for weight in (0.0, 0.7))
    everyone = torch.ones(5, dtype=torch.bool)
    present = [everyone, everyone, *[torch.tensor([j != k for j in range(5)]) for k in range(1, len(roles) - 1)]]
    head = drawn_relation().head
    # The pair of row 4 holds both ways.
    hidden: Hidden = {"R": torch.diag(torch.arange(5) == 4)}
    found = weighted.loss(roles, present, 5, hidden, head) - plain.loss(roles, present, 5, hidden, None)
    expected = torch.zeros((), dtype=torch.float64)
    for i in range(5):
        of_row = {"entailment": (0, 1), **({} if i == 4 else {"reversed": (1, 0)})}
        of_row |= {role: (0, at) for at, role in enumerate(weighted.params.roles[2:], start=2) if present[at][i]}
        losses = []
        for name, (one, other) in of_row.items():
            logits = head(roles[one][[i]], roles[other][[i]])[0]
            losses.append(torch.logsumexp(logits, 0) - logits[("entailment", "neutral", "contradiction", "reversed").index(name)])
        expected = expected + 0.7 * sum(losses) / len(losses)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_an_objective_encodes_what_its_loss_uses_and_nothing_else() -> None:
    triplets = np.array([[1, 2, 3, 4], [5, 6, -1, -1]], dtype=np.int32)
    columns = {"premise": [1, 5], "entailment": [2, 6], "contradiction": [3, -1], "neutral": [4, -1]}
    for name in OBJECTIVES:
        for neutrals in (False, True):
            objective = make_objective(name, "kl", 0.05, neutral_block=neutrals)
            wanted = ["premise", "entailment"]
            wanted += ["contradiction"] if "con" in name or name == "simcse" else []
            wanted += ["neutral"] if neutrals else []
            encoded = triplet_batch(objective, triplets, "keep").sentences
            assert [column.tolist() for column in encoded] == [columns[role] for role in wanted]
            assert objective.params.roles == tuple(wanted)
            assert objective.similarity == (None if name == "simcse" else "kl")


@pytest.mark.parametrize(("name", "kind"), [("simcse", "kl"), ("ent", "kl"), ("ent", "kl-dimwise")])
def test_the_score_of_a_pair(name: ObjectiveName, kind: Literal["kl", "kl-dimwise"]) -> None:
    premise, hypothesis = draw(6, 4, 1), draw(6, 4, 2)
    found = make_objective(name, kind, 0.05).score(premise, hypothesis)
    for k, value in enumerate(found):
        p, h = premise[k], hypothesis[k]
        cosine = torch.dot(p.mean, h.mean) / (p.mean.norm() * h.mean.norm())
        torch.testing.assert_close(value, cosine if name == "simcse" else similarity(h, p, kind))


def test_what_an_objective_needs_is_asked_for() -> None:
    p = draw(3, 2, 1)
    assert torch.isfinite(contrastive_loss(p, p, None, "ent+rev"))
    with pytest.raises(ValueError, match="needs contradictions"):
        contrastive_loss(p, p, None, "ent+con+rev")
    with pytest.raises(ValueError, match="'rev'"):
        contrastive_loss(p, p, p, "rev")  # type: ignore[arg-type]
