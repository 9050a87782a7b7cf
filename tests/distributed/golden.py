"""Six SGD steps by the product's `train`, and the same six steps written out in plain torch and transformers.

AdamW divides the gradient by its own size, so it hides a loss of the wrong scale. Plain SGD does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import BertModel

from pipeline.config.params import TrainParams
from pipeline.models.encoder import GaussianEncoder
from pipeline.training import trainer
from pipeline.training.step import FACTOR
from pipeline.trials.trial import Trial
from tests.trial_of import folder_at, trial_on

# 17 triplets in batches of at most six: 6, 6 and 5 rows, which two workers divide into 3 + 3 and 3 + 2.
TRIPLETS, BATCH, EPOCHS, SEED = 17, 6, 2, 11
_RUNS: dict[str, dict[str, Any]] = {
    "mean": {
        "objective": {"reduction": "mean"},
        "train": {"schedule": "warmup-linear-decay", "warmup_ratio": 0.34},
        "rates": [1 / 2, 1, 1, 3 / 4, 2 / 4, 1 / 4],
    },
    "sum": {
        "objective": {"reduction": "sum", "similarity": "kl-dimwise"},
        "train": {"schedule": "linear-rise", "warmup_ratio": 0.0},
        "rates": [1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6, 1],
    },
    "all parts": {
        "objective": {"neutral_block": True, "simcse_weight": 0.5, "temperature": 0.1},
        "train": {
            "schedule": "linear-decay",
            "warmup_ratio": 0.0,
            "head_rate_factor": 3.0,
            "micro_batch": 4,
            "same_premise": "mask",
        },
        "rates": [1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6],
    },
}
# The same in the precision that users train with.
_RUNS["float32"] = {**_RUNS["mean"], "float32": True}
RUNS = tuple(_RUNS)

Trajectory = dict[str, Tensor]
"""loss: (6,) of each step; and the weights after the last one, by name."""


def trial_of(run: str, backbone: Path, train: Path, dev: Path) -> Trial:
    """The trial of a run: every triplet counts, those without a contradiction too."""
    # Each step is scored, so each step's loss is reported.
    changes = {"epochs": EPOCHS, "triplets": "all", "eval_every": 1, **_RUNS[run]["train"]}
    trial = trial_on(backbone, (train, dev), 0.02, SEED, **changes)
    objective = trial.objective.model_copy(update=_RUNS[run]["objective"])
    return trial.model_copy(update={"objective": objective, "batch_size": BATCH})


def by_train(run: str, trial: Trial, train: Path, dev: Path, folder: Path) -> Trajectory:
    """Through `train`, in this process's process group; only optimizer and precision differ."""
    encoders: list[GaussianEncoder] = []
    load = GaussianEncoder.from_backbone

    def in_float64(params: Any, seed: int) -> GaussianEncoder:
        return load(params, seed).double()

    def sgd_for(encoder: GaussianEncoder, params: TrainParams, learning_rate: float, new: tuple[str, ...]) -> torch.optim.SGD:
        encoders.append(encoder)
        groups: list[dict[str, Any]] = [
            {"params": [p for name, p in encoder.named_parameters() if name.startswith(new) == heads], FACTOR: factor}
            for heads, factor in ((False, 1.0), (True, params.head_rate_factor))
        ]
        return torch.optim.SGD(groups, lr=learning_rate)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "optimizer_for", sgd_for)
        if "float32" not in _RUNS[run]:
            patch.setattr(GaussianEncoder, "from_backbone", staticmethod(in_float64))
        outcome = trainer.train(train, dev, folder_at(trial, folder), lambda _: None, torch.device("cpu"))
    assert [entry["step"] for entry in outcome.history] == [1, 2, 3, 4, 5, 6]
    losses = torch.tensor([entry["loss"] for entry in outcome.history], dtype=torch.float64)
    return {"loss": losses, **{name: value.detach().double() for name, value in encoders[0].named_parameters()}}


