from __future__ import annotations

from typing import Any

import pytest

from pipeline.config.load import load_params
from pipeline.config.params import Params
from pipeline.families.pairs.params import GaussianParams, SimcseParams
from pipeline.trials.variants import variants_of
from pipeline.utils.errors import UserError
from tests.conftest import ROOT


def with_experiments(variants: dict[str, dict[str, Any]]) -> Params:
    params = load_params(ROOT / "params.yaml")
    experiments = params.experiments.model_copy(update={"variants": variants})
    return params.model_copy(update={"experiments": experiments})


def test_a_variant_is_the_main_recipe_with_some_keys_changed() -> None:
    params = with_experiments(
        {"ent": {"objective.name": "ent"}, "dimwise": {"objective.similarity": "kl-dimwise", "tune.learning_rates": [3e-4]}}
    )
    ent, dimwise = variants_of(params)
    assert (ent.name, dimwise.name) == ("ent", "dimwise")
    assert ent.params.objective.model_dump() == {**params.objective.model_dump(), "name": "ent"}
    assert (ent.params.model, ent.params.train, ent.params.tune) == (params.model, params.train, params.tune)
    assert isinstance(dimwise.params.objective, GaussianParams)
    assert dimwise.params.objective.similarity == "kl-dimwise"
    assert dimwise.params.tune.learning_rates == (3e-4,)
    assert dimwise.params.tune.batch_sizes == params.tune.batch_sizes
    # A variant has none of its own.
    assert ent.params.experiments.variants == {}


def test_a_variant_gives_the_keys_that_the_main_recipe_lacks() -> None:
    params = with_experiments(
        {
            "lacking": {"objective.name": "ent"},
            "whole": {
                "objective.name": "ent",
                "objective.similarity": "kl",
                "objective.simcse_weight": 0.0,
                "objective.relation_weight": 0.0,
            },
        }
    )
    simcse = SimcseParams(name="simcse", temperature=0.1, reduction="mean", neutral_block=False)
    params = params.model_copy(update={"objective": simcse})
    with pytest.raises(
        UserError, match=r"variants\.lacking: objective\.similarity: this key is missing; add it .* \(and 2 more\)"
    ):
        variants_of(params)
    del params.experiments.variants["lacking"]
    (whole,) = variants_of(params)
    assert whole.params.objective.model_dump() == {
        **simcse.model_dump(),
        "name": "ent",
        "similarity": "kl",
        "simcse_weight": 0.0,
        "relation_weight": 0.0,
    }


@pytest.mark.parametrize(
    ("variants", "message"),
    [
        ({"a": {"objective.nam": "ent"}}, r"experiments\.variants\.a: objective\.nam: no such key; a variant may change model"),
        ({"a": {"model.backbone": "x"}}, r"model\.backbone: cannot vary: the token stores depend on it"),
        ({"a": {"objective.name": "entail"}}, r"experiments\.variants\.a: objective\.name: got 'entail'"),
        ({"a": {"train.same_premise": "mask"}, "b": {"train.same_premise": "mask"}}, r"'b' is the same recipe as 'a'"),
        ({"a+b": {"train.same_premise": "mask"}, "a=b": {"train.epochs": 2}}, r"two variants are called 'a=b' \(or nearly so\)"),
        ({"s": {"train.schedule": "linear-rise", "train.warmup_ratio": 0.3}}, r"train\.warmup_ratio: got 0\.3: has no effect"),
        ({"s": {"objective.name": "simcse", "objective.simcse_weight": 1.0}}, r"simcse_weight: not a key of objective simcse"),
    ],
)
def test_what_is_wrong_is_named(variants: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        variants_of(with_experiments(variants))
