from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import PLAIN
from torch import Tensor

from pipeline.config.load import load_params
from pipeline.config.objectives import own_keys
from pipeline.families.candidates import Hidden
from pipeline.families.pairs.gaussian import GaussianName, GaussianObjective
from pipeline.gaussian.distribution import Gaussian, similarity
from pipeline.models.encoder import GaussianEncoder
from pipeline.objectives import contrastive_loss
from tests.objectives.reference import assert_same, double_loop, draw
from tests.relations import drawn_relation

OBJECTIVES: list[GaussianName] = ["ent", "ent+con", "ent+rev", "ent+con+rev"]

# These objectives make their modules from the encoder alone.
NO_BATCHES: Any = None


@pytest.mark.parametrize("kind", ["kl", "kl-dimwise"])
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("missing", [(), (1, 4)])
@pytest.mark.parametrize("premises", [None, [0, 1, 0, 2, 1, 0]])
@pytest.mark.parametrize("two_way", [(), (0, 3)])
def test_loss_and_gradient_equal_the_double_loop(
    objective: GaussianName, kind: str, missing: tuple[int, ...], premises: list[int] | None, two_way: tuple[int, ...]
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
    objective: GaussianName, kind: str, missing: tuple[int, ...]
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

    # The same candidates but the reversed ones; without block C those of the contradictions are none.
    expected = loop(objective, has) + weight * loop("simcse", has if "con" in objective else [False] * 5)
    assert_same(loss, expected, premise, entailment, contradiction, neutral)


@pytest.mark.parametrize("kind", ["kl", "kl-dimwise"])
@pytest.mark.parametrize("objective", ["ent+rev", "ent+con+rev"])
@pytest.mark.parametrize("weight", [2, 3])
def test_a_reverse_weight_counts_the_own_pair_turned_round_so_often(objective: GaussianName, kind: str, weight: int) -> None:
    premise, entailment, contradiction = (draw(4, 3, seed) for seed in (1, 2, 3))
    tau = 0.05

    def sim(a: Gaussian, b: Gaussian) -> Tensor:
        return torch.exp(similarity(a, b, kind) / tau)  # type: ignore[arg-type]

    expected = torch.zeros((), dtype=torch.float64)
    for i in range(4):
        total = sum((sim(entailment[j], premise[i]) for j in range(4)), torch.zeros((), dtype=torch.float64))
        if "con" in objective:
            total = total + sum(sim(contradiction[j], premise[i]) for j in range(4))
        # So often in place of once.
        total = total + sum(sim(premise[j], entailment[i]) for j in [0, 1, 2, 3, *[i] * (weight - 1)])
        expected = expected - torch.log(sim(entailment[i], premise[i]) / total) / 4
    loss = contrastive_loss(
        premise,
        entailment,
        contradiction,
        objective,
        kind,  # type: ignore[arg-type]
        tau,
        reverse_weight=weight,
    )
    assert_same(loss, expected, premise, entailment, contradiction)


def test_identical_candidates_give_the_logarithm_of_their_number() -> None:
    # With every Gaussian the same, each row's softmax is uniform over its 3n candidates.
    same = Gaussian(torch.zeros(4, 3), torch.zeros(4, 3))
    for objective, blocks in (("ent", 1), ("ent+con", 2), ("ent+rev", 2), ("ent+con+rev", 3)):
        assert contrastive_loss(same, same, same, objective).item() == pytest.approx(math.log(blocks * 4))  # type: ignore[arg-type]


def test_reversed_block_penalises_the_wrong_direction() -> None:
    wide, narrow = Gaussian(torch.zeros(1, 8), torch.ones(1, 8)), Gaussian(torch.zeros(1, 8), -torch.ones(1, 8))
    # The positive is sim(entailment‖premise): large when the entailed sentence lies inside the premise's Gaussian.
    assert contrastive_loss(wide, narrow, None, "ent+rev") < contrastive_loss(narrow, wide, None, "ent+rev")


@pytest.mark.parametrize("objective", ["ent+con+rev", "ent"])
def test_a_relation_head_adds_the_mean_cross_entropy_of_the_pairs_of_each_row(objective: GaussianName) -> None:
    roles = (
        [draw(5, 4, seed) for seed in (1, 2, 3, 4)] if objective == "ent+con+rev" else [draw(5, 4, seed) for seed in (1, 2, 4)]
    )
    plain = GaussianObjective(name=objective, similarity="kl", temperature=0.05, neutrals=True)
    weighted = GaussianObjective(name=objective, similarity="kl", temperature=0.05, neutrals=True, relation_weight=0.7)
    everyone = torch.ones(5, dtype=torch.bool)
    present = [everyone, everyone, *[torch.tensor([j != k for j in range(5)]) for k in range(1, len(roles) - 1)]]
    head = drawn_relation(4).head.double()
    # The pair of row 4 holds both ways.
    hidden: Hidden = {"R": torch.diag(torch.arange(5) == 4)}
    found = weighted.loss(roles, present, 5, hidden, head) - plain.loss(roles, present, 5, hidden)
    expected = torch.zeros((), dtype=torch.float64)
    for i in range(5):
        of_row = {"entailment": (0, 1), **({} if i == 4 else {"reversed": (1, 0)})}
        of_row |= {role: (0, at) for at, role in enumerate(weighted.roles[2:], start=2) if present[at][i]}
        losses = []
        for name, (one, other) in of_row.items():
            logits = head(roles[one][[i]], roles[other][[i]])[0]
            losses.append(torch.logsumexp(logits, 0) - logits[("entailment", "neutral", "contradiction", "reversed").index(name)])
        expected = expected + 0.7 * sum(losses) / len(losses)
    assert_same(found, expected, *roles)


def test_an_objective_without_a_relation_weight_has_no_modules(tiny_backbone: Path) -> None:
    params = load_params(PLAIN)
    encoder = GaussianEncoder.from_backbone(params.model.model_copy(update={"backbone": str(tiny_backbone), "max_length": 24}), 1)
    assert params.objective.make().modules(encoder, NO_BATCHES) is None
    weighted = own_keys(params.objective.model_dump() | {"relation_weight": 0.5}).make()
    assert isinstance(weighted, GaussianObjective)
    assert weighted.relation_weight == 0.5
    head = weighted.modules(encoder, NO_BATCHES)
    assert head is not None
    assert head.dim == encoder.dim
