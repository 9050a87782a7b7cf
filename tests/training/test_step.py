"""The optimizer."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pipeline.config.load import load_params
from pipeline.config.objectives import own_keys
from pipeline.data.token_store import MISSING
from pipeline.families.operations.intersent import IntersentObjective
from pipeline.training import trainer
from pipeline.training.step import HEADS, new_parts, optimizer_for, set_rate
from tests.conftest import PLAIN
from tests.store import make_store
from tests.trial_of import OPERATIONS, folder_at, tiny_encoder, trial_on


def test_the_groups_of_the_optimizer(tiny_backbone: Path) -> None:
    p = load_params(PLAIN)
    encoder = tiny_encoder(tiny_backbone)
    optimizer = optimizer_for(encoder, p.train.model_copy(update={"head_rate_factor": 10.0, "weight_decay": 0.02}), 1e-3, HEADS)
    names = {id(parameter): name for name, parameter in encoder.named_parameters()}
    seen: list[str] = []
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            name = names[id(parameter)]
            assert group["weight_decay"] == (0 if "bias" in name or "LayerNorm" in name else 0.02)
            assert group["lr"] == pytest.approx(1e-2 if "_head." in name else 1e-3)
            seen.append(name)
    assert optimizer.defaults["fused"]
    assert sorted(seen) == sorted(names.values())
    set_rate(optimizer, 1e-4)
    assert sorted({round(group["lr"], 9) for group in optimizer.param_groups}) == [1e-4, 1e-3]


@pytest.mark.parametrize(
    ("model", "factor"),
    [
        ({"mean_start": "identity", "mean_activation": "none"}, 1.0),
        ({"mean_start": "identity", "mean_activation": "tanh"}, 50.0),
        ({"mean_start": "random", "mean_activation": "none"}, 50.0),
    ],
)
def test_a_model_of_operators_keeps_the_means_that_it_starts_with(
    tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: dict[str, str], factor: float
) -> None:
    monkeypatch.setattr(IntersentObjective, "dev_rows", lambda self, tokens: None)
    texts = [[2, 5 + k, 6 + k, 3] for k in range(12)]
    rows = {"operations": [(k, MISSING, k + 1) for k in range(8)]}
    numbers = {"operations": {"operation": [2, 3] * 4}}
    stores = make_store(tmp_path / "train", texts, rows=rows, numbers=numbers), make_store(tmp_path / "dev", texts)
    trial = trial_on(tiny_backbone, stores, 1e-3, head_rate_factor=50.0, schedule="linear-decay")
    trial = trial.model_copy(update={"model": trial.model.model_copy(update=model), "objective": own_keys(OPERATIONS)})
    run = trainer._Run(*stores, folder_at(trial, tmp_path / "trial"), lambda _: None, torch.device("cpu"), lambda: False)
    factors = {id(q): group["factor"] for group in run.optimizer.param_groups for q in group["params"]}
    assert factors[id(run.encoder.mean_head.weight)] == factors[id(run.encoder.mean_head.bias)] == factor
    assert {factors[id(q)] for q in run.encoder.backbone.parameters()} == {1.0}  # type: ignore[union-attr]
    assert run.modules is not None
    assert {factors[id(q)] for q in run.modules.parameters()} == {50.0}
    # For pairs the mean is new, however it starts.
    assert new_parts(run.encoder, load_params(PLAIN).objective.make()) == HEADS
