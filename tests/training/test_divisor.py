"""The loss of running text is a mean over the sentences that have a target, in what is reported and in the gradient."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pipeline.config.objectives import own_keys
from pipeline.families.text.quickthoughts import QuickThoughtsObjective
from pipeline.gaussian.distribution import Gaussian
from pipeline.models.packing import TokenBlocks
from pipeline.training import trainer
from tests.objectives.test_quickthoughts import PLAIN, by_loop
from tests.store import make_store
from tests.trial_of import folder_at, trial_on

SIZES = (5, 1, 9, 1, 1, 7, 1, 8, 1, 6, 4)


@pytest.fixture
def run(tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A run of the trainer with batches of eight sentences, plain SGD with rate 1, and no dropout."""
    r, n = np.random.default_rng(0), sum(SIZES)
    texts = [[2, *r.integers(5, 30, r.integers(1, 11)).tolist(), 3] for _ in range(n)]
    document = np.repeat(np.arange(len(SIZES)), SIZES)
    numbers = {"documents": {"document": document.tolist(), "position": np.concatenate([np.arange(k) for k in SIZES]).tolist()}}
    stores = (
        make_store(tmp_path / "train", texts, rows={"documents": [(k,) for k in range(n)]}, numbers=numbers),
        make_store(tmp_path / "dev", texts, pairs={"dev": [(0, 1, 0), (1, 2, 1)]}),
    )
    monkeypatch.setattr(QuickThoughtsObjective, "dev_rows", lambda self, tokens: None)

    def sgd(model: torch.nn.Module, params: object, rate: float, new: tuple[str, ...]) -> torch.optim.Optimizer:
        return torch.optim.SGD([{"params": list(model.parameters()), "factor": 1.0}], lr=rate)

    monkeypatch.setattr(trainer, "optimizer_for", sgd)
    trial = trial_on(tiny_backbone, stores, 1.0, 3, schedule="linear-decay")
    trial = trial.model_copy(update={"objective": own_keys({**PLAIN, "temperature": 1.0})})
    made = trainer._Run(*stores, folder_at(trial, tmp_path / "trial"), lambda _: None, torch.device("cpu"), lambda: False)
    made.encoder.eval()
    return made


def test_the_mean_is_over_the_sentences_with_targets(run: Any) -> None:
    counted: list[int] = []
    for step in range(run.total):
        rows = run.batches.rows(step)
        sentences = [run.store[int(row)].tolist() for row in rows]
        columns = run.batches._document[rows], run.batches._position[rows]
        before = {name: value.detach().clone() for name, value in run.encoder.named_parameters()}
        encoded = _encoded(run, sentences)
        total, targets = by_loop(Gaussian(encoded.mean.detach().double(), encoded.log_var.detach().double()), *columns)
        # The same sum again, from the objective, for its gradient.
        objective: QuickThoughtsObjective = run.objective
        own = objective.loss(encoded, objective.units(*columns)) / max(targets, 1)
        trained = {name: value for name, value in run.encoder.named_parameters() if value.requires_grad}
        gradients = torch.autograd.grad(own, list(trained.values()), allow_unused=True)
        rate, _ = run._step(step)
        run._read_losses()
        assert run.losses[-1] == pytest.approx(total / max(targets, 1), rel=1e-5, abs=1e-7)
        for (name, value), gradient in zip(trained.items(), gradients, strict=True):
            moved = before[name] - value.detach()
            expected = torch.zeros_like(moved) if gradient is None else rate * gradient
            torch.testing.assert_close(moved, expected, rtol=1e-3, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}")
        counted.append(targets)
        assert run.batches.batch(step).counted == targets
    # Otherwise the number of sentences would do as well.
    assert any(0 < targets < 8 for targets in counted)


def _encoded(run: Any, sentences: list[list[int]]) -> Gaussian:
    parts = [run.encoder(TokenBlocks(torch.tensor(ids), None, ((1, len(ids)),))) for ids in sentences]
    return Gaussian(torch.cat([part.mean for part in parts]), torch.cat([part.log_var for part in parts]))
