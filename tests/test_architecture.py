"""The house rules of DESIGN section 5 and its security floor, read off the source."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from conftest import ROOT

from pipeline.identity import NEUTRAL
from pipeline.params import TrainParams
from pipeline.variants import SECTIONS

PIPELINE = sorted((ROOT / "pipeline").rglob("*.py"))
STAGES = sorted((ROOT / "stages").glob("*.py"))
MLFLOW = {"tracking.py", "served_model.py"}


def imports(file: Path) -> set[str]:
    """Full names of everything a module imports, at any depth, type-checking blocks included."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def roots(file: Path) -> set[str]:
    return {name.partition(".")[0] for name in imports(file)}


@pytest.mark.parametrize("file", PIPELINE, ids=lambda f: f.relative_to(ROOT).as_posix())
def test_the_library_imports_only_what_its_place_allows(file: Path) -> None:
    used = roots(file)
    assert "stages" not in used
    assert "dvc" not in used
    if file.parent.name != "cluster":
        assert "ray" not in used
    if file.name not in MLFLOW and file.parent.name != "registry":
        assert "mlflow" not in used
    if "data" in file.relative_to(ROOT).parts:
        assert "torch" not in used
    if file.name in ("gaussian.py", "objectives.py", "training.py", "evaluation.py"):
        assert not used & {"ray", "mlflow", "dvc"}
        assert not {n for n in imports(file) if n.startswith(("pipeline.cluster", "pipeline.tracking", "pipeline.registry"))}


def test_the_served_model_is_imported_by_nobody() -> None:
    # MLflow runs the file; importing it would set a global of MLflow.
    assert not [f for f in (*PIPELINE, *STAGES) if any("served_model" in name for name in imports(f))]


@pytest.mark.parametrize("file", STAGES, ids=lambda f: f.name)
def test_stages_are_thin_and_do_not_know_each_other(file: Path) -> None:
    assert not [name for name in imports(file) if name.startswith("stages")]
    assert not roots(file) & {"ray", "mlflow", "torch", "dvc"}
    assert len(file.read_text(encoding="utf-8").splitlines()) <= 120