def by_two(rank: int, backbone: Path, train: Path, dev: Path, out: Path) -> None:
    """Every run, as one of two gloo processes; the first keeps what came out."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{out / 'rendezvous'}", rank=rank, world_size=2)
    for run in RUNS:
        found = by_train(run, trial_of(run, backbone, train, dev), train, dev, out / f"{run}-trial")
        if rank == 0:
            save_file(found, out / f"{run}.safetensors")
    dist.destroy_process_group()


def by_hand(run: str, trial: Trial, sentences: Sequence[Sequence[int]], triplets: Sequence[Sequence[int]]) -> Trajectory:
    """Without any code of the product: transformers' BERT over padded sentences, each row's loss from Eq. 4, SGD."""
    objective = trial.objective
    torch.manual_seed(trial.seed)
    bert = BertModel.from_pretrained(trial.model.backbone, add_pooling_layer=False, attn_implementation="eager")
    with torch.random.fork_rng():
        torch.manual_seed(trial.seed)
        mean_head, variance_head = nn.Linear(32, 32), nn.Linear(32, 32)
    model = nn.ModuleDict({"backbone": bert, "mean_head": mean_head, "variance_head": variance_head})
    model = model.to(torch.float32 if "float32" in _RUNS[run] else torch.float64)

    def encode(numbers: Sequence[int]) -> tuple[Tensor, Tensor]:
        chosen = [list(sentences[number]) for number in numbers]
        longest = max(map(len, chosen))
        ids = torch.tensor([row + [0] * (longest - len(row)) for row in chosen])
        mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in chosen])
        first = bert(input_ids=ids, attention_mask=mask).last_hidden_state[:, 0]
        return torch.tanh(mean_head(first)), variance_head(first)

    def similarity(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> Tensor:
        """sim(a_i‖b_j)."""
        (mean_a, log_a), (mean_b, log_b) = ((m[:, None], v[:, None]) if k == 0 else (m, v) for k, (m, v) in enumerate((a, b)))
        kl = 0.5 * ((log_a - log_b).exp() + (mean_a - mean_b) ** 2 / log_b.exp() - 1 - log_a + log_b)
        return 1 / (1 + kl.sum(-1)) if objective.similarity == "kl" else (1 / (1 + kl)).mean(-1)

    def loss_of(rows: Sequence[Sequence[int]]) -> Tensor:
        premise, entailment = encode([row[0] for row in rows]), encode([row[1] for row in rows])
        others = [encode([row[2] for row in rows if row[2] >= 0])]
        if objective.neutral_block:
            others.append(encode([row[3] for row in rows if row[3] >= 0]))
        candidates = [entailment, *others]
        forward = torch.cat([similarity(block, premise) for block in candidates]).T / objective.temperature
        reverse = similarity(premise, entailment).T / objective.temperature
        means = F.normalize(torch.cat([block[0] for block in candidates]), dim=1)
        cosines = F.normalize(premise[0], dim=1) @ means.T / objective.temperature
        total = torch.zeros((), dtype=forward.dtype)
        for i in range(len(rows)):
            masked = trial.train.same_premise == "mask"
            same = [j for j, row in enumerate(rows) if masked and j != i and row[0] == rows[i][0]]
            kept = [j for j in range(forward.shape[1]) if j not in same]
            total = total + torch.logsumexp(torch.cat([forward[i, kept], reverse[i]]), 0) - forward[i, i]
            total = total + objective.simcse_weight * (torch.logsumexp(cosines[i, kept], 0) - cosines[i, i])
        return total / len(rows) if objective.reduction == "mean" else total

    losses: list[float] = []
    for step, rate in enumerate(_RUNS[run]["rates"]):
        epoch, within = divmod(step, 3)
        order = np.random.default_rng([trial.seed, epoch]).permutation(TRIPLETS)
        loss = loss_of([triplets[row] for row in np.array_split(order, 3)[within]])
        losses.append(loss.item())
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                assert parameter.grad is not None
                factor = trial.train.head_rate_factor if name.startswith(("mean_head", "variance_head")) else 1.0
                parameter -= trial.learning_rate * rate * factor * parameter.grad
    found = {name: value.detach().double() for name, value in model.named_parameters()}
    return {"loss": torch.tensor(losses, dtype=torch.float64), **found}
