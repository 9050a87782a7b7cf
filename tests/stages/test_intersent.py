"""InterSent from files of operation rows to a champion that fuses and decodes: `dvc repro` on a project without pairs."""

from __future__ import annotations

import csv
import io
import os
import shutil
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

from pipeline.cli import search
from pipeline.config.execution import TrackingParams
from pipeline.data.schema import OPERATIONS
from pipeline.families.operations.generated import generate_operations
from pipeline.registry.loading import load
from pipeline.registry.pyfunc_model import _operate
from pipeline.tracking.server import open_tracker
from pipeline.utils.atomic_io import read_json
from pipeline.utils.errors import UserError
from tests.stages.conftest import small_project
from tests.stages.running import objective_of, repro, set_keys, stages_run

# A whole pipeline, which takes minutes.
pytestmark = pytest.mark.faults
SHARES = {"fusion": 2.0, "difference": 1.0, "compression": 1.0, "reconstruction": 1.0}
OBJECTIVE = {"decoder_layers": 2, "temperature": 0.1, "generation_weight": 0.1, "shares": SHARES}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, tiny_backbone: Path) -> Path:
    root = small_project(tmp_path_factory.mktemp("intersent"), tiny_backbone)
    shutil.rmtree(root / "raw", ignore_errors=True)
    (root / "raw").mkdir()
    for name, split, rows in (("train", "train", 800), ("dev", "dev", 160), ("test", "test", 120)):
        with (root / f"raw/{name}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["operation", "a", "b", "target"])
            for row in generate_operations(split, rows, 1):  # type: ignore[arg-type]
                # Many scenes share the grammar's compressions, which would connect the sets.
                target = row.a.rpartition(" ")[0] + "." if row.operation == "compression" else row.target
                writer.writerow([row.operation, row.a, row.b or "", target])
    set_keys(
        root,
        {
            "data.source": "files",
            "data.root": "raw",
            "data.files.operations": [{"path": "train.csv"}],
            "data.files.operations_dev": {"path": "dev.csv"},
            "data.files.operations_tests": {"scenes": {"path": "test.csv"}},
            "objective": objective_of("intersent-quick") | OBJECTIVE,
            "model.relation_head": "none",
            "model.mean_activation": "none",
            # After fewer steps all embeddings of a model this small are still nearly the same, and ranks are rounding.
            "tune.batch_sizes": [8],
            "train.epochs": 3,
            "tune.seeds": [1],
            "train.seeds": [1],
            "train.eval_every": 20,
            "register.name": "intersent",
            "register.metric": "operator_mrr",
            "experiments.variants": {
                "arithmetic": {"objective.operators": "arithmetic", "objective.generation_weight": 0.0, "objective.shares": None}
            },
        },
    )
    return root


@pytest.fixture(scope="module")
def said(project: Path) -> str:
    return repro(project)


def champion(project: Path) -> Any:
    uri = open_tracker(TrackingParams(uri=None, experiment="gausscse"), project).uri
    return load("models:/intersent@champion", tracking_uri=uri)


def test_every_stage_runs_on_operation_rows_alone(project: Path, said: str) -> None:
    assert sorted(stages_run(said)) == ["evaluate", "experiment", "prepare", "register", "report", "tokenize", "train", "tune"]
    assert "selection operator MRR@10" in said
    assert " operations/s" in said
    registered = read_json(project / "results/register.json")
    assert (registered["name"], registered["alias"], registered["metric"]) == ("intersent", "champion", "operator_mrr")
    page = (project / "report/report.md").read_text(encoding="utf-8")
    assert "Decoded operations: scenes" in page
    assert "PR-AUC" not in page


def test_the_figures_are_those_of_the_champion_used_row_by_row(project: Path, said: str) -> None:
    encoder = champion(project)
    numbers = read_json(project / "results/evaluate/per_seed.json")["main recipe"]["seed-1"]["scenes"]
    rows = pq.read_table(project / "data/prepared/tests/scenes.operations.parquet").to_pylist()
    methods = {"fusion": encoder.fuse, "difference": encoder.difference, "compression": encoder.compress}
    means: list[float] = []
    for code, name in enumerate(OPERATIONS):
        own = [row for row in rows if row["operation"] == code]
        pool = sorted({row[key] for row in own for key in ("a", "b", "target") if row[key] is not None})
        vectors = torch.nn.functional.normalize(encoder.encode(pool).mean)
        ranks: list[int] = []
        exact: list[bool] = []
        for row in own:
            inputs = [row["a"], *([row["b"]] if row["b"] is not None else [])]
            output = methods[name](*inputs) if name in methods else encoder.encode(inputs).mean[0]
            scores = dict(zip(pool, (vectors @ torch.nn.functional.normalize(output, dim=0)).tolist(), strict=True))
            if name == "reconstruction":
                del scores[row["a"]]
            ranks.append(1 + sum(score > scores[row["target"]] for score in scores.values()))
            exact.append(encoder.tokenizer.tokenize(encoder.decode(output)) == encoder.tokenizer.tokenize(row["target"]))
        assert numbers[f"{name}.operator_recall"] == pytest.approx(100 * np.mean(np.array(ranks) == 1), abs=7)
        expected = np.mean([1 / rank if rank <= 10 else 0 for rank in ranks])
        assert numbers[f"{name}.operator_mrr"] == pytest.approx(100 * expected, abs=4)
        assert numbers[f"{name}.exact"] == pytest.approx(100 * np.mean(exact), abs=7)
        means.append(numbers[f"{name}.operator_mrr"])
    assert numbers["operator_mrr"] == pytest.approx(np.mean(means))
    # A model this small learns little, but it learns: the loss falls, and every operator has left arithmetic.
    losses = [float(row["loss"]) for row in csv.DictReader((project / "results/train/curves.csv").open(encoding="utf-8"))]
    assert losses[-1] < 0.8 * losses[0]
    weights = load_file(project / "models/seed-1/objective.safetensors")
    for name in ("fusion", "difference", "compression"):
        assert weights[f"operators.networks.{name}.2.weight"].abs().max() > 0


def test_a_variant_without_decoder_and_networks_is_only_its_encoder(project: Path, said: str) -> None:
    numbers = read_json(project / "results/experiments/per_seed.json")["arithmetic"]["seed-1"]["scenes"]
    assert "exact" not in numbers
    trials = {entry["name"]: entry["seeds"][0]["trial"] for entry in read_json(project / "results/experiments/variants.json")}
    assert not load_file(project / f".gausscse/trials/{trials['arithmetic']}/best/objective.safetensors")


def test_the_champion_is_served_and_searched_with_its_operators(
    project: Path, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = champion(project)
    rows = pq.read_table(project / "data/prepared/tests/scenes.operations.parquet").to_pylist()
    row = next(row for row in rows if row["operation"] == OPERATIONS.index("fusion"))
    for name, inputs in (("fuse", ("a", "b")), ("difference", ("a", "b")), ("compress", ("a",))):
        assert encoder.operations[name] == len(inputs)
        served = _operate(name, encoder, *([row[key]] for key in inputs))
        output = getattr(encoder, name)(*(row[key] for key in inputs))
        np.testing.assert_allclose(served["mean"][0], output.numpy(), atol=1e-5)
        assert served["text"] == [encoder.decode(output)]

    fused = encoder.fuse(row["a"], row["b"])
    assert isinstance(encoder.decode(encoder.compress(fused)), str)

    targets = [row["target"] for row in rows]
    pq.write_table(pa.table({"sentence": targets}), project / "corpus.parquet")
    command = [sys.executable, "-m", "pipeline.cli", "encode", "corpus.parquet", "encoded", "--column", "sentence"]
    environment = {**os.environ, "PYTHONPATH": str(project), "HF_HUB_OFFLINE": "1"}
    subprocess.run([*command, "--keep", "sentence"], cwd=project, env=environment, check=True, capture_output=True)
    monkeypatch.chdir(project)
    means = torch.nn.functional.normalize(encoder.encode(targets).mean)
    for options, output in (
        (["--fuse", row["b"]], fused),
        (["--without", row["b"]], encoder.difference(row["a"], row["b"])),
        (["--compress"], encoder.compress(row["a"])),
        (["--by", "cosine"], encoder.encode([row["a"]]).mean[0]),
    ):
        printed = gausscse("encoded", row["a"], *options, "-k", "3").splitlines()
        scores = means @ torch.nn.functional.normalize(output, dim=0)
        best = scores.topk(3)
        shown = [line.split("  ") for line in printed]
        assert [float(line[0]) for line in shown] == pytest.approx(best.values.tolist(), abs=2e-3)
        assert shown[0][2] in {targets[k] for k in (scores >= best.values[0] - 2e-3).nonzero().flatten().tolist()}
    with pytest.raises(UserError, match=r"^--by similarity: this model has no variances, .*; rank by cosine"):
        gausscse("encoded", row["a"])
    with pytest.raises(UserError, match=r"^--by relation: has no effect with an operator"):
        gausscse("encoded", row["a"], "--compress", "--by", "relation")


def gausscse(*arguments: str) -> str:
    with redirect_stdout(io.StringIO()) as out:
        search.main(arguments)
    return out.getvalue()
