"""The rules of the house and its security floor, checked on the source."""

from __future__ import annotations

import ast
import itertools
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import get_args

import pytest
import yaml
from packaging.requirements import Requirement

from pipeline.config.objectives import KINDS
from pipeline.config.params import Params, TrainParams
from pipeline.families.family import NAMES, all_metrics
from pipeline.families.operations.encoder import Encoder
from pipeline.identity.digests import BACKBONE, CODE
from pipeline.trials.locks import DRIVER_LOCK, WRITER_LOCK
from pipeline.trials.progress_log import LOG, RECORDS
from pipeline.trials.trial import FAILURE, LATEST, OUTCOME, PAUSE, PREVIOUS, STOPPED
from pipeline.trials.trial_folder import BEST, WRITER
from pipeline.trials.variants import SECTIONS
from tests.conftest import ROOT

PIPELINE = sorted((ROOT / "pipeline").rglob("*.py"))
STAGES = sorted((ROOT / "stages").glob("*.py"))


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
    room = file.relative_to(ROOT / "pipeline").parts[0]
    used = roots(file)
    assert "stages" not in used
    assert "dvc" not in used
    assert "ray" not in used or room in ("cluster", "serving")
    assert "mlflow" not in used or room in ("tracking", "registry")
    assert "torch" not in used or room not in ("config", "data", "identity", "report", "storage", "trials")


# What a trial's folder holds (pipeline/trials/trial_folder.py).
IN_A_TRIAL = {BEST, FAILURE, LATEST, LOG, OUTCOME, PAUSE, PREVIOUS, RECORDS, STOPPED, DRIVER_LOCK, WRITER_LOCK, WRITER}


@pytest.mark.parametrize("file", [*PIPELINE, *STAGES], ids=lambda f: f.relative_to(ROOT).as_posix())
def test_only_the_trial_store_knows_what_a_trial_s_folder_holds(file: Path) -> None:
    if file.parent == ROOT / "pipeline/trials":
        return
    assert "pipeline.trials.locks" not in imports(file)
    names = {f"pipeline.trials.trial.{name}" for name in ("FAILURE", "LATEST", "OUTCOME", "PAUSE", "PREVIOUS", "STOPPED")}
    names |= {f"pipeline.trials.trial_folder.{name}" for name in ("BEST", "WRITER")}
    assert not imports(file) & (names | {"pipeline.trials.progress_log.LOG", "pipeline.trials.progress_log.RECORDS"})
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and isinstance(node.right, ast.Constant):
            assert node.right.value not in IN_A_TRIAL


def test_the_served_model_is_imported_by_nobody() -> None:
    # MLflow runs the file; importing it would set a global of MLflow.
    assert not [f for f in (*PIPELINE, *STAGES) if any("pyfunc_model" in name for name in imports(f))]


@pytest.mark.parametrize("file", [*PIPELINE, *STAGES], ids=lambda f: f.relative_to(ROOT).as_posix())
def test_private_names_of_ray_are_in_one_module(file: Path) -> None:
    if file == ROOT / "pipeline/cluster/ray_private.py" or "ray" not in roots(file):
        return
    private = re.compile(r"ray(\.\w+)*\._")
    assert not [name for name in imports(file) if private.match(name)]
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            assert not private.match(node.value)
        # An object's own attributes, and the methods of a namedtuple.
        if isinstance(node, ast.Attribute) and re.match("_[a-z]", node.attr) and node.attr not in ("_replace", "_asdict"):
            assert ast.unparse(node.value) in ("self", "cls", "super()"), ast.unparse(node)


def test_each_requirement_of_ray_has_an_upper_bound() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    lists = [project["project"]["dependencies"], *project["project"]["optional-dependencies"].values()]
    asked = [one for one in map(Requirement, itertools.chain(*lists)) if one.name == "ray"]
    assert len(asked) == 2
    for one in asked:
        assert one.specifier.contains(version("ray"))
        assert "<" in {part.operator for part in one.specifier}


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


@pytest.mark.slow
def test_importing_the_library_does_nothing_else(tmp_path: Path) -> None:
    with_servers = ("cli", "cluster", "registry", "serving", "tracking")
    names = [
        ".".join(f.relative_to(ROOT).with_suffix("").parts)
        for f in PIPELINE
        if f.name != "__init__.py" and f.relative_to(ROOT / "pipeline").parts[0] not in with_servers
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


def test_the_report_names_the_sections_in_the_order_of_the_parameters() -> None:
    source = ast.parse((ROOT / "stages/report.py").read_text(encoding="utf-8"))
    (named,) = [
        node.value for node in ast.walk(source) if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "sections"
    ]
    assert ast.unparse(named).strip("()").split(", ") == [f"p.{name}" for name in Params.model_fields]


def test_tune_follows_every_key_of_train_but_the_seeds() -> None:
    followed = {key for key in stage_params()["tune"] if key.startswith("train.")}
    assert followed == {f"train.{key}" for key in TrainParams.model_fields if key != "seeds"}


def test_dvc_sees_no_execution_key() -> None:
    assert "execution" not in (ROOT / "dvc.yaml").read_text(encoding="utf-8").replace("execution keys (execution.yaml)", "")


@pytest.mark.parametrize("stage", sorted({*stage_params()} - {"identity"}))
def test_a_stage_depends_on_its_code_by_the_file_derived_from_it(stage: str) -> None:
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))["stages"]
    # No code is listed by hand.
    code = [dep for dep in stages[stage]["deps"] if dep.startswith(("data/identity/", "stages", "pipeline"))]
    assert {*code} - {BACKBONE.as_posix()} == {f"data/identity/{stage}.json"}
    assert {path.as_posix() for path in (*CODE, BACKBONE)} == {*stages["identity"]["outs"]}
    assert {*CODE.values(), "identity"} == {*stages}


FAMILIES = ROOT / "pipeline/families"
# What only a family knows: its metrics, its development scores, its objectives, and its models' operations.
OF_A_FAMILY = (
    {*all_metrics()}
    | {score for kind in KINDS for score in (kind.score_name, *get_args(kind.model_fields["name"].annotation))}
    | {*Encoder.operations}
)


def cases_of_a_family(source: str) -> set[str]:
    """The names of `OF_A_FAMILY` that code treats as a case: as a text of its own, or as an attribute."""
    nodes = [*ast.walk(ast.parse(source))]
    texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    # Sets have a difference, too.
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)} - {"difference"}
    return OF_A_FAMILY & (texts | attributes)


@pytest.mark.parametrize(
    "file", [f for f in (*PIPELINE, *STAGES) if FAMILIES not in f.parents], ids=lambda f: f.relative_to(ROOT).as_posix()
)
def test_a_room_knows_no_family_s_names(file: Path) -> None:
    source = file.read_text(encoding="utf-8")
    assert cases_of_a_family(source) - {"difference"} == set()
    # Nor its folder.
    names = {f"pipeline.families.{name}" for name in NAMES}
    assert not {name for name in imports(file) if ".".join(name.split(".")[:3]) in names}
