"""What names a result: every parameter, the data, the backbone's files and the code, without its comments and docstrings."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from conftest import ROOT
from pydantic import BaseModel
from store import make_store, random_stores
from tiny import make_tiny_backbone

from pipeline import identity
from pipeline.bulk import planned
from pipeline.cluster.trials import tell_reuse
from pipeline.config import load_params
from pipeline.data.tokens import digest
from pipeline.encoder import GaussianEncoder
from pipeline.errors import RunError, UserError
from pipeline.files import SUMS, read_json, sha256_json, write_json, write_sums
from pipeline.gaussian import Gaussian
from pipeline.grid import Recipe
from pipeline.identity import (
    NEUTRAL,
    SCORES,
    VECTORS,
    WEIGHTS,
    backbone_digest,
    backbone_sums,
    check_here,
    code_digest,
    deciding,
    library_versions,
    other_versions,
)
from pipeline.mixed_precision import bf16_here, has_bf16
from pipeline.model_folder import content_digest
from pipeline.places import Places
from pipeline.project import DEV_TOKENS, TEST_TOKENS, TRAIN_TOKENS
from pipeline.scoring import Model, encode_here, score_models
from pipeline.source import imported_files, source_digest
from pipeline.summary import read_outcomes
from pipeline.trial import BEST, LATEST, OUTCOME, Outcome, Timing, Trial, finished, unusable

P = load_params(ROOT / "params.yaml")
SOURCE = '''
"""A module."""
import ast

LIMIT = 3.0
"""An attribute."""


class Small:
    """A class."""

    size: int = 1 if LIMIT else 2
    """Its size."""


def total(values: list[int], *, text: bytes = b"x") -> str:
    """A function."""
    # A comment.
    return f"{sum(values):>{len(text)}} of {values!r}" "!"
'''


def written(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "module.py").write_text(text, encoding="utf-8")
    return folder / "module.py"


def test_a_digest_of_source_is_the_same_under_every_python(tmp_path: Path) -> None:
    # Taken under 3.11, 3.12 and 3.13.
    assert source_digest(written(tmp_path, SOURCE)) == "7e8348af1ab08ff94c31e1b8d962ee90353fb3f1ae4404d4ee1ce6b673637e7d"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("A comment", "Another comment"),
        ('"""A module."""', ""),
        ('"""An attribute."""\n', ""),
        ('    """A class."""\n', ""),
        ('"""Its size."""', '"""How large."""'),
        ('    """A function."""\n', "\n"),
        ("values: list[int], *", "values: list[int],\n    *"),
    ],
)
def test_comments_docstrings_and_layout_do_not_count(tmp_path: Path, old: str, new: str) -> None:
    assert SOURCE.count(old) == 1
    assert source_digest(written(tmp_path / "b", SOURCE.replace(old, new))) == source_digest(written(tmp_path / "a", SOURCE))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("3.0", "3"),
        ("3.0", "-3.0"),
        ('b"x"', '"x"'),
        ("1 if", "True if"),
        ("{values!r}", "{values!s}"),
        (" of ", " in "),
        (":>{", ":<{"),
        ("sum(values)", "max(values)"),
        ("*, text", "text"),
        ("import ast\n", "import ast as other\n"),
    ],
)
def test_what_is_computed_counts(tmp_path: Path, old: str, new: str) -> None:
    assert SOURCE.count(old) == 1
    assert source_digest(written(tmp_path / "b", SOURCE.replace(old, new))) != source_digest(written(tmp_path / "a", SOURCE))


def test_imports_are_followed_wherever_they_are(tmp_path: Path) -> None:
    files = {
        "__init__.py": "from package.never import x\n",
        "a.py": "from typing import TYPE_CHECKING\nimport package.b\nif TYPE_CHECKING:\n    import package.never\n",
        "b.py": "def f():\n    from package import c\n",
        "c.py": "try:\n    from package.d.e import x\nexcept ImportError:\n    x = 1\n",
        "d/__init__.py": "import package.never\n",
        "d/e.py": "from .g import x\nfrom ..f import y\nimport packages.never\n",
        "d/g.py": "x = 1\n",
        "f.py": "y = 1\n",
        "never.py": "x = 1\n",
    }
    for name, text in files.items():
        (tmp_path / "package" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "package" / name).write_text(text, encoding="utf-8")
    # `from package import c` runs the package's own file too.
    (tmp_path / "package/__init__.py").write_text("", encoding="utf-8")
    reached = imported_files(tmp_path / "package", ["a.py"])
    assert reached == {"__init__.py", "a.py", "b.py", "c.py", "d/e.py", "d/g.py", "f.py"}
    (tmp_path / "package/f.py").write_text("from package.d import z\n", encoding="utf-8")
    assert imported_files(tmp_path / "package", ["a.py"]) == reached | {"d/__init__.py", "never.py"}


def test_what_decides_a_result_is_all_that_is_imported_but_what_is_said_to_be_neutral() -> None:
    reached = {name for roots in (WEIGHTS, SCORES, VECTORS) for name in imported_files(identity.PACKAGE, roots)}
    # The list has no module that nothing imports or that does not exist.
    assert reached >= NEUTRAL.keys()
    mathematics = {"encoder.py", "bert.py", "attention.py", "gaussian.py", "pairwise.py", "data/tokens.py", "backbone.py"}
    assert mathematics | {"training.py", "step.py", "objectives.py", "checkpoint.py", "batching.py"} <= {*deciding(WEIGHTS)}
    assert mathematics | {"scoring.py", "evaluation.py", "objectives.py", "cluster/encoding.py"} <= {*deciding(SCORES)}
    assert (mathematics - {"pairwise.py"}) | {"bulk.py", "cluster/bulk.py"} <= {*deciding(VECTORS)}


@pytest.mark.parametrize(
    ("stage", "roots"),
    [("tune", WEIGHTS), ("train", WEIGHTS), ("evaluate", SCORES), ("experiment", (*WEIGHTS, *SCORES))],
)
def test_a_stage_runs_again_when_code_changes_that_names_its_results(stage: str, roots: Sequence[str]) -> None:
    deps = yaml.safe_load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))["stages"][stage]["deps"]
    assert {f"pipeline/{name}" for name in deciding(roots)} <= {*deps}


# The code as it would be after an edit.


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the code that stands in for the code that runs."""
    yield edited(tmp_path / "code/pipeline", monkeypatch)


