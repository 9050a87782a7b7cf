"""The optimizer."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from conftest import PLAIN
from copies import ROOT

from pipeline.config.load import load_params
from pipeline.config.objective import IntersentParams
from pipeline.models.encoder import GaussianEncoder
from pipeline.objectives.choice import objective_of
from pipeline.training.step import new_parts, optimizer_for, set_rate


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


@pytest.mark.parametrize(("start", "factor"), [("identity", 1.0), ("random", 50.0)])
def test_an_operator_model_keeps_the_means_that_it_starts_with(tiny_backbone: Path, start: str, factor: float) -> None:
    p = load_params(PLAIN)
    model = p.model.encoder.model_copy(update={"backbone": str(tiny_backbone), "max_length": 24, "mean_start": start})
    encoder = GaussianEncoder.from_backbone(model, 1)
    train = p.train.model_copy(update={"head_rate_factor": 50.0})
    preset = yaml.safe_load((ROOT / "presets/intersent-quick.yaml").read_text(encoding="utf-8"))
    intersent = IntersentParams.model_validate(preset["objective"])
    optimizer = optimizer_for(encoder, train, 1e-3, new_parts(encoder, objective_of(intersent)))
    rate = {id(q): group["lr"] for group in optimizer.param_groups for q in group["params"]}
    assert rate[id(encoder.mean_head.weight)] == pytest.approx(1e-3 * factor)
    assert rate[id(encoder.variance_head.weight)] == pytest.approx(5e-2)
    assert rate[id(next(encoder.backbone.parameters()))] == pytest.approx(1e-3)  # type: ignore[union-attr]
    # For pairs the mean is new, however it starts.
    assert "mean_head." in new_parts(encoder, objective_of(p.objective))
