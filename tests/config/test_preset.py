from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import ROOT

from pipeline.config.load import load_params
from pipeline.config.objective import IntersentParams, QuickThoughtsParams
from pipeline.config.preset import apply_preset
from pipeline.utils.errors import UserError

GENERATED = ("quick", "quickthoughts-quick", "intersent-quick")
"""The presets that train on generated sentences."""
NAMES = sorted(p.stem for p in (ROOT / "presets").glob("*.yaml"))


@pytest.fixture
def params(tmp_path: Path) -> Path:
    return Path(shutil.copy(ROOT / "params.yaml", tmp_path / "params.yaml"))


def keys(value: Any, path: str = "") -> set[str]:
    if isinstance(value, dict) and path not in (
        "data.files.tests.",
        "data.files.sts.",
        "data.files.text_tests.",
        "data.files.tasks.",
        "data.files.operations_tests.",
        "evaluate.threshold_on.",
        "experiments.variants.",
        "experiments.sweep.",
    ):
        return {k for key, inner in value.items() for k in keys(inner, f"{path}{key}.")}
    return {path} if not path.startswith("data.files.dev.") else {"data.files.dev."}


def test_the_presets_are_there_and_set_the_same_keys() -> None:
    assert [
        *(
            "ablation",
            "files",
            "intersent",
            "intersent-quick",
            "paper",
            "quick",
            "quickthoughts",
            "quickthoughts-quick",
            "recommended",
        ),
    ] == NAMES
    sets = {name: keys(yaml.safe_load((ROOT / f"presets/{name}.yaml").read_text(encoding="utf-8"))) for name in NAMES}
    # Only the presets that train on generated sentences say how many.
    for name in GENERATED:
        sets[name] -= {f"data.generated.{split}." for split in ("train", "dev", "test", "documents", "operations")}
    # An objective on other rows than triplets has other keys.
    of_objective = {name: {key for key in sets[name] if key.startswith("objective.")} for name in NAMES}
    assert (
        of_objective["quickthoughts"]
        == of_objective["quickthoughts-quick"]
        == {f"objective.{key}." for key in QuickThoughtsParams.model_fields}
    )
    own = {key.split(".")[1] for key in of_objective["intersent-quick"]}
    assert own == set(IntersentParams.model_fields)
    on_triplets = [name for name in NAMES if not name.startswith(("quickthoughts", "intersent"))]
    assert all(of_objective[name] == of_objective["paper"] for name in on_triplets)
    assert all(sets[name] - of_objective[name] == sets["paper"] - of_objective["paper"] for name in NAMES)


def test_the_committed_parameters_are_the_quick_preset(params: Path) -> None:
    before = params.read_bytes()
    assert apply_preset("quick", params, ROOT / "presets") == []
    assert params.read_bytes() == before


@pytest.mark.parametrize("name", NAMES)
def test_there_and_back_leaves_every_byte(params: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GAUSSCSE_DATA", "/some/where")
    before = params.read_bytes()
    apply_preset(name, params, ROOT / "presets")
    loaded = load_params(params)
    if name not in GENERATED:
        assert loaded.data.root.startswith("/some/where")
        assert params.read_text(encoding="utf-8").count("#") >= before.decode().count("#")
    apply_preset("quick", params, ROOT / "presets")
    assert params.read_bytes() == before


@pytest.mark.parametrize(
    "variants",
    [
        "variants:\n    a: {objective.name: ent}\n    b:\n      objective.name: simcse\n      train.seeds: [1]  # mine",
        "variants:\n    a:\n      train.seeds:\n        - 1\n        - 2",
    ],
)
def test_the_comments_behind_variants_of_ones_own_stay(params: Path, variants: str) -> None:
    before = params.read_text(encoding="utf-8")
    assert before.count("  variants: {}\n") == 1
    params.write_text(before.replace("variants: {}", variants), encoding="utf-8")
    apply_preset("quick", params, ROOT / "presets")
    assert params.read_text(encoding="utf-8") == before
    params.write_text(before.replace("variants: {}", variants), encoding="utf-8")
    apply_preset("ablation", params, ROOT / "presets")
    apply_preset("quick", params, ROOT / "presets")
    assert params.read_text(encoding="utf-8") == before


def test_the_files_preset_is_the_issued_setting(params: Path) -> None:
    apply_preset("files", params, ROOT / "presets")
    p = load_params(params)
    assert (p.objective.name, p.objective.similarity) == ("ent+con+rev", "kl")
    assert (p.tune.learning_rates, p.tune.batch_sizes, p.train.seeds) == ((1e-4,), (32,), (1, 2, 3))
    assert (p.train.epochs, p.train.schedule, p.train.warmup_ratio) == (1, "warmup-linear-decay", 0.1)
    assert (p.model.max_length, p.model.mean_activation) == (64, "tanh")


def test_the_recommended_recipe_departs_from_the_papers_setting_in_eight_keys(params: Path) -> None:
    found: list[dict[str, Any]] = []
    for name in ("files", "recommended"):
        apply_preset(name, params, ROOT / "presets")
        found.append(flat(load_params(params).model_dump(mode="json", by_alias=True)))
    files, recommended = found
    assert {key: (files.get(key), recommended[key]) for key in recommended if files.get(key) != recommended[key]} == {
        # Not part of the recipe: what it is compared with, and how often it is scored.
        "experiments.variants.simcse.model.relation_head": (None, "none"),
        "experiments.variants.simcse.objective.name": (None, "simcse"),
        "experiments.variants.simcse.objective.temperature": (None, 0.05),
        "train.eval_every": (100, 250),
        "model.pooling": ("first", "mean"),
        "model.relation_head": ("none", "mlp"),
        "objective.simcse_weight": (0.0, 1.0),
        "objective.relation_weight": (0.0, 1.0),
        "objective.neutral_block": (False, True),
        "objective.similarity": ("kl", "kl-dimwise"),
        "objective.temperature": (0.05, 0.02),
        "train.head_rate_factor": (1.0, 10.0),
    }


def flat(tree: dict[str, Any], path: str = "") -> dict[str, Any]:
    """Dotted key → value."""
    return {
        name: value
        for key, inner in tree.items()
        for name, value in (flat(inner, f"{path}{key}.").items() if isinstance(inner, dict) else {path + key: inner}.items())
    }


def test_an_invalid_preset_leaves_the_parameters_alone(params: Path, tmp_path: Path) -> None:
    before = params.read_bytes()
    (tmp_path / "bad.yaml").write_text("train: {epochs: -1}\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"train\.epochs"):
        apply_preset("bad", params, tmp_path)
    assert params.read_bytes() == before
    with pytest.raises(UserError, match="no preset 'large'"):
        apply_preset("large", params, ROOT / "presets")