def edited(copy: Path, monkeypatch: pytest.MonkeyPatch, **additions: str) -> Path:
    shutil.copytree(ROOT / "pipeline", copy, ignore=shutil.ignore_patterns("__pycache__"))
    for module, text in additions.items():
        with (copy / f"{module}.py").open("a", encoding="utf-8") as file:
            file.write(text)
    monkeypatch.setattr(identity, "PACKAGE", copy)
    return copy


def test_only_code_that_decides_changes_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = [code_digest(roots) for roots in (WEIGHTS, SCORES, VECTORS)]

    def after(name: str, **additions: str) -> list[bool]:
        edited(tmp_path / name / "pipeline", monkeypatch, **additions)
        return [code_digest(roots) == old for roots, old in zip((WEIGHTS, SCORES, VECTORS), before, strict=True)]

    assert after("words", gaussian="# A comment.\n", objectives='"""A text."""\n', files="x = 1\n") == [True, True, True]
    assert after("loss", step="x = 1\n") == [False, True, True]
    assert after("scores", scoring="x = 1\n", bulk="x = 1\n") == [True, False, False]
    assert after("encoder", bert="x = 1\n") == [False, False, False]


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
    (folder / "model.safetensors.index.json").unlink()
    with pytest.raises(UserError, match=r"has no weights \(model\.safetensors\); complete the folder"):
        backbone_digest(str(folder), None)


def test_a_backbone_of_the_hub_is_its_files_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    folder = tmp_path / "models--team--encoder/snapshots" / commit
    make_tiny_backbone(folder)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert backbone_digest("team/encoder", commit) == backbone_digest(str(folder), None)
    with pytest.raises(UserError, match=r"model\.backbone: team/other has no weights"):
        backbone_digest("team/other", commit)


def test_a_trial_is_trained_only_where_code_and_backbone_are_those_it_is_named_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backbone = make_tiny_backbone(tmp_path / "backbone")
    trial = TRIAL.model_copy(
        update={
            "model": P.model.model_copy(update={"backbone": str(backbone)}),
            "backbone_files": backbone_digest(str(backbone), None),
            "code": code_digest(WEIGHTS),
        }
    )
    check_here(trial)
    make_tiny_backbone(backbone, seed=1)
    with pytest.raises(RunError, match=r"the files of \S+ on this machine are not those that data/backbone\.json names; copy"):
        check_here(trial)
    make_tiny_backbone(backbone)
    edited(tmp_path / "code/pipeline", monkeypatch, objectives="x = 1\n")
    with pytest.raises(RunError, match="the code that trains was edited since the run began; run again"):
        check_here(trial)


# Trials.

TRIAL = Trial(
    model=P.model,
    objective=P.objective,
    train=P.train,
    learning_rate=1e-4,
    batch_size=8,
    seed=1,
    train_tokens="t" * 64,
    dev_tokens="d" * 64,
    backbone_files="b" * 64,
    code="c" * 64,
)


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


