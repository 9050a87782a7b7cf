from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from pipeline.gaussian import Gaussian, similarity
from pipeline.objectives import ObjectiveName, contrastive_loss, make_objective

OBJECTIVES: list[ObjectiveName] = ["ent", "ent+con", "ent+rev", "ent+con+rev", "simcse"]


def draw(n: int, dim: int, seed: int) -> Gaussian:
    g = torch.Generator().manual_seed(seed)
    return Gaussian(
        torch.randn(n, dim, generator=g, dtype=torch.float64).requires_grad_(),
        (0.3 * torch.randn(n, dim, generator=g, dtype=torch.float64)).requires_grad_(),
    )


def double_loop(
    premise: Gaussian,
    entailment: Gaussian,
    contradiction: Gaussian,
    objective: str,
    kind: str,
    tau: float,
    has: list[bool],
    premises: list[int],
    neutral: Gaussian | None = None,
    has_neutral: list[bool] | None = None,
) -> Tensor:
    """Eq. 4 as it is written: for every row, the positive over the sum of all candidates.

    Left out: contradictions and neutral pairs that are missing, and the entailments of other rows with the same premise.
    """

    def sim(a: Gaussian, b: Gaussian) -> Tensor:
        if objective == "simcse":
            return torch.dot(a.mean, b.mean) / (a.mean.norm() * b.mean.norm())
        return similarity(a, b, kind)  # type: ignore[arg-type]

    total = torch.zeros((), dtype=torch.float64)
    n = len(premise)
    for i in range(n):
        candidates = [sim(entailment[j], premise[i]) for j in range(n) if j == i or premises[j] != premises[i]]
        positive = sim(entailment[i], premise[i])
        if "con" in objective or objective == "simcse":
            candidates += [sim(contradiction[j], premise[i]) for j in range(n) if has[j]]
        if neutral is not None:
            candidates += [sim(neutral[j], premise[i]) for j in range(n) if has_neutral is None or has_neutral[j]]
        if "rev" in objective:
            candidates += [sim(premise[j], entailment[i]) for j in range(n)]
        total = total - torch.log(
            torch.exp(positive / tau) / torch.stack([torch.exp(candidate / tau) for candidate in candidates]).sum()
        )
    return total / n


def assert_same(loss: Tensor, expected: Tensor, *roles: Gaussian) -> None:
    """Equal values, and equal gradients to every role; a role that neither uses has the gradient zero."""
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=0)
    tensors = [t for role in roles for t in (role.mean, role.log_var)]
    for ours, theirs in zip(
        torch.autograd.grad(loss, tensors, allow_unused=True, materialize_grads=True),
        torch.autograd.grad(expected, tensors, allow_unused=True, materialize_grads=True),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", ["kl", "kl-dimwise"])
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("missing", [(), (1, 4)])
@pytest.mark.parametrize("premises", [None, [0, 1, 0, 2, 1, 0]])
def test_loss_and_gradient_equal_the_double_loop(
    objective: ObjectiveName, kind: str, missing: tuple[int, ...], premises: list[int] | None
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
    )
    expected = double_loop(*roles, objective, kind, 0.05, has, premises or list(range(6)))  # type: ignore[arg-type]
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


@pytest.mark.parametrize("kind", ["kl", "kl-dimwise"])
@pytest.mark.parametrize("objective", ["ent+rev", "ent+con+rev"])
def test_a_reverse_weight_counts_the_own_pair_turned_round_so_often(objective: ObjectiveName, kind: str) -> None:
    premise, entailment, contradiction = (draw(4, 3, seed) for seed in (1, 2, 3))
    tau, weight = 0.05, 3

    def sim(a: Gaussian, b: Gaussian) -> Tensor:
        return torch.exp(similarity(a, b, kind) / tau)  # type: ignore[arg-type]

    expected = torch.zeros((), dtype=torch.float64)
    for i in range(4):
        total = sum((sim(entailment[j], premise[i]) for j in range(4)), torch.zeros((), dtype=torch.float64))
        if "con" in objective:
            total = total + sum(sim(contradiction[j], premise[i]) for j in range(4))
        # Three times in place of once.
        total = total + sum(sim(premise[j], entailment[i]) for j in [0, 1, 2, 3, i, i])
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


def test_an_objective_encodes_what_its_loss_uses_and_nothing_else() -> None:
    triplets = np.array([[1, 2, 3, 4], [5, 6, -1, -1]], dtype=np.int32)
    columns = {"premise": [1, 5], "entailment": [2, 6], "contradiction": [3, -1], "neutral": [4, -1]}
    for name in OBJECTIVES:
        for neutrals in (False, True):
            objective = make_objective(name, "kl", 0.05, neutrals=neutrals)
            wanted = ["premise", "entailment"]
            wanted += ["contradiction"] if "con" in name or name == "simcse" else []
            wanted += ["neutral"] if neutrals else []
            assert [column.tolist() for column in objective.sentences(triplets)] == [columns[role] for role in wanted]
            assert objective.uses_variance == (name != "simcse")


@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 3, 4)])
def test_scores_are_of_the_last_dimension(shape: tuple[int, ...]) -> None:
    count = math.prod(shape[:-1])
    flat = draw(count, 4, 1), draw(count, 4, 2)
    premise, hypothesis = (Gaussian(g.mean.reshape(shape), g.log_var.reshape(shape)) for g in flat)
    for name, kind in (("simcse", "kl"), ("ent", "kl"), ("ent", "kl-dimwise")):
        found = make_objective(name, kind, 0.05).score(premise, hypothesis)  # type: ignore[arg-type]
        assert found.shape == shape[:-1]
        for k, value in enumerate(found.reshape(-1)):
            p, h = flat[0][k], flat[1][k]
            cosine = torch.dot(p.mean, h.mean) / (p.mean.norm() * h.mean.norm())
            expected = cosine if name == "simcse" else similarity(h, p, kind)  # type: ignore[arg-type]
            torch.testing.assert_close(value, expected)


def test_identical_candidates_give_the_logarithm_of_their_number() -> None:
    # With every Gaussian the same, each row's softmax is uniform over its 3n candidates.
    same = Gaussian(torch.zeros(4, 3), torch.zeros(4, 3))
    for objective, blocks in (("ent", 1), ("ent+con", 2), ("ent+rev", 2), ("ent+con+rev", 3)):
        assert contrastive_loss(same, same, same, objective).item() == pytest.approx(math.log(blocks * 4))  # type: ignore[arg-type]


def test_reversed_block_penalises_the_wrong_direction() -> None:
    wide, narrow = Gaussian(torch.zeros(1, 8), torch.ones(1, 8)), Gaussian(torch.zeros(1, 8), -torch.ones(1, 8))
    # The positive is sim(entailment‖premise): large when the entailed sentence lies inside the premise's Gaussian.
    assert contrastive_loss(wide, narrow, None, "ent+rev") < contrastive_loss(narrow, wide, None, "ent+rev")


def test_what_an_objective_needs_is_asked_for() -> None:
    p = draw(3, 2, 1)
    assert torch.isfinite(contrastive_loss(p, p, None, "ent+rev"))
    with pytest.raises(ValueError, match="needs contradictions"):
        contrastive_loss(p, p, None, "ent+con+rev")
    with pytest.raises(ValueError, match="unknown objective"):
        contrastive_loss(p, p, p, "rev")  # type: ignore[arg-type]
