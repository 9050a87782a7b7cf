"""Trials, scores and bulk runs are reused only where their identity is the same. Other versions or precisions are a warning."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.load import load_params
from pipeline.config.objectives import own_keys
from pipeline.config.paths import DEV_TOKENS, TEST_TOKENS, TRAIN_TOKENS
from pipeline.evaluation.aggregate import read_outcomes
from pipeline.evaluation.encoding import encode_here
from pipeline.evaluation.score_cache import Model, score_models
from pipeline.gaussian.distribution import Gaussian
from pipeline.identity.digests import library_versions, other_versions
from pipeline.inference.bulk_plan import planned
from pipeline.models.encoder import GaussianEncoder
from pipeline.models.model_dir import content_digest
from pipeline.tracking.forwarder import warn_reuse
from pipeline.trials.store import TrialStore
from pipeline.trials.trial import BEST, OUTCOME, Outcome, Timing
from pipeline.utils.atomic_io import SUMS, read_json, write_json, write_sums
from pipeline.utils.errors import UserError
from tests.conftest import PLAIN
from tests.identity.edits import edited
from tests.store import make_store, random_stores
from tests.tiny import make_tiny_backbone
from tests.trial_of import plain_trial

P = load_params(PLAIN)
TRIAL = plain_trial()


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
    outcome = {"digest": digest, "name": "x", "best_step": 1, "best_score": 50.0, "total_steps": 1, "rows": 8}
    outcome |= {"score_name": "dev_pr_auc", "same_source_pairs": 0, "weights": content_digest(folder / BEST), "history": []}
    Outcome(**outcome)
    write_json(folder / OUTCOME, {"outcome": outcome, "timing": {"seconds": 1.0, "workers": 2, **timing}})
    return folder


def test_reuse_under_other_versions_or_another_precision_is_one_line_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.tracking.forwarder.bf16_here", lambda: True)
    places = TrialStore(train_tokens=tmp_path, dev_tokens=tmp_path, storage=tmp_path)
    trials = [TRIAL.model_copy(update={"seed": seed}) for seed in range(4)]
    now = library_versions()
    assert now.keys() == {"python", "torch", "transformers", "tokenizers", "safetensors", "numpy"}
    for trial in trials:
        kept_trial(places.folder(trial).path, trial.digest, precision="bf16", versions=now)
    warn_reuse([(trial, places.folder(trial).timing()) for trial in trials])
    assert capsys.readouterr().err == ""
    for trial in trials[:2]:
        kept_trial(places.folder(trial).path, trial.digest, precision="fp32", versions={**now, "torch": "2.1.0", "numpy": "1.9"})
    # For a trial from before they were recorded, nothing is said.
    kept_trial(places.folder(trials[3]).path, trials[3].digest)
    warn_reuse([(trial, places.folder(trial).timing()) for trial in trials])
    assert capsys.readouterr().err.splitlines() == [
        f"warning: trials that are reused were trained with numpy 1.9 (now {now['numpy']}), torch 2.1.0 (now {now['torch']})",
        "warning: 2 of 4 trials that are reused were trained in fp32; this machine would use bf16",
    ]
    assert other_versions([{"torch": "1"}, {"torch": "2"}]) == f"torch 1 and 2 (now {now['torch']})"
    assert (
        str(Timing(seconds=1.0, workers=2, precision="fp32", versions={"torch": "2"}))
        == "trained by 2 workers in fp32 with torch 2"
    )


# Scores.


class Project:
    """Token stores, a model, and how often it was encoded."""

    def __init__(self, root: Path) -> None:
        self.root, self.encoded = root, 0
        random_stores(root / TRAIN_TOKENS.parent)
        self.tests(label=0)
        self.backbone = make_tiny_backbone(root / "backbone", layers=1)
        model = P.model.encoder.model_copy(update={"backbone": str(self.backbone), "max_length": 24})
        GaussianEncoder.from_backbone(model, 1).save_pretrained(root / "model")
        self.model = Model(name="a model", folder=root / "model", objective=P.objective)

    def tests(self, label: int) -> None:
        shutil.rmtree(self.root / TEST_TOKENS, ignore_errors=True)
        make_store(self.root / TEST_TOKENS, [[2, 7, 3], [2, 8, 3]], pairs={"test": [(0, 1, label), (1, 0, 1)]})

    def scored(self, model: Model | None = None) -> bool:
        """True if the model had to be scored, because no earlier scores could be reused."""

        def encode(folder: Path, stores: Sequence[Path], /, *, bf16: bool = False) -> Sequence[Gaussian]:
            self.encoded += 1
            return encode_here(folder, stores)

        before = self.encoded
        places = TrialStore(train_tokens=self.root, dev_tokens=self.root, storage=self.root / "storage")
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
    assert project.scored(replace(project.model, objective=own_keys(P.objective.model_dump() | {"name": "simcse"})))
    edited(tmp_path / "words/pipeline", monkeypatch, {"families/pairs/scoring": '"""A text."""  # A comment.\n'})
    assert not project.scored()
    edited(tmp_path / "code/pipeline", monkeypatch, {"families/pairs/scoring": "x = 1\n"})
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
    edited(tmp_path / "words/pipeline", monkeypatch, {"models/encoder": "# A comment.\n"})
    assert plan() == before
    edited(tmp_path / "code/pipeline", monkeypatch, {"models/encoder": "x = 1\n"})
    assert {key for key, value in plan().items() if before[key] != value} == {"code"}
