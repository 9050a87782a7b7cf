"""A small trial whose score rises for four scorings, and a check that its files belong together."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pipeline.data.token_sets import read_pairs
from pipeline.data.token_store import open_store
from pipeline.families.pairs.scoring import dev_pr_auc
from pipeline.models.encoder import GaussianEncoder
from pipeline.training.trainer import train
from pipeline.trials.trial import Outcome, Trial
from pipeline.trials.trial_folder import BEST
from pipeline.utils.atomic_io import read_json
from tests.trial_of import folder_at, trial_on

CPU = torch.device("cpu")


def rising_trial(backbone: Path, stores: tuple[Path, Path]) -> Trial:
    """Ten steps, scored at every second; each of the first four scores is higher than the one before it, the last is lower."""
    return trial_on(backbone, stores, 3e-3, eval_every=2, length_groups=3, epochs=2)


def run(trial: Trial, stores: tuple[Path, Path], folder: Path) -> Outcome:
    return train(*stores, folder_at(trial, folder), lambda _: None, CPU)


def finished(folder: Path, trial: Trial) -> Outcome | None:
    return folder_at(trial, folder).outcome()


def assert_together(folder: Path, trial: Trial, dev_tokens: Path) -> Outcome:
    """The outcome in a trial's folder matches the weights in it: by step, by score, and when they are scored again."""
    outcome = finished(folder, trial)
    assert outcome is not None
    config = read_json(folder / BEST / "config.json")
    assert (outcome.best_step, outcome.best_score) == (config["step"], config["dev_pr_auc"])
    (entry,) = [entry for entry in outcome.history if entry["step"] == outcome.best_step]
    scores = [entry["score"] for entry in outcome.history if entry["score"] is not None]
    assert entry["score"] == outcome.best_score == max(scores)
    encoder, objective = GaussianEncoder.from_pretrained(folder / BEST), trial.objective.make()
    again = dev_pr_auc(encoder, objective.score, open_store(dev_tokens), read_pairs(dev_tokens, "dev"), bf16=False)
    assert again == pytest.approx(outcome.best_score, abs=1e-4)
    return outcome
