from __future__ import annotations

from typing import Any

import pytest

from pipeline.config.load import load_params
from pipeline.config.params import Params
from pipeline.families.pairs.params import ReversedParams, SimcseParams
from pipeline.trials.variants import left_out, variants_of
from pipeline.utils.errors import UserError
from tests.conftest import ROOT


def with_experiments(variants: dict[str, dict[str, Any]] | None = None, sweep: dict[str, list[Any]] | None = None) -> Params:
    params = load_params(ROOT / "params.yaml")
    experiments = params.experiments.model_copy(update={"variants": variants or {}, "sweep": sweep or {}})
    return params.model_copy(update={"experiments": experiments})


def test_a_variant_is_the_main_recipe_with_some_keys_changed() -> None:
    params = with_experiments(
        {"ent": {"objective.name": "ent"}, "dimwise": {"objective.similarity": "kl-dimwise", "tune.learning_rates": [3e-4]}}
    )
    ent, dimwise = variants_of(params)
    assert (ent.name, dimwise.name) == ("ent", "dimwise")
    # The reversed set and its weight went with the name.
    same = {key: value for key, value in params.objective.model_dump().items() if key != "reverse_weight"}
    assert ent.params.objective.model_dump() == {**same, "name": "ent"}
    assert (ent.params.model, ent.params.train, ent.params.tune) == (params.model, params.train, params.tune)
    assert isinstance(dimwise.params.objective, ReversedParams)
    assert dimwise.params.objective.similarity == "kl-dimwise"
    assert dimwise.params.tune.learning_rates == (3e-4,)
    assert dimwise.params.tune.batch_sizes == params.tune.batch_sizes
    # A variant has none of its own.
    assert ent.params.experiments.variants == {}


def test_a_sweep_is_every_combination_after_the_named_variants() -> None:
    found = variants_of(
        with_experiments(
            {"ent": {"objective.name": "ent"}},
            {"train.same_premise": ["keep", "mask"], "model.mean_activation": ["none"], "model.dim": [None, 24]},
        )
    )
    assert [variant.name for variant in found] == [
        "ent",
        "same_premise=keep,mean_activation=none,dim=null",
        "same_premise=keep,mean_activation=none,dim=24",
        "same_premise=mask,mean_activation=none,dim=null",
        "same_premise=mask,mean_activation=none,dim=24",
    ]
    assert found[4].params.train.same_premise == "mask"
    assert found[4].params.model.dim == 24
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
    variants = variants_of(params)
    rev = [f"name=ent+rev,similarity={kind},epochs={epochs}" for kind in ("kl", "kl-dimwise") for epochs in (1, 2)]
    assert [variant.name for variant in variants] == [*rev, "name=simcse,epochs=1", "name=simcse,epochs=2"]
    assert variants[-1].overrides == {"objective.name": "simcse", "train.epochs": 2}
    assert left_out(params) == [
        f"name=simcse,similarity=kl-dimwise,epochs={epochs} is left out of the sweep: objective simcse has no similarity"
        for epochs in (1, 2)
    ]


def test_a_combination_in_which_a_key_has_no_effect_is_left_out_and_named() -> None:
    params = with_experiments(sweep={"train.schedule": ["warmup-linear-decay", "linear-decay"], "train.warmup_ratio": [0.1, 0.2]})
    names = [variant.name for variant in variants_of(params)]
    assert names == [
        "schedule=warmup-linear-decay,warmup_ratio=0.1",
        "schedule=warmup-linear-decay,warmup_ratio=0.2",
        "schedule=linear-decay,warmup_ratio=0.1",
    ]
    (line,) = left_out(params)
    assert line.startswith("schedule=linear-decay,warmup_ratio=0.2 is left out of the sweep: train.warmup_ratio has no effect")


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
    ("variants", "sweep", "message"),
    [
        (
            {"a": {"objective.nam": "ent"}},
            {},
            r"experiments\.variants\.a: objective\.nam: no such key; a variant may change model",
        ),
        ({"a": {"model.backbone": "x"}}, {}, r"model\.backbone: cannot vary: the token stores depend on it"),
        ({"a": {"objective.name": "entail"}}, {}, r"experiments\.variants\.a: objective\.name: got 'entail'"),
        ({"a": {"train.same_premise": "mask"}, "b": {"train.same_premise": "mask"}}, {}, r"'b' is the same recipe as 'a'"),
        ({}, {"train.same_premise": ["mask", "mask"]}, r"experiments\.sweep: two variants are called 'same_premise=mask'"),
        ({}, {"train.schedule": ["linear-rise"], "train.warmup_ratio": [0.3]}, r"train\.warmup_ratio: got 0\.3: has no effect"),
        (
            {"s": {"objective.name": "simcse", "objective.simcse_weight": 1.0}},
            {},
            r"simcse_weight: not a key of objective simcse",
        ),
        (
            {},
            {"objective.name": ["ent", "simcse"], "objective.reverse_weight": [1.0, 2.0]},
            r"sweep: objective\.reverse_weight: not a key of objective ent;",
        ),
        ({"s": {"train.batch_lengths": "matched", "train.same_premise": "separate"}}, {}, r"does not work with same_premise"),
    ],
)
def test_what_is_wrong_is_named(variants: dict[str, Any], sweep: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        variants_of(with_experiments(variants, sweep))
