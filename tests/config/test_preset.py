from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pipeline.config.data_params import test_set_names as set_names
from pipeline.config.load import load_params
from pipeline.config.preset import apply_presets
from pipeline.utils.errors import UserError
from tests.conftest import ROOT

GENERATED = ("quick", "quickthoughts-quick", "intersent-quick")
"""The presets that train on generated sentences."""
DATA = ("hub", "snli-mnli")
"""The presets that say only which data, for any recipe of pairs."""
NAMES = sorted({p.stem for p in (ROOT / "presets").glob("*.yaml")} - {*DATA})


@pytest.fixture
def params(tmp_path: Path) -> Path:
    return Path(shutil.copy(ROOT / "params.yaml", tmp_path / "params.yaml"))


def test_the_committed_parameters_are_the_quick_preset(params: Path) -> None:
    before = params.read_bytes()
    assert apply_presets(["quick"], params, ROOT / "presets") == []
    assert params.read_bytes() == before


@pytest.mark.parametrize("name", NAMES)
def test_there_and_back_leaves_every_byte(params: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GAUSSCSE_DATA", "/some/where")
    before = params.read_bytes()
    apply_presets([name], params, ROOT / "presets")
    loaded = load_params(params)
    if name not in GENERATED:
        assert loaded.data.root.startswith("/some/where")
        assert params.read_text(encoding="utf-8").count("#") >= before.decode().count("#")
    apply_presets(["quick"], params, ROOT / "presets")
    assert params.read_bytes() == before


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_leaves_nothing_of_the_one_before(params: Path, name: str) -> None:
    found = []
    for before in ("ablation", "intersent"):
        for applied in ("quick", before, name):
            apply_presets([applied], params, ROOT / "presets")
        found.append(load_params(params))
    assert found[0] == found[1]


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("recipe", ["recommended", "files"])
def test_data_take_the_place_of_those_of_a_recipe(params: Path, data: str, recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GAUSSCSE_DATA", "/some/where")
    apply_presets([recipe], params, ROOT / "presets")
    alone = load_params(params)
    # Of the data before, nothing is left, whatever they were.
    found = []
    for before in ("quick", "intersent"):
        for applied in ([before], [recipe, data]):
            apply_presets(applied, params, ROOT / "presets")
        found.append(load_params(params))
    assert found[0] == found[1]
    assert found[0].model_copy(update={"data": alone.data}) == alone
    assert "/some/where" not in params.read_text(encoding="utf-8")
    assert found[0].data.minimal_pairs == alone.data.minimal_pairs
    names = set_names(found[0].data)
    assert {"snli_test", "mnli_matched"} <= {*names}


def test_the_comments_behind_variants_of_ones_own_stay(params: Path) -> None:
    before = params.read_text(encoding="utf-8")
    assert before.count("  variants: {}\n") == 1
    variants = "variants:\n    a: {objective.name: ent}\n    b:\n      objective.name: simcse\n      train.seeds: [1]  # mine"
    for name in ("quick", "ablation"):
        params.write_text(before.replace("variants: {}", variants), encoding="utf-8")
        apply_presets([name], params, ROOT / "presets")
        apply_presets(["quick"], params, ROOT / "presets")
        assert params.read_text(encoding="utf-8") == before


def test_an_invalid_preset_leaves_the_parameters_alone(params: Path, tmp_path: Path) -> None:
    before = params.read_bytes()
    (tmp_path / "bad.yaml").write_text("train: {epochs: -1}\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"train\.epochs"):
        apply_presets(["bad"], params, tmp_path)
    assert params.read_bytes() == before
    with pytest.raises(UserError, match="no preset 'large'"):
        apply_presets(["large"], params, ROOT / "presets")
