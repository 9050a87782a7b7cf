"""The training loop: plain torch, one process a worker, a callback that hears how it goes.

Shapes: n triplets in the global batch, n_r of them on this worker, m sentences to encode, D dimensions.
A trial's folder holds `latest/` (to resume from), `best/` (the encoder with the highest development PR-AUC) and, once the trial
is finished, `trial.json` (then `latest/` is gone).
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from pipeline import checkpoint, collectives
from pipeline.batching import global_batch, group_by_length, steps_per_epoch
from pipeline.data.tokens import TokenStore, open_store, read_pairs, read_triplets
from pipeline.encoder import GaussianEncoder
from pipeline.errors import UserError
from pipeline.evaluation import dev_pr_auc
from pipeline.files import read_json, write_json
from pipeline.gaussian import Gaussian
from pipeline.objectives import Objective, make_objective
from pipeline.params import Schedule, TrainParams
from pipeline.trial import BEST, OUTCOME, Outcome, Timing, Trial

LATEST = "latest"
# Steps between two progress reports.
REPORT_EVERY = 10


class TrainingError(UserError):
    """Training cannot go on: the loss or the development score is not finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What the loop tells its callback. Losses are means over the steps since the last report."""

    step: int
    total_steps: int
    loss: float | None
    learning_rate: float
    dev_pr_auc: float | None
    best_dev_pr_auc: float | None
    triplets_per_second: float | None
    seconds_left: float | None


def learning_rate_at(step: int, total: int, peak: float, schedule: Schedule, warmup_ratio: float) -> float:
    """Learning rate of a step (0 … total − 1); see params.yaml `train.schedule` for who uses which."""
    if schedule == "linear-rise":
        return peak * (step + 1) / total
    warmup = round(warmup_ratio * total) if schedule == "warmup-linear-decay" else 0
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * (total - step) / (total - warmup)


def train(
    trial: Trial,
    train_tokens: Path,
    dev_tokens: Path,
    folder: Path,
    report: Callable[[Progress], None],
    device: torch.device,
) -> Outcome:
    """Run a trial, or the rest of it, in the process group this worker belongs to.

    Args:
        train_tokens: token store with triplets.
        dev_tokens: token store with the development pairs.
        folder: the trial's own folder, seen by all workers; a `latest/` there is resumed from.
        report: called on every worker every `REPORT_EVERY` steps, at every scoring and at the end.

    Raises:
        UserError: a token store is damaged, or there are fewer triplets than a batch needs.
        TrainingError: the loss or the development score is not finite.
    """
    return _Run(trial, train_tokens, dev_tokens, folder, report, device).run()


def training_triplets(tokens: Path, which: str) -> NDArray[np.int32]:
    """(n, 3) sentence numbers; `which` is the parameter train.triplets."""
    triplets = read_triplets(tokens)
    return triplets[triplets[:, 2] >= 0] if which == "with-contradiction" else triplets


def optimizer_for(model: nn.Module, params: TrainParams, learning_rate: float) -> torch.optim.AdamW:
    """Fused AdamW; vectors (biases, LayerNorm) are not decayed."""
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": params.weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=learning_rate, fused=True)


class GroupEncoder(nn.Module):
    """Encodes all length groups of a step in one forward call, as DDP wants it.

    [(ids, mask), …] → (m, 2, D), mean and log-variance.
    """

    def __init__(self, encoder: GaussianEncoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, groups: list[tuple[Tensor, Tensor]]) -> Tensor:
        parts = [self.encoder(ids, mask) for ids, mask in groups]
        # Out of autocast's bf16: the loss needs the digits.
        precise = torch.promote_types(parts[0].mean.dtype, torch.float32)
        return torch.cat([torch.stack((g.mean.to(precise), g.log_var.to(precise)), 1) for g in parts])


def batch_loss(
    module: nn.Module,
    objective: Objective,
    store: TokenStore,
    triplets: NDArray[np.int32],
    n: int,
    params: TrainParams,
    device: torch.device,
) -> Tensor:
    """This worker's share of the loss of a global batch, with graph: Σ of its row losses, ().

    Args:
        triplets: (n_r, 3), this worker's rows.
        n: rows of the global batch.
    """
    columns = objective.sentences(triplets)
    wanted = np.concatenate(columns)
    there = np.flatnonzero(wanted >= 0)
    grouped = group_by_length(store, wanted[there], params.length_groups, device)
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=params.precision == "bf16"):
        encoded: Tensor = module([(g.ids, g.mask) for g in grouped.groups])
    encoded = encoded[grouped.inverse]
    if len(there) < len(wanted):
        full = encoded.new_zeros((len(wanted), *encoded.shape[1:]))
        encoded = full.index_copy(0, torch.from_numpy(there).to(device), encoded)
    roles = [Gaussian(part[:, 0], part[:, 1]) for part in encoded.split(len(triplets))]
    present = [torch.from_numpy(column >= 0).to(device) for column in columns]
    return objective.loss(roles, present, n)


class _Run:
    """State of one run of `train`."""

    def __init__(
        self,
        trial: Trial,
        train_tokens: Path,
        dev_tokens: Path,
        folder: Path,
        report: Callable[[Progress], None],
        device: torch.device,
    ) -> None:
        self.trial, self.folder, self.report, self.device = trial, folder, report, device
        self.store, self.dev = open_store(train_tokens), open_store(dev_tokens)
        self.dev_pairs = read_pairs(dev_tokens, "dev")
        self.triplets = training_triplets(train_tokens, trial.train.triplets)
        workers = collectives.world_size()
        if len(self.triplets) < max(2, workers):
            raise UserError(f"{train_tokens}: {len(self.triplets)} triplets; training on {workers} workers needs more")
        if trial.batch_size < 2 * workers:
            raise UserError(
                f"batch size {trial.batch_size} over {workers} workers leaves fewer than two rows each: "
                "raise tune.batch_sizes (params.yaml) or lower cluster.workers (execution.yaml)"
            )
        params = trial.objective
        self.objective = make_objective(params.name, params.similarity, params.temperature)
        self.total = trial.train.epochs * steps_per_epoch(len(self.triplets), trial.batch_size)
        self.encoder = GaussianEncoder.from_backbone(trial.model, trial.seed).to(device)
        self.encoder.variance_head.requires_grad_(self.objective.uses_variance)
        self.module: nn.Module = GroupEncoder(self.encoder)
        if workers > 1:
            self.module = DistributedDataParallel(self.module, forward_sync_buffers=False, gradient_as_bucket_view=True)
        self.optimizer = optimizer_for(self.encoder, trial.train, trial.learning_rate)
        # Dropout differs between workers; everything else that is random comes from the seed alone.
        torch.manual_seed(trial.seed + 1_000_003 * (1 + collectives.rank()))
        self.history: list[dict[str, Any]] = []
        self.best_step, self.best_pr_auc = -1, float("-inf")
        self.seconds_before = 0.0

    def run(self) -> Outcome:
        start = self._resume()
        began = time.monotonic()
        rate = self.trial.learning_rate
        if start == 0 and self.trial.train.step_zero_eligible:
            self._score(0, None, 0.0, None, None)
        losses: list[float] = []
        rows_done, since, scoring = 0, time.monotonic(), 0.0
        self.encoder.train()
        for step in range(start, self.total):
            rate, loss, rows = self._step(step)
            losses.append(loss)
            rows_done += rows
            done = step + 1
            score = done % self.trial.train.eval_every == 0 or done == self.total
            if not score and done % REPORT_EVERY:
                continue
            now = time.monotonic()
            speed = rows_done / max(now - since - scoring, 1e-9)
            left = (now - began) / (done - start) * (self.total - done)
            mean_loss = float(np.mean(losses))
            losses = []
            if score:
                self._score(done, mean_loss, rate, speed, left)
                self._save(done, self.seconds_before + time.monotonic() - began)
                scoring += time.monotonic() - now
            else:
                self._tell(done, mean_loss, rate, None, speed, left)
        return self._finish(self.seconds_before + time.monotonic() - began)

    def _step(self, step: int) -> tuple[float, float, int]:
        """One optimizer step: (learning rate, loss of the global batch, its rows)."""
        train = self.trial.train
        rate = learning_rate_at(step, self.total, self.trial.learning_rate, train.schedule, train.warmup_ratio)
        rows = global_batch(len(self.triplets), self.trial.batch_size, self.trial.seed, step)
        n = len(rows)
        own = self.triplets[rows[collectives.shard(n)]]
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        share = batch_loss(self.module, self.objective, self.store, own, n, train, self.device)
        loss = float(collectives.all_sum(share).item()) / (n if self.trial.objective.reduction == "mean" else 1)
        if not np.isfinite(loss):
            raise TrainingError(
                f"trial {self.trial.name}: the loss is {loss} at step {step} (learning rate {rate:.3g}), "
                f"triplet rows {sorted(rows.tolist())[:8]}… ; lower tune.learning_rates or raise objective.temperature"
            )
        # DDP averages the workers' gradients; their sum is the gradient of the global loss, hence the factor.
        scale = collectives.world_size() / (n if self.trial.objective.reduction == "mean" else 1)
        (share * scale).backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return rate, loss, n

    def _score(self, step: int, loss: float | None, rate: float, speed: float | None, left: float | None) -> None:
        bf16 = self.trial.train.precision == "bf16"
        score = dev_pr_auc(self.encoder, self.objective, self.dev, self.dev_pairs, bf16=bf16)
        if not np.isfinite(score):
            raise TrainingError(f"trial {self.trial.name}: development scores are not finite at step {step}")
        if score > self.best_pr_auc:
            self.best_step, self.best_pr_auc = step, score
            if collectives.rank() == 0:
                self.encoder.save_pretrained(
                    self.folder / BEST, trial=self.trial.model_dump(mode="json"), step=step, dev_pr_auc=score
                )
        self._tell(step, loss, rate, score, speed, left)

    def _tell(
        self, step: int, loss: float | None, rate: float, score: float | None, speed: float | None, left: float | None
    ) -> None:
        progress = Progress(
            step=step,
            total_steps=self.total,
            loss=loss,
            learning_rate=rate,
            dev_pr_auc=score,
            best_dev_pr_auc=self.best_pr_auc if self.best_step >= 0 else None,
            triplets_per_second=speed,
            seconds_left=left,
        )
        self.history.append({key: getattr(progress, key) for key in ("step", "loss", "learning_rate", "dev_pr_auc")})
        self.report(progress)

    def _save(self, step: int, seconds: float) -> None:
        state = {
            "digest": self.trial.digest,
            "step": step,
            "best_step": self.best_step,
            "best_pr_auc": self.best_pr_auc,
            "history": self.history,
            "seconds": seconds,
        }
        checkpoint.save(self.folder / LATEST, self.encoder, self.optimizer, state, self.device)

    def _resume(self) -> int:
        """Step to go on from; 0 where there is nothing sound to resume."""
        latest = self.folder / LATEST
        if latest.is_dir() and read_json(latest / "state.json").get("digest") == self.trial.digest:
            state = checkpoint.load(latest, self.encoder, self.optimizer, self.device)
            self.best_step, self.best_pr_auc = state["best_step"], state["best_pr_auc"]
            self.history, self.seconds_before = state["history"], state["seconds"]
            return int(state["step"])
        return 0

    def _finish(self, seconds: float) -> Outcome:
        outcome = Outcome(
            digest=self.trial.digest,
            name=self.trial.name,
            best_step=self.best_step,
            best_dev_pr_auc=self.best_pr_auc,
            total_steps=self.total,
            triplets=len(self.triplets),
            history=self.history,
        )
        if collectives.rank() == 0:
            took = Timing(seconds=seconds, workers=collectives.world_size())
            write_json(self.folder / OUTCOME, {"outcome": asdict(outcome), "timing": asdict(took)})
            shutil.rmtree(self.folder / LATEST, ignore_errors=True)
        collectives.barrier()
        return outcome
