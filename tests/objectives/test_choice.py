from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from conftest import PLAIN

from pipeline.config.load import load_params
from pipeline.config.objectives import own_keys
from pipeline.families.pairs.gaussian import GaussianObjective
from pipeline.families.pairs.params import ObjectiveName
from pipeline.families.pairs.simcse import SimCSEObjective
from pipeline.families.pairs.triplets import triplet_batch
from pipeline.gaussian.distribution import Gaussian, similarity
from pipeline.objectives import contrastive_loss, make_objective
from tests.objectives.reference import draw

OBJECTIVES: list[ObjectiveName] = ["ent", "ent+con", "ent+rev", "ent+con+rev", "simcse"]


def test_an_objective_encodes_what_its_loss_uses_and_nothing_else() -> None:
    triplets = np.array([[1, 2, 3, 4], [5, 6, -1, -1]], dtype=np.int32)
    columns = {"premise": [1, 5], "entailment": [2, 6], "contradiction": [3, -1], "neutral": [4, -1]}
    for name in OBJECTIVES:
        for neutrals in (False, True):
            objective = make_objective(name, "kl", 0.05, neutrals=neutrals)
            wanted = ["premise", "entailment"]
            wanted += ["contradiction"] if "con" in name or name == "simcse" else []
            wanted += ["neutral"] if neutrals else []
            encoded = triplet_batch(objective, triplets, "keep").sentences
            assert [column.tolist() for column in encoded] == [columns[role] for role in wanted]
            assert objective.roles == tuple(wanted)
            assert objective.uses_variance == (name != "simcse")
            assert objective.similarity == (None if name == "simcse" else "kl")


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


def test_what_an_objective_needs_is_asked_for() -> None:
    p = draw(3, 2, 1)
    assert torch.isfinite(contrastive_loss(p, p, None, "ent+rev"))
    with pytest.raises(ValueError, match="needs contradictions"):
        contrastive_loss(p, p, None, "ent+con+rev")
    with pytest.raises(ValueError, match="unknown objective"):
        contrastive_loss(p, p, p, "rev")  # type: ignore[arg-type]


def test_every_key_of_the_section_reaches_its_objective() -> None:
    keys = {"similarity": "kl-dimwise", "temperature": 0.1, "neutral_block": True, "simcse_weight": 0.5, "reverse_weight": 3.0}
    given = {**load_params(PLAIN).objective.model_dump(), **keys, "reduction": "sum"}
    for name in OBJECTIVES:
        params = own_keys({**given, "name": name})
        found = params.make()
        # Histories and config.json are read by the name that the parameters have.
        assert found.score_name == params.score_name
        if name == "simcse":
            assert found == SimCSEObjective(temperature=0.1, reduction="sum", neutrals=True)
            continue
        assert found == GaussianObjective(
            name=name,
            similarity="kl-dimwise",
            temperature=0.1,
            reduction="sum",
            neutrals=True,
            simcse_weight=0.5,
            reverse_weight=3.0 if "rev" in name else 1.0,
        )
