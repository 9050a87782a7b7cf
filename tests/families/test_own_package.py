"""A loss in a package outside this checkout, the one of docs/tutorials/own-objective.md, found by its entry point."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from conftest import PLAIN, ROOT

PAGE = ROOT / "docs/tutorials/own-objective.md"
KEYS = {"name": "margin", "similarity": "kl", "temperature": 0.05, "reduction": "mean", "neutral_block": False, "margin": 0.1}


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A folder of installed packages with the page's file, and the metadata that pip writes for it."""
    (code,) = re.findall(r"^\$ cat > \S*margin_loss\.py <<'END'\n(.*?)^END$", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    installed = tmp_path / "installed"
    (installed / "my_losses-0.1.dist-info").mkdir(parents=True)
    (installed / "margin_loss.py").write_text(code, encoding="utf-8")
    (installed / "my_losses-0.1.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: my-losses\nVersion: 0.1\n")
    names(installed, "margin_loss:MarginParams")
    return installed


def names(installed: Path, value: str) -> None:
    (installed / "my_losses-0.1.dist-info/entry_points.txt").write_text(f"[gausscse.objectives]\nmargin = {value}\n")


def run(installed: Path, code: str, *arguments: object) -> str:
    """What a process with the package prints; its last line, if it fails."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=ROOT,
        env={"PYTHONPATH": f"{installed}:{ROOT}", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    return done.stdout if done.returncode == 0 else done.stderr.splitlines()[-1]


def params(folder: Path, **keys: object) -> Path:
    given = yaml.safe_load(PLAIN.read_text(encoding="utf-8"))
    file = folder / "params.yaml"
    file.write_text(yaml.safe_dump(given | {"objective": KEYS | keys}), encoding="utf-8")
    return file


LOADED = """
import sys
from pipeline.config.load import load_params
from pipeline.identity.digests import WEIGHTS, code_digest
objective = load_params(sys.argv[1]).objective
print(type(objective).__module__, objective.capabilities, objective.roles, code_digest(WEIGHTS, objective))
"""


def test_its_keys_are_checked_and_its_code_counts_for_a_trial(package: Path, tmp_path: Path) -> None:
    file = params(tmp_path)
    first = run(package, LOADED, file)
    assert first.startswith("margin_loss ('direction',) ('premise', 'entailment', 'contradiction') ")
    with (package / "margin_loss.py").open("a") as source:
        source.write("# A comment.\n")
    assert run(package, LOADED, file) == first
    with (package / "margin_loss.py").open("a") as source:
        source.write("x = 1\n")
    edited = run(package, LOADED, file)
    assert edited != first and edited.rpartition(" ")[0] == first.rpartition(" ")[0]
    assert run(package, LOADED, params(tmp_path, margin=-1.0)).endswith(
        "params.yaml: objective.margin: got -1.0: must be greater than 0"
    )
    assert "objective.margn: unknown key; did you mean objective.margin?" in run(package, LOADED, params(tmp_path, margn=1.0))
    assert "'margin'" in run(package, LOADED, params(tmp_path, name="margins"))


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("margin_loss:Gone", "cannot be loaded: AttributeError: module 'margin_loss' has no attribute 'Gone'"),
        ("margin_loss:MarginObjective", "is not a subclass of ObjectiveSection"),
    ],
)
def test_an_entry_point_that_is_wrong_is_one_line(package: Path, tmp_path: Path, value: str, why: str) -> None:
    names(package, value)
    assert run(package, LOADED, params(tmp_path)).endswith(f"entry point margin of gausscse.objectives ({value}) {why}")


TRAINED = """
import sys
from pathlib import Path
import torch
sys.path.insert(0, "tests")
from pipeline.config.load import load_params
from pipeline.training.trainer import train
from store import random_stores
from tests.trial_of import folder_at, trial_on

file, backbone, work = map(Path, sys.argv[1:])
stores = random_stores(work / "stores")
trial = trial_on(backbone, stores, 1e-2, epochs=4).model_copy(update={"objective": load_params(file).objective})
outcome = train(*stores, folder_at(trial, work / "trial"), lambda _: None, torch.device("cpu"))
losses = [row["loss"] for row in outcome.history if row["loss"] is not None]
print(outcome.score_name, losses[-1] < losses[0], (work / "trial/best/config.json").read_text().count('"direction"'))
"""


def test_it_is_trained_like_any_other(package: Path, tmp_path: Path, tiny_backbone: Path) -> None:
    assert run(package, TRAINED, params(tmp_path), tiny_backbone, tmp_path) == "dev_pr_auc True 1\n"


def test_what_it_imports_and_where_it_is_implemented_count(package: Path, tmp_path: Path) -> None:
    """The types in one module of a package, the loss in another; of this package, what the loss alone imports."""
    code = (package / "margin_loss.py").read_text(encoding="utf-8")
    home = package / "own"
    home.mkdir()
    (home / "__init__.py").touch()
    # It may import what imports encoders, since the types do not import it.
    (home / "loss.py").write_text(
        code.replace("import torch\n", "import torch\nimport pipeline.families.text.quickthoughts\n", 1)
    )
    types = "from typing import ClassVar, Literal\nfrom pipeline.families.pairs.params import ContrastiveParams, SimilarityKind\n"
    types += 'class P(ContrastiveParams[Literal["margin"]]):\n    similarity: SimilarityKind\n    margin: float\n'
    (home / "types.py").write_text(f'{types}    implementation: ClassVar[str] = "own.loss:MarginObjective"\n', encoding="utf-8")
    names(package, "own.types:P")
    asked = LOADED.replace("objective.roles", "[name for name in implementations(type(objective))]")
    asked = asked.replace("import WEIGHTS, code_digest", "import WEIGHTS, code_digest, implementations, stage_sums")
    asked += "print(stage_sums('train')['own/loss.py'], 'own/loss.py' in stage_sums('prepare'))\n"
    first = run(package, asked, params(tmp_path)).splitlines()
    assert "families/pairs/contrastive.py" in first[0] and first[1].endswith(" False")
    with (home / "loss.py").open("a") as source:
        source.write("x = 1\n")
    second = run(package, asked, params(tmp_path)).splitlines()
    assert first[0].rpartition(" ")[2] != second[0].rpartition(" ")[2] and first[1] != second[1]


@pytest.mark.parametrize("first", ["pipeline.config.load", "pipeline.models.encoder", "pipeline.families.objective"])
def test_it_is_found_whatever_is_imported_first(package: Path, tmp_path: Path, first: str) -> None:
    assert run(package, f"import {first}\n{LOADED}", params(tmp_path)).startswith("margin_loss ")
