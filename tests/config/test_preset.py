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
DATA = ("hub", "jsnli", "nli-parquet", "snli-mnli")
"""The presets that say only which data, for any recipe of pairs."""
RECIPES = ("ablation", "multilingual", "paper", "recommended")
"""The presets that leave the data as they are."""
NAMES = sorted({p.stem for p in (ROOT / "presets").glob("*.yaml")} - {*DATA, *RECIPES})


@pytest.fixture(autouse=True)
def data_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GAUSSCSE_DATA", "/some/where")


@pytest.fixture
def params(tmp_path: Path) -> Path:
    return Path(shutil.copy(ROOT / "params.yaml", tmp_path / "params.yaml"))


def test_the_committed_parameters_are_the_quick_preset(params: Path) -> None:
    before = params.read_bytes()
    assert apply_presets(["quick"], params, ROOT / "presets") == []
    assert params.read_bytes() == before


@pytest.mark.parametrize("names", [[name] for name in (*NAMES, *RECIPES)] + [["recommended", name] for name in DATA])
def test_there_and_back_leaves_every_byte(params: Path, names: list[str]) -> None:
    before = params.read_bytes()
    apply_presets(names, params, ROOT / "presets")
    loaded = load_params(params)
    if names[-1] not in GENERATED:
        expected = {"snli-mnli": "corpora", "jsnli": "corpora", "nli-parquet": "/some/where"}
        generated = "pipeline/data/lexicon/words.json" if names[-1] in (*RECIPES, "hub") else "/some/where"
        assert loaded.data.root == expected.get(names[-1], generated)
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


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_leaves_the_data_of_a_user(params: Path, recipe: str) -> None:
    apply_presets(["quick", "snli-mnli"], params, ROOT / "presets")
    before = load_params(params).data
    apply_presets([recipe], params, ROOT / "presets")
    after = load_params(params).data
    assert after.model_copy(update={"minimal_pairs": before.minimal_pairs}) == before


def test_data_of_a_place_that_nobody_named_are_one_line(params: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GAUSSCSE_DATA")
    before = params.read_bytes()
    for name in ("nli-parquet", "intersent", "quickthoughts"):
        with pytest.raises(UserError, match=rf"{name}\.yaml: set the environment variable GAUSSCSE_DATA to the folder"):
            apply_presets(["recommended", name], params, ROOT / "presets")
    assert params.read_bytes() == before
    for folder in ("presets", "pipeline"):
        assert not [file for file in (ROOT / folder).rglob("*.[yp]*") if b"../shared" in file.read_bytes()]


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("recipe", ["recommended", "paper"])
def test_data_take_the_place_of_those_before(params: Path, data: str, recipe: str) -> None:
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
    assert ("/some/where" in params.read_text(encoding="utf-8")) == (data == "nli-parquet")
    assert found[0].data.minimal_pairs == alone.data.minimal_pairs
    names = set_names(found[0].data)
    assert len(names) == {"hub": 2, "jsnli": 1, "nli-parquet": 3, "snli-mnli": 4}[data]


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
