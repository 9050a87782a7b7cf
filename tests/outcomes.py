"""A small trial whose score rises for four scorings, and a check that its files belong together."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from conftest import ROOT

from pipeline.config import load_params
from pipeline.data.tokens import digest, open_store, read_pairs
from pipeline.encoder import GaussianEncoder
from pipeline.evaluation import dev_pr_auc
from pipeline.files import read_json
from pipeline.identity import WEIGHTS, backbone_digest, code_digest
from pipeline.objectives import objective_of
from pipeline.training import train
from pipeline.trial import BEST, Outcome, Trial, finished

CPU = torch.device("cpu")


def rising_trial(backbone: Path, stores: tuple[Path, Path]) -> Trial:
    """Ten steps, scored at every second; each of the first four scores is higher than the one before it, the last is lower."""
    p = load_params(ROOT / "params.yaml")
    return Trial(
        model=p.model.model_copy(update={"backbone": str(backbone), "max_length": 24}),
        objective=p.objective,
        train=p.train.model_copy(update={"eval_every": 2, "precision": "fp32", "length_groups": 3, "epochs": 2}),
        learning_rate=3e-3,
        batch_size=8,
        seed=1,
        train_tokens=digest(stores[0]),
        dev_tokens=digest(stores[1]),
        backbone_files=backbone_digest(str(backbone), None),
        code=code_digest(WEIGHTS),
    )


def run(trial: Trial, stores: tuple[Path, Path], folder: Path) -> Outcome:
    return train(trial, *stores, folder, lambda _: None, CPU)


def assert_together(folder: Path, trial: Trial, dev_tokens: Path) -> Outcome:
    """The outcome in a trial's folder matches the weights in it: by step, by score, and when they are scored again."""
    outcome = finished(folder, trial)
    assert outcome is not None
    config = read_json(folder / BEST / "config.json")
    assert (outcome.best_step, outcome.best_dev_pr_auc) == (config["step"], config["dev_pr_auc"])
    (entry,) = [entry for entry in outcome.history if entry["step"] == outcome.best_step]
    scores = [entry["dev_pr_auc"] for entry in outcome.history if entry["dev_pr_auc"] is not None]
    assert entry["dev_pr_auc"] == outcome.best_dev_pr_auc == max(scores)
    encoder, objective = GaussianEncoder.from_pretrained(folder / BEST), objective_of(trial.objective)
    again = dev_pr_auc(encoder, objective, open_store(dev_tokens), read_pairs(dev_tokens, "dev"), bf16=False)
    assert again == pytest.approx(outcome.best_dev_pr_auc, abs=1e-4)
    return outcome
