from __future__ import annotations

from typing import Any

import pytest
from conftest import ROOT

from pipeline.config import load_params
from pipeline.errors import UserError
from pipeline.params import Params
from pipeline.variants import left_out, variants_of


def with_experiments(variants: dict[str, dict[str, Any]] | None = None, sweep: dict[str, list[Any]] | None = None) -> Params:
    params = load_params(ROOT / "params.yaml")
    experiments = params.experiments.model_copy(update={"variants": variants or {}, "sweep": sweep or {}})
    return params.model_copy(update={"experiments": experiments})


def test_the_committed_parameters_compare_nothing() -> None:
    assert variants_of(load_params(ROOT / "params.yaml")) == []


def test_a_variant_is_the_main_recipe_with_some_keys_changed() -> None:
    params = with_experiments(
        {"ent": {"objective.name": "ent"}, "dimwise": {"objective.similarity": "kl-dimwise", "tune.learning_rates": [3e-4]}}
    )
    ent, dimwise = variants_of(params)
    assert (ent.name, dimwise.name) == ("ent", "dimwise")
    assert ent.params.objective == params.objective.model_copy(update={"name": "ent"})
    assert (ent.params.model, ent.params.train, ent.params.tune) == (params.model, params.train, params.tune)
    assert dimwise.params.objective.similarity == "kl-dimwise"
    assert dimwise.params.tune.learning_rates == (3e-4,)
    assert dimwise.params.tune.batch_sizes == params.tune.batch_sizes
    # A variant has none of its own.
    assert ent.params.experiments.variants == {}


def test_a_sweep_is_every_combination_after_the_named_variants() -> None:
    found = variants_of(
        with_experiments(
            {"ent": {"objective.name": "ent"}},
            {"train.same_premise": ["keep", "mask"], "model.mean_activation": ["none"], "train.not_longer_share": [None, 0.25]},
        )
    )
    assert [variant.name for variant in found] == [
        "ent",
        "same_premise=keep,mean_activation=none,not_longer_share=null",
        "same_premise=keep,mean_activation=none,not_longer_share=0.25",
        "same_premise=mask,mean_activation=none,not_longer_share=null",
        "same_premise=mask,mean_activation=none,not_longer_share=0.25",
    ]
    assert found[4].params.train.same_premise == "mask"
    assert found[4].params.train.not_longer_share == 0.25
    assert found[4].params.model.mean_activation == "none"


def test_names_of_a_sweep_are_folders_and_short() -> None:
    long = {f"train.{key}": [1e-4] for key in ("warmup_ratio", "weight_decay", "head_rate_factor")}
    (variant,) = variants_of(with_experiments(sweep={"tune.learning_rates": [[1e-4, 3e-4]], **long, "tune.batch_sizes": [[16]]}))
    assert len(variant.name) == 80
    assert "/" not in variant.name
    (listed,) = variants_of(with_experiments(sweep={"tune.learning_rates": [[1e-4, 3e-4]]}))
    assert listed.name == "learning_rates=0.0001+0.0003"


def test_a_combination_that_is_another_s_recipe_is_left_out_and_named() -> None:
    params = with_experiments(
        sweep={"objective.name": ["ent+rev", "simcse"], "objective.similarity": ["kl", "kl-dimwise"], "train.epochs": [1, 2]}
    )
    names = [variant.name for variant in variants_of(params)]
    assert len(names) == 6
    assert "name=simcse,similarity=kl,epochs=2" in names
    assert [line.partition(":")[0] for line in left_out(params)] == [
        f"name=simcse,similarity=kl-dimwise,epochs={epochs} is left out of the sweep" for epochs in (1, 2)
    ]
    assert "has no effect with name: simcse" in left_out(params)[0]


@pytest.mark.parametrize(
    ("variants", "sweep", "message"),
    [
        (
            {"a": {"objective.nam": "ent"}},
            {},
            r"experiments\.variants\.a: objective\.nam: no such key; a variant may change model",
        ),
        ({"a": {"data.seed": 2}}, {}, r"experiments\.variants\.a: data\.seed: no such key"),
        ({"a": {"model.backbone": "x"}}, {}, r"model\.backbone: cannot vary, the token stores hang on it"),
        ({"a": {"objective.name": "entail"}}, {}, r"experiments\.variants\.a: objective\.name: got 'entail'"),
        ({"a": {"train.epochs": "many"}}, {}, r"experiments\.variants\.a: train\.epochs: got 'many'"),
        ({"a": {"train.same_premise": "mask"}, "b": {"train.same_premise": "mask"}}, {}, r"'b' is the same recipe as 'a'"),
        ({}, {"train.same_premise": ["mask", "mask"]}, r"experiments\.sweep: two variants are called 'same_premise=mask'"),
        ({}, {"train.schedule": ["linear-rise"], "train.warmup_ratio": [0.3]}, r"train\.warmup_ratio: got 0\.3: has no effect"),
        ({"s": {"objective.name": "simcse", "objective.simcse_weight": 1.0}}, {}, r"simcse_weight: got 1\.0: has no effect"),
        ({"s": {"objective.name": "ent+con", "objective.reverse_weight": 2.0}}, {}, r"reverse_weight: got 2\.0: has no effect"),
        ({"s": {"train.batch_lengths": "matched", "train.same_premise": "separate"}}, {}, r"cannot be had with same_premise"),
        ({"s": {"model.log_var_init": -3.0, "model.log_var_bound": 2.0}}, {}, r"log_var_init: got -3\.0: is not within"),
    ],
)
def test_what_is_wrong_is_named(variants: dict[str, Any], sweep: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        variants_of(with_experiments(variants, sweep))