@pytest.mark.parametrize("file", [*PIPELINE, *STAGES], ids=lambda f: f.relative_to(ROOT).as_posix())
def test_nothing_is_pickled_and_no_remote_code_is_trusted(file: Path) -> None:
    assert not roots(file) & {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            assert called not in ("torch.load", "torch.save", "eval", "exec", "yaml.load", "all_gather_object")
            for keyword in node.keywords:
                if keyword.arg == "trust_remote_code":
                    assert ast.unparse(keyword.value) == "False"
        if isinstance(node, ast.ExceptHandler):
            assert node.type is not None, "bare except"
            assert not (len(node.body) == 1 and isinstance(node.body[0], ast.Pass)), "except: pass"


def test_importing_the_library_does_nothing_else(tmp_path: Path) -> None:
    names = [
        ".".join(f.relative_to(ROOT).with_suffix("").parts)
        for f in PIPELINE
        if f.name not in ("served_model.py", "__init__.py", "tracking.py", "watch.py")
        and f.parent.name not in ("cluster", "registry")
    ]
    # Third parties first: what they do to the environment is not ours.
    code = f"""
import os, sys, torch, transformers, sklearn, scipy.stats, pyarrow, pandas
before = dict(os.environ)
import importlib
for name in {names!r}:
    importlib.import_module(name)
assert dict(os.environ) == before, set(os.environ) ^ set(before)
assert not {{"ray", "mlflow", "dvc"}} & set(sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []


def stage_params() -> dict[str, set[str]]:
    dvc = yaml.safe_load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))
    return {name: set(stage.get("params", [])) for name, stage in dvc["stages"].items()}


@pytest.mark.parametrize("stage", list(stage_params()))
def test_dvc_follows_exactly_the_sections_a_stage_reads(stage: str) -> None:
    source = ast.parse((ROOT / f"stages/{stage}.py").read_text(encoding="utf-8"))
    read: set[str] = set()
    for node in ast.walk(source):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("p", "load_params()"):
            read.add(node.attr.rstrip("_"))
        if isinstance(node, ast.Call) and ast.unparse(node) == "variants_of(p)":
            read |= {*SECTIONS, "experiments"}
    assert read == {key.partition(".")[0] for key in stage_params()[stage]}


def test_tune_follows_every_key_of_train_but_the_seeds() -> None:
    followed = {key for key in stage_params()["tune"] if key.startswith("train.")}
    assert followed == {f"train.{key}" for key in TrainParams.model_fields if key != "seeds"}


def test_dvc_sees_no_execution_key() -> None:
    assert "execution" not in (ROOT / "dvc.yaml").read_text(encoding="utf-8").replace("execution keys (execution.yaml)", "")


# Modules that check, move, say or run, and decide no result; what they import does not count either.
MECHANICS = {name.removesuffix(".py") for name in NEUTRAL} | {
    *("check", "cluster", "config", "data", "data/warn", "data_sets", "ledger", "lineage", "placing", "strict_yaml"),
    *("tracking", "watch", "work"),
}
# What a stage reaches through these all the same, and what it imports without a result that hangs on it.
THROUGH = {
    "tune": {"training", "stopping"},
    "train": {"training"},
    "evaluate": {"cluster/encoding"},
    "experiment": {"training", "stopping", "cluster/encoding"},
}
BESIDE = {
    # data.root names the lexicon where it is read.
    "prepare": {"backbone", "data/lexicon", "variants"},
    "backbone": {"variants"},
    "tokenize": {"data/files", "data/rows", "data/scratch", "variants"},
    "tune": {"variants"},
    "train": {"variants"},
    "evaluate": {"variants"},
    # What scores come from decides what evaluate leaves as well, and register hangs on that.
    "register": {
        "data/schema",
        "data/tokenizing",
        "data/tokens",
        "encoder",
        "evaluation",
        "gaussian",
        "objectives",
        "variants",
    },
    "experiment": set[str](),
    "report": {"data/rows", "data/schema", "data/scratch", "data/tokens", "metrics", "variants"},
}


def modules(file: Path) -> set[str]:
    """Modules of the library that a file imports, as paths without suffix below pipeline/."""
    found: set[str] = set()
    for name in imports(file):
        path = name.removeprefix("pipeline.").replace(".", "/")
        if name.startswith("pipeline.") and ((ROOT / f"pipeline/{path}.py").is_file() or (ROOT / "pipeline" / path).is_dir()):
            found.add(path)
    return found


@pytest.mark.parametrize("stage", list(THROUGH | BESIDE))
def test_dvc_follows_every_module_that_decides_a_result(stage: str) -> None:
    deps = yaml.safe_load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))["stages"][stage]["deps"]
    listed = {dep.removeprefix("pipeline/").removesuffix(".py") for dep in deps if dep.startswith("pipeline/")}
    waiting = modules(ROOT / f"stages/{stage}.py") | THROUGH.get(stage, set())
    reached: set[str] = set()
    while waiting:
        module = waiting.pop()
        if module in reached or module in BESIDE[stage] or (module in MECHANICS and module not in THROUGH.get(stage, set())):
            continue
        if module.partition("/")[0] == "cluster" and module not in THROUGH.get(stage, set()):
            continue
        reached.add(module)
        file = ROOT / f"pipeline/{module}.py"
        waiting |= modules(file if file.is_file() else ROOT / "pipeline" / module / "__init__.py")
    assert {m for m in reached if m not in listed and not any(m.startswith(f"{folder}/") for folder in listed)} == set()


def test_every_module_a_stage_s_result_depends_on_exists() -> None:
    dvc = yaml.safe_load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))
    for name, stage in dvc["stages"].items():
        code = [dep for dep in stage["deps"] if dep.endswith(".py")]
        assert f"stages/{name}.py" in code
        assert all((ROOT / dep).is_file() for dep in code)
