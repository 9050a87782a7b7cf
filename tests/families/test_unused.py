"""A family that a project does not use costs it nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from conftest import PLAIN, ROOT

from pipeline.utils.atomic_io import read_json
from tests.trial_of import OPERATIONS

CODE = """
import json, sys
from pathlib import Path
from pipeline.config.load import load_params
from pipeline.data.sentence_tokenizer import Encoder
from pipeline.data.tokenizing import tokenize
from pipeline.families.prepare import lines, prepare
from pipeline.models.backbone import load_tokenizer, resolve
from pipeline.training.trainer import train
import pipeline.evaluation.score_cache, pipeline.registry.champions, pipeline.serving.champion

params, work = load_params(sys.argv[1]), Path(sys.argv[2])
report = prepare(params.data, work / "prepared", params.evaluate)
lines(report, params.data)
encoder = Encoder(name="t", revision=None, tokenizer=load_tokenizer(resolve(sys.argv[3], None)), max_length=24)
tokenize(work / "prepared", work / "tokens", encoder)
params.objective.make()
print(json.dumps([name for name in sys.modules if name.startswith("pipeline.families.")]))
"""


def project(folder: Path, **sections: dict[str, object]) -> Path:
    given = yaml.safe_load(PLAIN.read_text(encoding="utf-8"))
    for name, keys in sections.items():
        given[name] = keys if name == "objective" else given[name] | keys
    file = folder / "params.yaml"
    file.write_text(yaml.safe_dump(given), encoding="utf-8")
    return file


@pytest.mark.parametrize("family", ["pairs", "operations"])
def test_no_part_but_the_facts_of_another_family_is_imported(family: str, tmp_path: Path, tiny_backbone: Path) -> None:
    generated = {"train": 200, "dev": 160, "test": 60}
    data: dict[str, object] = {"source": "generated", "root": str(ROOT / "pipeline/data"), "generated": generated}
    sections: dict[str, dict[str, object]] = {"data": data}
    if family == "operations":
        data["generated"] = generated | {"operations": 400}
        sections |= {"objective": OPERATIONS, "register": {"metric": "operator_mrr"}}
    file = project(tmp_path, **sections)
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(file), str(tmp_path), str(tiny_backbone)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = {tuple(name.split(".")[2:]) for name in yaml.safe_load(done.stdout.splitlines()[-1])}
    used = {"pairs", family}
    others = {parts for parts in loaded if parts[0] in ("pairs", "text", "operations") and parts[0] not in used}
    assert others <= {(name, *rest) for name in ("text", "operations") for rest in ((), ("params",))}
    assert (family, "prepare") in loaded
    report, profile = (read_json(tmp_path / "prepared" / name) for name in ("prepare.json", "profile.json"))
    written = [*report, *profile, *profile["files"]]
    unused = ("text", "tasks", "documents", *(["operation"] if family == "pairs" else []))
    assert not [name for name in written if any(word in name for word in unused)]
