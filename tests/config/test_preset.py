from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pipeline.config.load import load_params
from pipeline.config.preset import apply_preset
from pipeline.utils.errors import UserError
from tests.conftest import ROOT

GENERATED = ("quick", "quickthoughts-quick", "intersent-quick")
"""The presets that train on generated sentences."""
NAMES = sorted(p.stem for p in (ROOT / "presets").glob("*.yaml"))


@pytest.fixture
def params(tmp_path: Path) -> Path:
    return Path(shutil.copy(ROOT / "params.yaml", tmp_path / "params.yaml"))


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


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_leaves_nothing_of_the_one_before(params: Path, name: str) -> None:
    found = []
    for before in ("ablation", "intersent"):
        for applied in ("quick", before, name):
            apply_preset(applied, params, ROOT / "presets")
        found.append(load_params(params))
    assert found[0] == found[1]


def test_the_comments_behind_variants_of_ones_own_stay(params: Path) -> None:
    before = params.read_text(encoding="utf-8")
    assert before.count("  variants: {}\n") == 1
    variants = "variants:\n    a: {objective.name: ent}\n    b:\n      objective.name: simcse\n      train.seeds: [1]  # mine"
    for name in ("quick", "ablation"):
        params.write_text(before.replace("variants: {}", variants), encoding="utf-8")
        apply_preset(name, params, ROOT / "presets")
        apply_preset("quick", params, ROOT / "presets")
        assert params.read_text(encoding="utf-8") == before


def test_an_invalid_preset_leaves_the_parameters_alone(params: Path, tmp_path: Path) -> None:
    before = params.read_bytes()
    (tmp_path / "bad.yaml").write_text("train: {epochs: -1}\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"train\.epochs"):
        apply_preset("bad", params, tmp_path)
    assert params.read_bytes() == before
    with pytest.raises(UserError, match="no preset 'large'"):
        apply_preset("large", params, ROOT / "presets")
