"""A result is named by every parameter, the data, the backbone's files and the code, without its comments and docstrings."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from pipeline.config.load import load_params
from pipeline.families import family as families
from pipeline.families.pairs.params import GaussianParams, SimcseParams
from pipeline.identity import digests
from pipeline.identity.digests import (
    NEUTRAL,
    SCORES,
    VECTORS,
    WEIGHTS,
    backbone_digest,
    backbone_sums,
    check_code,
    check_here,
    code_digest,
    deciding,
    digest_of_sums,
    implementations,
    stage_sums,
)
from pipeline.identity.source import imported_files
from pipeline.trials.trial import Trial
from pipeline.utils.atomic_io import write_json
from pipeline.utils.errors import RunError, UserError
from tests.conftest import PLAIN, ROOT
from tests.identity.edits import edited
from tests.stages.running import plain_project
from tests.tiny import make_tiny_backbone
from tests.trial_of import plain_trial

P = load_params(PLAIN)
TRIAL = plain_trial()


def test_what_decides_a_result_is_all_that_is_imported_but_the_neutral() -> None:
    reached = {name for roots in (WEIGHTS, SCORES, VECTORS) for name in imported_files(digests.PACKAGE, roots)}
    # The list has no module that nothing imports or that does not exist.
    assert {name for name in NEUTRAL if not any(file == name or file.startswith(name) for file in reached)} == set()
    encoding = {
        "data/token_store.py",
        "gaussian/distribution.py",
        "models/backbone.py",
        "models/encoder.py",
        "models/network.py",
        "models/packed_attention.py",
        "models/packed_bert.py",
    }
    loss = encoding | {"families/batch_sampler.py", "gaussian/pairwise.py"}
    loss |= {f"families/pairs/{name}.py" for name in ("contrastive", "triplets", "scoring")}
    loop = {f"training/{name}.py" for name in ("trainer", "step", "checkpoint")}
    pairs = {*deciding((*WEIGHTS, *implementations(GaussianParams, SimcseParams)))}
    assert loss | loop <= pairs
    # A trial does not depend on the code of another family.
    assert not [name for name in pairs if name.startswith(("families/text", "families/operations"))]
    scoring = encoding | {"data/token_sets.py", *(f"families/{name}/scoring.py" for name in families.NAMES)}
    assert scoring | {"evaluation/score_cache.py", "cluster/encoding.py"} <= {*deciding(SCORES)}
    assert encoding | {"inference/bulk_encode.py", "cluster/bulk.py"} <= {*deciding(VECTORS)}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, tiny_backbone: Path) -> Path:
    """Its data stages can run."""
    values = {"data.generated": {"train": 90, "dev": 60, "test": 60}, "model.backbone": str(tiny_backbone)}
    return plain_project(tmp_path_factory.mktemp("loaded"), values)


RUN = """
import runpy, sys
sys.argv = ["stages.{stage}"]
runpy.run_module("stages.{stage}", run_name="__main__")
print(*(m.__file__ for n, m in sys.modules.items() if n.partition(".")[0] in ("pipeline", "stages")), sep="\\n")
"""


@pytest.mark.parametrize("stage", ["prepare", "tokenize"])
def test_the_files_of_a_stage_hold_all_that_it_loads(project: Path, stage: str) -> None:
    code = RUN.format(stage=stage)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=project, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    loaded = {Path(line).relative_to(ROOT) for line in done.stdout.splitlines() if line.startswith(f"{ROOT}/")}
    listed = {Path(os.path.normpath(ROOT / "pipeline" / name)).relative_to(ROOT) for name in stage_sums(stage)}
    assert len(loaded) > 30
    # A room's __init__.py without a name that is imported decides nothing.
    assert {file for file in loaded - listed if file.name != "__init__.py"} == set()


def test_only_code_that_decides_changes_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    objectives = (P.objective, P.objective, None)

    def digests_now() -> list[str]:
        return [code_digest(roots, one) for roots, one in zip((WEIGHTS, SCORES, VECTORS), objectives, strict=True)]

    before = digests_now()

    def after(name: str, additions: Mapping[str, str]) -> list[bool]:
        edited(tmp_path / name / "pipeline", monkeypatch, additions)
        return [now == old for now, old in zip(digests_now(), before, strict=True)]

    words = {
        "gaussian/distribution": "# A comment.\n",
        "families/pairs/contrastive": '"""A text."""\n',
        "utils/atomic_io": "x = 1\n",
        "config/params": "x = 1\n",
    }
    assert after("words", words) == [True, True, True]
    assert after("loss", {"training/step": "x = 1\n"}) == [False, True, True]
    assert after("scores", {"evaluation/score_cache": "x = 1\n", "inference/bulk_encode": "x = 1\n"}) == [True, False, False]
    assert after("encoder", {"models/packed_bert": "x = 1\n"}) == [False, False, False]
    assert after("objective", {"families/pairs/contrastive": "x = 1\n"}) == [False, False, True]
    assert after("another", {"families/operations/intersent": "x = 1\n"}) == [True, True, True]


# Backbones.


def test_a_backbone_is_named_by_its_weights_tokenizer_and_configuration(tmp_path: Path) -> None:
    first, same = (make_tiny_backbone(tmp_path / name) for name in ("first", "same"))
    (same / "README.md").write_text("A card.", encoding="utf-8")
    before = backbone_digest(str(first), None)
    assert before == backbone_digest(str(same), None)
    assert {"model.safetensors", "tokenizer.json", "config.json"} <= backbone_sums(str(first), None).keys()
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        content = (same / name).read_bytes()
        # In the same place, and of the same size.
        (same / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        assert backbone_digest(str(same), None) != before
        (same / name).write_bytes(content)
        assert backbone_digest(str(same), None) == before


def test_weights_in_several_files_count_each(tmp_path: Path) -> None:
    folder = make_tiny_backbone(tmp_path / "backbone")
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    (folder / "model-00002-of-00002.safetensors").write_bytes(b"2")
    parts = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    write_json(folder / "model.safetensors.index.json", {"weight_map": parts})
    before = backbone_digest(str(folder), None)
    (folder / parts["b"]).write_bytes(b"3")
    assert backbone_digest(str(folder), None) != before
    (folder / parts["b"]).unlink()
    with pytest.raises(UserError, match=r"has no model-00002-of-00002\.safetensors, which model\.safetensors\.index\.json names"):
        backbone_digest(str(folder), None)


def test_a_backbone_of_the_hub_is_its_files_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    folder = tmp_path / "models--team--encoder/snapshots" / commit
    make_tiny_backbone(folder)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert backbone_digest("team/encoder", commit) == backbone_digest(str(folder), None)


def test_a_trial_is_trained_only_with_the_code_and_backbone_in_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = make_tiny_backbone(tmp_path / "backbone")
    trial = TRIAL.model_copy(
        update={
            "model": P.model.encoder.model_copy(update={"backbone": str(backbone)}),
            "backbone_files": backbone_digest(str(backbone), None),
            "code": code_digest(WEIGHTS, TRIAL.objective),
        }
    )
    check_here(trial)
    make_tiny_backbone(backbone, seed=1)
    with pytest.raises(
        RunError, match=r"the files of \S+ on this machine are not those that data/identity/backbone\.json names; copy"
    ):
        check_here(trial)
    make_tiny_backbone(backbone)
    edited(tmp_path / "code/pipeline", monkeypatch, {"families/pairs/contrastive": "x = 1\n"})
    with pytest.raises(RunError, match="the training code was edited after the run began; run again"):
        check_here(trial)


def test_code_that_was_edited_since_stage_identity_ran_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Where stage identity has not run, there is nothing to compare.
    check_code(tmp_path, "tokenize")
    seen = tmp_path / "data/identity/tokenize.json"
    write_json(seen, {"digest": digest_of_sums(stage_sums("tokenize"))})
    # The second is one that the stage does not import itself; the third is another stage's.
    edited(tmp_path / "words/pipeline", monkeypatch, {"data/scratch": "# A comment.\n", "training/step": "x = 1\n"})
    check_code(tmp_path, "tokenize")
    edited(tmp_path / "code/pipeline", monkeypatch, {"data/scratch": "x = 1\n"})
    with pytest.raises(UserError, match=r"tokenize\.json: the code was edited since stage identity ran; run `dvc repro`$"):
        check_code(tmp_path, "tokenize")
    write_json(seen, {})
    with pytest.raises(UserError, match=r"tokenize\.json: not what stage identity writes; run `dvc repro`$"):
        check_code(tmp_path, "tokenize")


def leaves(section: BaseModel, *above: str) -> Iterator[tuple[str, ...]]:
    for name in type(section).model_fields:
        value = getattr(section, name)
        yield from leaves(value, *above, name) if isinstance(value, BaseModel) else [(*above, name)]


def changed(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return f"{value}x"
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, tuple):
        return (*value, 77)
    assert value is None
    return 77


def with_change(section: BaseModel, path: Sequence[str]) -> BaseModel:
    value = getattr(section, path[0])
    return section.model_copy(update={path[0]: with_change(value, path[1:]) if path[1:] else changed(value)})


@pytest.mark.parametrize("path", list(leaves(TRIAL)), ids=".".join)
def test_every_field_of_a_trial_is_in_its_digest_but_the_list_of_seeds(path: tuple[str, ...]) -> None:
    with warnings.catch_warnings():
        # pydantic's error, for values that a file could not have.
        warnings.simplefilter("ignore", UserWarning)
        other = with_change(TRIAL, path)
        assert isinstance(other, Trial)
        assert (other.digest == TRIAL.digest) == (path == ("train", "seeds"))
