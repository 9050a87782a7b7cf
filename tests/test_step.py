"""A worker's share of a global batch, and the optimizer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT

from pipeline.config import load_params
from pipeline.encoder import GaussianEncoder
from pipeline.step import optimizer_for, set_rate, share_of


def test_a_triplet_that_is_drawn_twice_is_no_negative_of_itself() -> None:
    # Rows 0 and 2 are one triplet; row 3 has its premise with another entailment.
    triplets = np.array([[1, 2, 3, -1], [4, 5, 6, -1], [1, 2, 3, -1], [1, 7, 3, -1]], dtype=np.int32)
    kept = share_of(triplets, "keep").hidden
    assert kept is not None
    assert np.argwhere(kept.numpy()).tolist() == [[0, 2], [2, 0]]
    masked = share_of(triplets, "mask").hidden
    assert masked is not None
    assert np.argwhere(masked.numpy()).tolist() == [[0, 2], [0, 3], [2, 0], [2, 3], [3, 0], [3, 2]]
    assert share_of(triplets[:2], "keep").hidden is None


def test_biases_and_layer_norms_are_not_decayed_and_heads_have_their_own_rate(tiny_backbone: Path) -> None:
    p = load_params(ROOT / "params.yaml")
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
