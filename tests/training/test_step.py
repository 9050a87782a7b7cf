"""The optimizer."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import PLAIN

from pipeline.config.load import load_params
from pipeline.models.encoder import GaussianEncoder
from pipeline.training.step import optimizer_for, set_rate


def test_biases_and_layer_norms_are_not_decayed_and_heads_have_their_own_rate(tiny_backbone: Path) -> None:
    p = load_params(PLAIN)
    encoder = GaussianEncoder.from_backbone(p.model.model_copy(update={"backbone": str(tiny_backbone), "max_length": 24}), 1)
    optimizer = optimizer_for(encoder, p.train.model_copy(update={"head_rate_factor": 10.0, "weight_decay": 0.02}), 1e-3)
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
