"""A finished project whose code or backbone is edited: `dvc repro` runs again only what would give another result.

Real dvc, stages and Ray; each test continues from the one before.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.copies import copy_project
from tests.stages.running import dvc, repro, set_keys, set_param, stages_run
from tests.tiny import make_tiny_backbone

pytestmark = [pytest.mark.faults, pytest.mark.weekly]

REUSED = "reused, trained before"
LOSS = "F.cross_entropy(logits"
SCORED_BEFORE = "scoring seed 1: reused, scored before"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One point, one seed, trained and scored."""
    root = copy_project(tmp_path_factory.mktemp("edits") / "project")
    values = {
        "data.generated": {"train": 300, "dev": 90, "test": 90},
        "model.backbone": str(make_tiny_backbone(root.parent / "backbone")),
        "tune.learning_rates": [2.0e-3],
        "tune.batch_sizes": [16],
        "tune.seeds": [1],
        "train.seeds": [1],
    }
    set_keys(root, values)
    said = repro(root, "evaluate")
    assert stages_run(said) == ["prepare", "tokenize", "tune", "train", "evaluate"]
    assert (said.count(REUSED), said.count(SCORED_BEFORE)) == (1, 0)
    return root


def results(root: Path) -> dict[str, Any]:
    """Every loss and score of the training, and the metrics."""
    (entry,) = json.loads((root / "results/train/outcomes.json").read_text(encoding="utf-8"))
    metrics = json.loads((root / "results/evaluate/metrics.json").read_text(encoding="utf-8"))
    return {"history": entry["outcome"]["history"], "metrics": metrics}


def test_edited_words_train_and_score_nothing(project: Path) -> None:
    before = results(project)
    for module in ("families/pairs/gaussian", "evaluation/score_cache"):
        file = project / f"pipeline/{module}.py"
        text = file.read_text(encoding="utf-8")
        assert text.startswith('"""')
        file.write_text(f'"""Other words. {text[3:]}\n# A comment.\n', encoding="utf-8")
    assert stages_run(repro(project, "evaluate")) == []
    assert results(project) == before


def test_edited_code_that_decides_nothing_reuses_trial_and_scores(project: Path) -> None:
    before = results(project)
    for module in ("evaluation/aggregate", "trials/recipe_run"):
        with (project / f"pipeline/{module}.py").open("a", encoding="utf-8") as file:
            file.write("\nunused = 1\n")
    said = repro(project, "evaluate")
    # Stage tune leaves the same best.yaml; stage train depends on the code of trials, too.
    assert stages_run(said) == ["tune", "train", "evaluate"]
    assert (said.count(REUSED), said.count(SCORED_BEFORE)) == (2, 1)
    assert results(project) == before


def test_an_edited_loss_trains_again_and_the_numbers_change(project: Path) -> None:
    before = results(project)
    set_param(project, LOSS, f"-{LOSS}", "pipeline/families/pairs/contrastive.py")
    said = repro(project, "evaluate")
    assert stages_run(said) == ["tune", "train", "evaluate"]
    # Stage train reuses the trials that stage tune has trained again.
    assert "1 trial of 1 worker on" in said.partition("Running stage 'train'")[0]
    assert said.count(REUSED) == 1
    assert said.count(SCORED_BEFORE) == 0
    after = results(project)
    first, other = (run["history"][-1]["loss"] for run in (before, after))
    assert first > 0 > other
    assert after["metrics"] != before["metrics"]


def test_other_weights_in_the_same_folder_run_all_that_reads_them(project: Path) -> None:
    tokens = (project / "data/tokens/train/tokens.json").read_bytes()
    make_tiny_backbone(project.parent / "backbone", seed=1)
    assert stages_run(repro(project, "tokenize")) == ["tokenize"]
    # The tokenizer is the same.
    assert (project / "data/tokens/train/tokens.json").read_bytes() == tokens
    # That their trials differ is tested in tests/identity/test_digests.py.
    stale = json.loads(dvc(project, "status", "--json", "tune", "train"))
    for stage in ("tune", "train"):
        assert {"changed deps": {"data/identity/backbone.json": "modified"}} in stale[stage]
