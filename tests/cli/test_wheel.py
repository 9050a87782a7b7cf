"""The wheel in an environment of its own: an application that asks a model, and a server with a client."""

from __future__ import annotations

import json
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

import pipeline
from tests.conftest import ROOT
from tests.relations import drawn_relation
from tests.serving.server import Registry, serving
from tests.tiny import make_tiny_backbone
from tests.trial_of import tiny_encoder

WHEEL = ROOT / "build/wheel"
BIN = WHEEL / "env/bin"
# Packages that only training needs.
HEAVY = {"ray", "mlflow", "dvc", "duckdb", "datasets", "pandas", "plotly", "sklearn", "scipy"}
A, B = "A dog runs.", "An animal moves."
ANSWERS = """
def answers(gausscse, folder):
    model = gausscse.load(folder)
    a, b = ["A dog runs.", "Nobody sings."], ["An animal moves.", "A child sings."]
    means, log_vars = model.encode(a, show_progress_bar=True).numpy()
    relation = model.relation(a, b)
    (found,) = gausscse.search(model, [*a, *b], a[0], way="entails", k=1, by="relation")
    numbers = [means, log_vars, model.similarity(a, b), model.direction(a, b), relation.entailment, relation.reversed]
    return [[n.tolist() for n in numbers], model.decide(a, b), model.entails(a, b, threshold=0.5).tolist(), found["sentence"]]
"""
# The application has modules with the names of this project's folders.
ASK = f"""
import json, sys
import pipeline, stages
import gausscse
assert pipeline.own and stages.own and "torch" not in sys.modules
{ANSWERS}
print(json.dumps(answers(gausscse, sys.argv[1])))
"""


def make(*arguments: str) -> Path:
    """The wheel that `make wheel` built and installed."""
    done = subprocess.run(["make", "wheel", *arguments], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = WHEEL.glob("*.whl")
    return wheel


def run(folder: Path, program: str, *arguments: str, code: int = 0) -> str:
    """What a program of the wheel's environment said."""
    done = subprocess.run([BIN / program, *arguments], cwd=folder, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    return done.stderr if code else done.stdout


@pytest.mark.faults
def test_an_application_needs_the_light_packages_only(tmp_path: Path) -> None:
    """Its answers are those of a checkout; a command that needs more says so in one line."""
    wheel = make()
    names = {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {name for name in names if not name.endswith(".dist-info")} == {"gausscse"}
    assert wheel.stat().st_size < 2**20
    assert not HEAVY & {path.name for path in (WHEEL / "env").glob("lib/python*/site-packages/*")}

    encoder = tiny_encoder(make_tiny_backbone(tmp_path / "backbone"))
    encoder.relation_head = drawn_relation()
    encoder.save_pretrained(tmp_path / "model")
    application = tmp_path / "application"
    application.mkdir()
    for name in ("pipeline.py", "stages.py"):
        (application / name).write_text("own = True\n", encoding="utf-8")
    (application / "ask.py").write_text(ASK, encoding="utf-8")
    found = json.loads(run(application, "python", "ask.py", "../model"))
    held: dict[str, Any] = {}
    exec(ANSWERS, held)
    numbers, *others = held["answers"](pipeline, tmp_path / "model")
    assert found[1:] == others
    for one, expected in zip(found[0], numbers, strict=True):
        assert one == [pytest.approx(row, rel=1e-5, abs=1e-7) for row in expected]

    assert run(application, "gausscse", "ask", A, B, "--model", "../model").startswith(others[0][0])
    for arguments, package in ((["init", "own.csv"], "duckdb"), (["registry", "status"], "mlflow")):
        line = f"error: this command needs {package}, which is not installed: pip install 'gausscse-pipeline[train]'\n"
        assert run(application, "gausscse", *arguments, code=2) == line
    words = r"error: models:/gausscse@champion: the registry needs mlflow: pip install 'gausscse-pipeline[train]'"
    assert words in run(application, "gausscse", "ask", "A", "B", "--model", "models:/gausscse@champion", code=2)


@pytest.mark.faults
def test_the_wheel_serves_a_champion(tmp_path: Path) -> None:
    make("EXTRAS=serve")
    registry = Registry.made(tmp_path, make_tiny_backbone(tmp_path / "backbone"), "served")
    registry.add(1, lambda encoder: setattr(encoder, "relation_head", drawn_relation()))
    expected = registry.encoder(1)
    (elsewhere := tmp_path / "elsewhere").mkdir()
    with serving(registry, elsewhere, root=elsewhere, program=[str(BIN / "gausscse")]) as server:
        answer = server.good("/similarity", {"a": [A], "b": [B]})
        assert answer["similarity"] == [pytest.approx(expected.similarity(A, B), rel=1e-4)]
        assert server.good("/relation", {"premises": [A], "hypotheses": [B]})["label"] == [expected.decide(A, B)]