def test_the_fields_are_walked_to_their_ends() -> None:
    every = set(leaves(TRIAL))
    asked = {
        ("objective", "temperature"),
        ("model", "max_length"),
        ("dev_tokens",),
        ("backbone_files",),
        ("code",),
        ("train", "seeds"),
    }
    assert asked <= every
    assert len(every) == 7 + sum(len(type(s).model_fields) for s in (P.model, P.objective, P.train))


def test_a_recipe_reads_what_the_data_stages_left(tmp_path: Path) -> None:
    random_stores(tmp_path / TRAIN_TOKENS.parent)
    with pytest.raises(UserError, match=r"data/backbone\.json: no such file; run `dvc repro`"):
        Recipe.of(P.model, P.objective, P.train, tmp_path)
    write_json(tmp_path / identity.BACKBONE, [])
    with pytest.raises(UserError, match=r"data/backbone\.json: not what stage backbone writes"):
        Recipe.of(P.model, P.objective, P.train, tmp_path)
    write_json(tmp_path / identity.BACKBONE, {"digest": "b" * 64})
    trial = Recipe.of(P.model, P.objective, P.train, tmp_path).trial(1e-3, 8, 1)
    assert (trial.backbone_files, trial.code) == ("b" * 64, code_digest(WEIGHTS))
    assert (trial.train_tokens, trial.dev_tokens) == (digest(tmp_path / TRAIN_TOKENS), digest(tmp_path / DEV_TOKENS))


def test_a_trial_of_an_older_version_is_not_taken_for_a_new_one(tmp_path: Path) -> None:
    # The digest as before it included code and backbone.
    old = sha256_json(TRIAL.model_dump(mode="json", exclude={"train": {"seeds"}, "code": True, "backbone_files": True}))
    assert old != TRIAL.digest
    places = Places(train_tokens=tmp_path, dev_tokens=tmp_path, storage=tmp_path)
    folder = kept_trial(places.folder(TRIAL), old)
    # Even in the new one's folder.
    assert finished(folder, TRIAL) is None
    assert unusable(folder, TRIAL) == f"{folder / OUTCOME}: it is of another trial ({old})"
    write_json(folder / LATEST / "state.json", {"digest": old})
    assert read_json(folder / LATEST / "state.json")["digest"] != TRIAL.digest
    shutil.rmtree(folder)
    kept_trial(tmp_path / "trials" / old, old)
    assert finished(places.folder(TRIAL), TRIAL) is None
    assert finished(kept_trial(folder, TRIAL.digest), TRIAL) is not None


def test_final_trials_of_an_older_version_are_refused_in_one_line(tmp_path: Path) -> None:
    outcome = read_json(kept_trial(tmp_path / "trial", TRIAL.digest) / OUTCOME)["outcome"]
    write_json(tmp_path / "outcomes.json", [{"trial": TRIAL.model_dump(mode="json"), "outcome": outcome}])
    assert read_outcomes(tmp_path / "outcomes.json") == [(TRIAL, Outcome(**outcome))]
    write_json(tmp_path / "outcomes.json", [{"trial": TRIAL.model_dump(mode="json", exclude={"code"}), "outcome": outcome}])
    with pytest.raises(UserError, match=r"outcomes\.json: another version of this program wrote it; run `dvc repro`"):
        read_outcomes(tmp_path / "outcomes.json")


def kept_trial(folder: Path, digest: str, **timing: Any) -> Path:
    """A finished trial."""
    (folder / BEST).mkdir(parents=True, exist_ok=True)
    (folder / BEST / "model").write_text("weights", encoding="utf-8")
    write_json(folder / BEST / "config.json", {"step": 1, "dev_pr_auc": 50.0})
    (folder / BEST / SUMS).unlink(missing_ok=True)
    write_sums(folder / BEST)
    outcome = {"digest": digest, "name": "x", "best_step": 1, "best_dev_pr_auc": 50.0, "total_steps": 1, "triplets": 8}
    outcome |= {"same_premise_pairs": 0, "weights": content_digest(folder / BEST), "history": []}
    Outcome(**outcome)
    write_json(folder / OUTCOME, {"outcome": outcome, "timing": {"seconds": 1.0, "workers": 2, **timing}})
    return folder


