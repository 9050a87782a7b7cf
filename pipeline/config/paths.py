"""Paths in a project folder and in a storage."""

from __future__ import annotations

from pathlib import Path

PREPARED = Path("data/prepared")
PROFILE = PREPARED / "profile.json"
TOKENS = Path("data/tokens")
TRAIN_TOKENS = TOKENS / "train"
DEV_TOKENS = TOKENS / "dev"
PROMOTION_TOKENS = TOKENS / "promotion"
TEST_TOKENS = TOKENS / "tests"
MODELS = Path("models")
TUNE = Path("results/tune")
TRAIN = Path("results/train")
EVALUATE = Path("results/evaluate")
EXPERIMENTS = Path("results/experiments")
REGISTER = Path("results/register.json")
REPORT = Path("report")
# Folders of a storage (`pipeline.storage.inventory`).
TRIALS, SCORES, RELATIONS, WORK = "trials", "scores", "relations", "work"
# DVC copies the project here for `dvc exp run --queue` and `--temp`, and deletes the copy when the experiment has ended.
_EXPERIMENTS = (".dvc", "tmp", "exps")


def home(root: Path) -> Path:
    """The folder for files that must outlive a stage: `root`, or the original project if `root` is a queued DVC copy."""
    for folder in root.resolve().parents:
        if folder.parts[-len(_EXPERIMENTS) :] == _EXPERIMENTS:
            return folder.parents[len(_EXPERIMENTS) - 1]
    return root
