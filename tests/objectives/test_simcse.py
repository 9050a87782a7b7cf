from __future__ import annotations

import pytest
import torch

from pipeline.objectives import contrastive_loss
from tests.objectives.reference import assert_same, double_loop, draw


@pytest.mark.parametrize("missing", [(), (1, 4)])
@pytest.mark.parametrize("premises", [None, [0, 1, 0, 2, 1, 0]])
@pytest.mark.parametrize("neutrals", [False, True])
def test_loss_and_gradient_equal_the_double_loop(missing: tuple[int, ...], premises: list[int] | None, neutrals: bool) -> None:
    premise, entailment, contradiction, neutral = (draw(6, 5, seed) for seed in (1, 2, 3, 4))
    has, has_neutral = [j not in missing for j in range(6)], [j != 2 for j in range(6)]
    third = neutral if neutrals else None
    loss = contrastive_loss(
        premise,
        entailment,
        contradiction,
        objective="simcse",
        temperature=0.07,
        has_contradiction=torch.tensor(has),
        premise_ids=None if premises is None else torch.tensor(premises),
        neutral=third,
        has_neutral=torch.tensor(has_neutral),
    )
    rows = premises or list(range(6))
    expected = double_loop(premise, entailment, contradiction, "simcse", "kl", 0.07, has, rows, third, has_neutral)
    assert_same(loss, expected, premise, entailment, contradiction, neutral)


def test_what_only_the_other_objectives_have_changes_nothing() -> None:
    roles = [draw(4, 3, seed) for seed in (1, 2, 3)]
    plain = contrastive_loss(*roles, objective="simcse")
    assert torch.equal(
        plain, contrastive_loss(*roles, objective="simcse", similarity="kl-dimwise", simcse_weight=2.0, reverse_weight=3.0)
    )