def test_reuse_under_other_versions_or_another_precision_is_one_line_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.cluster.trials.bf16_here", lambda: True)
    places = Places(train_tokens=tmp_path, dev_tokens=tmp_path, storage=tmp_path)
    trials = [TRIAL.model_copy(update={"seed": seed}) for seed in range(4)]
    now = library_versions()
    assert now.keys() == {"python", "torch", "transformers", "tokenizers", "safetensors", "numpy"}
    for trial in trials:
        kept_trial(places.folder(trial), trial.digest, precision="bf16", versions=now)
    tell_reuse(trials, places)
    assert capsys.readouterr().err == ""
    for trial in trials[:2]:
        kept_trial(places.folder(trial), trial.digest, precision="fp32", versions={**now, "torch": "2.1.0", "numpy": "1.9"})
    # For a trial from before they were recorded, nothing is said.
    kept_trial(places.folder(trials[3]), trials[3].digest)
    tell_reuse(trials, places)
    assert capsys.readouterr().err.splitlines() == [
        f"warning: trials that are reused were trained with numpy 1.9 (now {now['numpy']}), torch 2.1.0 (now {now['torch']})",
        "warning: 2 of 4 trials that are reused were trained in fp32; this machine would use bf16",
    ]
    assert other_versions([{"torch": "1"}, {"torch": "2"}]) == f"torch 1 and 2 (now {now['torch']})"
    assert (
        str(Timing(seconds=1.0, workers=2, precision="fp32", versions={"torch": "2"}))
        == "trained by 2 workers in fp32 with torch 2"
    )


def test_the_precision_here_is_that_of_a_worker_on_this_machine() -> None:
    assert bf16_here() == has_bf16(torch.device("cuda" if torch.cuda.is_available() else "cpu"))


# Scores.


class Project:
    """Token stores, a model, and how often it was encoded."""

    def __init__(self, root: Path) -> None:
        self.root, self.encoded = root, 0
        random_stores(root / TRAIN_TOKENS.parent)
        self.tests(label=0)
        self.backbone = make_tiny_backbone(root / "backbone", layers=1)
        model = P.model.model_copy(update={"backbone": str(self.backbone), "max_length": 24})
        GaussianEncoder.from_backbone(model, 1).save_pretrained(root / "model")
        self.model = Model(name="a model", folder=root / "model", objective=P.objective)

    def tests(self, label: int) -> None:
        shutil.rmtree(self.root / TEST_TOKENS, ignore_errors=True)
        make_store(self.root / TEST_TOKENS, [[2, 7, 3], [2, 8, 3]], pairs={"test": [(0, 1, label), (1, 0, 1)]})

    def scored(self, model: Model | None = None) -> bool:
        """Whether the model had to be scored, because no earlier scores could be reused."""

        def encode(folder: Path, stores: Sequence[Path]) -> Sequence[Gaussian]:
            self.encoded += 1
            return encode_here(folder, stores)

        before = self.encoded
        places = Places(train_tokens=self.root, dev_tokens=self.root, storage=self.root / "storage")
        (scores,) = score_models([model or self.model], self.root, places, encode)
        assert scores.tables.keys() == {"dev", "test"}
        return self.encoded > before


def test_scores_are_reused_for_the_same_model_pairs_objective_and_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    project = Project(tmp_path)
    assert project.scored()
    assert not project.scored()
    project.tests(label=2)
    assert project.scored()
    shutil.copytree(tmp_path / DEV_TOKENS, tmp_path / "dev")
    shutil.rmtree(tmp_path / DEV_TOKENS)
    make_store(tmp_path / DEV_TOKENS, [[2, 7, 3], [2, 9, 3]], pairs={"dev": [(0, 1, 0), (1, 0, 1)]})
    assert project.scored()
    shutil.rmtree(tmp_path / DEV_TOKENS)
    shutil.move(tmp_path / "dev", tmp_path / DEV_TOKENS)
    assert not project.scored()
    # With the settings of another objective.
    assert project.scored(replace(project.model, objective=P.objective.model_copy(update={"name": "simcse"})))
    edited(tmp_path / "words/pipeline", monkeypatch, evaluation='"""A text."""  # A comment.\n')
    assert not project.scored()
    edited(tmp_path / "code/pipeline", monkeypatch, evaluation="x = 1\n")
    assert project.scored()
    assert not project.scored()
    assert "warning" not in capsys.readouterr().err
    for file in (tmp_path / "storage/scores").glob("*/versions.json"):
        write_json(file, {**json.loads(file.read_text()), "torch": "2.1.0"})
        (file.parent / SUMS).unlink()
        write_sums(file.parent)
    assert not project.scored()
    expected = f"warning: scores that are reused were computed with torch 2.1.0 (now {library_versions()['torch']})\n"
    assert capsys.readouterr().err == expected


# Bulk runs.


def test_a_bulk_run_is_planned_with_the_code_that_encodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"text": ["a", "b"]}), tmp_path / "corpus.parquet")

    def plan() -> dict[str, Any]:
        return planned(str(tmp_path / "corpus.parquet"), "text", [], "m" * 64, 4).to_json()

    before = plan()
    edited(tmp_path / "words/pipeline", monkeypatch, encoder="# A comment.\n")
    assert plan() == before
    edited(tmp_path / "code/pipeline", monkeypatch, encoder="x = 1\n")
    assert {key for key, value in plan().items() if before[key] != value} == {"code"}
