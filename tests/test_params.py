from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from conftest import ROOT

from pipeline.errors import UserError
from pipeline.params import load_execution, load_params


def changed(tmp_path: Path, old: str, new: str, name: str = "params.yaml") -> Path:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert text.count(old) >= 1
    file = tmp_path / name
    file.write_text(text.replace(old, new, 1), encoding="utf-8")
    return file


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("epochs: 1", "epoch: 1", r"train\.epoch: unknown key; did you mean epochs\?"),
        ("epochs: 1", "epochs: 1.5", r"train\.epochs: got 1\.5"),
        ("epochs: 1", "epochs: 0", r"train\.epochs: got 0: .*greater than 0"),
        ("epochs: 1\n", "epochs: 1\n  zzz: 2\n", r"train\.zzz: unknown key; remove it"),
        ("temperature: 0.05", "temperature: 5e-2", r"objective\.temperature: .*write it with a point, as 5\.0e-02"),
        ("temperature: 0.05", "temperature: -1.0", r"objective\.temperature: got -1\.0"),
        ("temperature: 0.05", "temperature: .nan", r"objective\.temperature"),
        ("  temperature: 0.05\n", "", r"objective\.temperature: this key is missing"),
        ("name: ent+con+rev", "name: rev", r"objective\.name: got 'rev'"),
        ("precision: bf16", "precision: true", r"train\.precision: got True"),
        ("seeds: [1, 2]", "seeds: [1, 1]", r"seeds names a value twice: \[1, 1\]"),
        ("seeds: [1, 2]", "seeds: []", r"train\.seeds"),
        ("batch_sizes: [32, 64]", "batch_sizes: [0]", r"tune\.batch_sizes\.0: got 0"),
        ("threshold_step: 0.001", "threshold_step: 0.3", r"threshold_step 0\.3 does not divide 1"),
        ("threshold_on: {}", "threshold_on: {sick: dev}", r"threshold_on names 'sick', which is not a set"),
        ("source: generated", "source: files", r"files\.train names no file"),
        ("source: generated", "source: [", "not valid YAML"),
    ],
)
def test_a_wrong_parameter_is_named_in_one_line(tmp_path: Path, old: str, new: str, said: str) -> None:
    with pytest.raises(UserError, match=said) as caught:
        load_params(changed(tmp_path, old, new))
    assert "\n" not in " ".join(str(caught.value).split())
    assert "params.yaml" in str(caught.value)


def test_execution_keys_are_checked_too(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cluster\.workers: got 0"):
        load_execution(changed(tmp_path, "workers: 2", "workers: 0", "execution.yaml"))
    with pytest.raises(UserError, match=r"no such file; run from the project root"):
        load_execution(tmp_path / "nowhere.yaml")


def test_development_set_among_the_tests_is_refused(tmp_path: Path) -> None:
    text = changed(tmp_path, "source: generated", "source: files").read_text(encoding="utf-8")
    text = text.replace("train: []", "train: [{path: a.parquet}]").replace("dev: null", "dev: {path: b.parquet}")
    (tmp_path / "params.yaml").write_text(text.replace("tests: {}", "tests: {t: {path: b.parquet}}"), encoding="utf-8")
    with pytest.raises(UserError, match=r"'b\.parquet' is both the development set and a test set"):
        load_params(tmp_path / "params.yaml")


def test_objects_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        load_params(ROOT / "params.yaml").train.epochs = 2  # type: ignore[misc]


@pytest.mark.parametrize("name", ["params.yaml", "execution.yaml"])
def test_every_key_is_explained(name: str) -> None:
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    for section, keys in yaml.safe_load("\n".join(lines)).items():
        start = lines.index(f"{section}:")
        block = lines[start + 1 :]
        for key in keys:
            at = next(i for i, line in enumerate(block) if re.match(rf"  {key}:", line))
            explained = block[at - 1].lstrip().startswith("#") or key in ("seeds", "experiment")
            assert explained, f"{name}: {section}.{key} has no comment above it"
