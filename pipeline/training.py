"""The training loop: plain torch, one process a worker, a callback that hears how it goes.

Shapes: n triplets in the global batch, n_r of them on this worker, m sentences to encode, D dimensions.
A trial's folder holds `latest/` (to resume from) and `previous/` (the checkpoint before it). Each includes the encoder with the
highest development PR-AUC so far, so that a best model never comes from steps that a killed run repeats. Once the trial is
finished, that encoder is in `best/`, `trial.json` names it by its content, and the checkpoints are removed.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pipeline import checkpoint, collectives
from pipeline.batching import GlobalBatches
from pipeline.data.tokens import open_store, read_pairs, read_triplets
from pipeline.encoder import GaussianEncoder
from pipeline.errors import UserError
from pipeline.evaluation import dev_pr_auc
from pipeline.files import read_json, write_directory, write_json
from pipeline.identity import library_versions
from pipeline.mixed_precision import all_have_bf16
from pipeline.model_folder import content_digest
from pipeline.objectives import objective_of
from pipeline.params import Schedule
from pipeline.step import BatchEncoder, accumulate_gradients, optimizer_for, set_rate, share_of
from pipeline.trial import BEST, LATEST, OUTCOME, PREVIOUS, Outcome, Timing, Trial, check_best

# Steps between two progress reports.
REPORT_EVERY = 10


class Paused(Exception):
    """Raised by `train` on every worker after the same step: the run was asked to pause, and its checkpoint is written."""


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
    pause: Callable[[], bool] = lambda: False,
    written: Callable[[str], None] = lambda _: None,
) -> Outcome:
    """Run a trial, or the rest of it, in the process group this worker belongs to.

    Args:
        train_tokens: token store with triplets.
        dev_tokens: token store with the development pairs.
        folder: the trial's own folder, seen by all workers; a `latest/` there is resumed from.
        report: called on every worker every `REPORT_EVERY` steps, at every scoring and at the end.
        written: called on the first worker after it has written `latest/` or `trial.json` (with `best/`), with the name of it.
        pause: asked on the first worker at every step but the last whether to end after it, with a checkpoint.

    Raises:
        Paused: `pause` said so.
        UserError: a token store is damaged, or there are fewer triplets than a batch needs.
        TrainingError: the loss or the development score is not finite. All workers raise it, at the same step.
    """
    return _Run(trial, train_tokens, dev_tokens, folder, report, device, pause, written).run()


def training_triplets(tokens: Path, which: str) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """(n, 4) sentence numbers, and (n,) rows of triplets.parquet they stand in; `which` is the parameter train.triplets."""
    triplets = read_triplets(tokens)
    rows = np.flatnonzero(triplets[:, 2] >= 0) if which == "with-contradiction" else np.arange(len(triplets))
    return triplets[rows], rows


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
        pause: Callable[[], bool],
        written: Callable[[str], None],
    ) -> None:
        self.trial, self.folder, self.report, self.device = trial, folder, report, device
        self.pause, self.written = pause, written
        self.store, self.dev = open_store(train_tokens), open_store(dev_tokens)
        self.dev_pairs = read_pairs(dev_tokens, "dev")
        self.triplets, self.original_rows = training_triplets(train_tokens, trial.train.triplets)
        workers = collectives.world_size()
        if len(self.triplets) < max(2, workers):
            which = " with a contradiction (train.triplets: all takes the others too)"
            raise UserError(
                f"{train_tokens}: {len(self.triplets)} triplets{which if trial.train.triplets != 'all' else ''}; "
                f"training on {workers} workers needs more"
            )
        if trial.objective.neutral_block and not (self.triplets[:, 3] >= 0).any():
            raise UserError(f"{train_tokens}: no triplet has a neutral pair; set objective.neutral_block: false (params.yaml)")
        if trial.batch_size < 2 * workers:
            raise UserError(
                f"batch size {trial.batch_size} over {workers} workers leaves fewer than two rows each: "
                "raise tune.batch_sizes (params.yaml) or lower cluster.workers (execution.yaml)"
            )
        self.objective = objective_of(trial.objective)
        self.batches = self._global_batches()
        self.total = trial.train.epochs * self.batches.steps_per_epoch
        self.encoder = GaussianEncoder.from_backbone(trial.model, trial.seed).to(device)
        self.encoder.variance_head.requires_grad_(self.objective.uses_variance)
        # A worker may still be fetching its data, or its device may be slow to start.
        collectives.barrier()
        self.bf16 = trial.train.precision == "bf16" and all_have_bf16(device)
        self.module: nn.Module = BatchEncoder(self.encoder, bf16=self.bf16)
        if workers > 1:
            self.module = DistributedDataParallel(
                self.module, process_group=collectives.group(), forward_sync_buffers=False, gradient_as_bucket_view=True
            )
        self.optimizer = optimizer_for(self.encoder, trial.train, trial.learning_rate)
        # Dropout differs between workers; everything else that is random comes from the seed alone.
        torch.manual_seed(trial.seed + 1_000_003 * (1 + collectives.rank()))
        self.history: list[dict[str, Any]] = []
        # Of the steps since the last report.
        self.losses: list[float] = []
        self.best_step, self.best_pr_auc = -1, float("-inf")
        self.seconds_before = 0.0
        # Precision and library versions of each attempt, one for those that were alike.
        self.ran: list[dict[str, str]] = [{"precision": "bf16" if self.bf16 else "fp32", **library_versions()}]

    def _global_batches(self) -> GlobalBatches:
        train, tokens = self.trial.train, self.store.length
        try:
            return GlobalBatches(
                self.triplets[:, 0],
                tokens[self.triplets[:, 0]] - tokens[self.triplets[:, 1]],
                self.trial.batch_size,
                self.trial.seed,
                separate=train.same_premise == "separate",
                matched=train.batch_lengths == "matched",
                not_longer_share=train.not_longer_share,
            )
        except ValueError as error:
            share = train.not_longer_share
            raise UserError(f"train.not_longer_share (params.yaml): got {share}, but {error}; use null") from None

    def run(self) -> Outcome:
        resumed = self._resume()
        collectives.barrier()
        start = resumed or 0
        began = time.monotonic()
        rate = self.trial.learning_rate
        if resumed is None and self.trial.train.step_zero_eligible:
            self._score(0, None, 0.0, None, None)
            self._save(0, 0.0)
        rows_done, since, aside = 0, time.monotonic(), 0.0
        self.encoder.train()
        for step in range(start, self.total):
            rate, loss, rows, asked = self._step(step)
            self.losses.append(loss)
            rows_done += rows
            done = step + 1
            score = done % self.trial.train.eval_every == 0 or done == self.total
            pause = asked and done < self.total
            now = time.monotonic()
            if score or done % REPORT_EVERY == 0:
                speed = rows_done / max(now - since - aside, 1e-9)
                left = (now - began) / (done - start) * (self.total - done)
                mean_loss = float(np.mean(self.losses))
                self.losses = []
                if score:
                    self._score(done, mean_loss, rate, speed, left)
                else:
                    self._tell(done, mean_loss, rate, None, speed, left)
            if score or pause:
                self._save(done, self.seconds_before + time.monotonic() - began)
                aside += time.monotonic() - now
            if pause:
                raise Paused
        return self._finish(self.seconds_before + time.monotonic() - began)

    def _step(self, step: int) -> tuple[float, float, int, bool]:
        """One optimizer step: (learning rate, loss of the global batch, its rows, whether to pause after it)."""
        train = self.trial.train
        rate = learning_rate_at(step, self.total, self.trial.learning_rate, train.schedule, train.warmup_ratio)
        rows = self.batches.rows(step)
        n = len(rows)
        set_rate(self.optimizer, rate)
        divisor = n if self.trial.objective.reduction == "mean" else 1
        share = accumulate_gradients(
            self.module,
            self.objective,
            self.store,
            share_of(self.triplets[rows], train.same_premise),
            train,
            # DDP averages the workers' gradients; their sum is the gradient of the global loss.
            scale=collectives.world_size() / divisor,
        )
        # One sum for both: every worker learns at the same step that the first is asked to pause.
        pause = share.new_tensor(float(collectives.rank() == 0 and self.pause()))
        loss_sum, asked = collectives.all_sum(torch.stack([share.detach(), pause])).tolist()
        loss = loss_sum / divisor
        if not np.isfinite(loss):
            raise self._not_finite(f"the loss is {loss}", step, rate, rows)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return rate, loss, n, asked > 0

    def _not_finite(self, what: str, step: int, rate: float, rows: NDArray[np.int64]) -> TrainingError:
        where = np.sort(self.original_rows[rows]).tolist()
        return TrainingError(
            f"trial {self.trial.name}: {what} at step {step} of {self.total} (learning rate {rate:.3g}); its batch was rows "
            f"{', '.join(map(str, where))} of data/prepared/train/triplets.parquet, counted from 0; "
            "lower tune.learning_rates or raise objective.temperature (params.yaml)"
        )

    def _score(self, step: int, loss: float | None, rate: float, speed: float | None, left: float | None) -> None:
        score = dev_pr_auc(self.encoder, self.objective, self.dev, self.dev_pairs, bf16=self.bf16)
        if not np.isfinite(score):
            raise self._not_finite("the development scores are not finite", step - 1, rate, self.batches.rows(max(step - 1, 0)))
        if score > self.best_pr_auc:
            # Its weights go into the checkpoint written at this step, together with this record.
            self.best_step, self.best_pr_auc = step, score
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
            "losses": self.losses,
            "seconds": seconds,
            "ran": self.ran,
        }
        write_best = partial(self._write_best, step)
        checkpoint.save(self.folder / LATEST, self.encoder, self.optimizer, state, self.device, write_best)
        if collectives.rank() == 0:
            self.written(LATEST)
        collectives.barrier()

    def _write_best(self, step: int, new: Path) -> None:
        """Put the best encoder so far into a checkpoint of this step: the current one, or that of the last checkpoint."""
        if self.best_step == step:
            notes = {"trial": self.trial.model_dump(mode="json"), "step": step, "dev_pr_auc": self.best_pr_auc}
            self.encoder.save_pretrained(new / BEST, **notes)
        elif self.best_step >= 0:
            shutil.copytree(self.folder / LATEST / BEST, new / BEST)

    def _resume(self) -> int | None:
        """Step to go on from; None if there is nothing to resume."""
        latest = self.folder / LATEST
        if not latest.is_dir():
            return None
        try:
            state = read_json(latest / "state.json")
            if state.get("digest") != self.trial.digest:
                return None
            if state["best_step"] >= 0:
                check_best(latest / BEST, state["best_step"], state["best_pr_auc"])
            state = checkpoint.load(latest, self.encoder, self.optimizer, self.device)
        except UserError as error:
            raise UserError(f"{error}; remove {latest} to train {self.trial.name} from its beginning") from None
        self.best_step, self.best_pr_auc = state["best_step"], state["best_pr_auc"]
        self.history, self.seconds_before = state["history"], state["seconds"]
        self.ran = [*(ran for ran in state["ran"] if ran not in self.ran), *self.ran]
        # Not in a checkpoint of earlier versions, which wrote one after a report only.
        self.losses = state.get("losses", [])
        return int(state["step"])

    def _finish(self, seconds: float) -> Outcome:
        weights = ""
        if collectives.rank() == 0:
            # A copy: until trial.json is written, a killed run goes on from the checkpoint.
            with write_directory(self.folder / BEST) as best:
                shutil.copytree(self.folder / LATEST / BEST, best, dirs_exist_ok=True)
            weights = content_digest(self.folder / BEST)
        # That may take long where the storage is slow.
        collectives.barrier()
        outcome = Outcome(
            digest=self.trial.digest,
            name=self.trial.name,
            best_step=self.best_step,
            best_dev_pr_auc=self.best_pr_auc,
            weights=collectives.text_from_first(weights, self.device),
            total_steps=self.total,
            triplets=len(self.triplets),
            same_premise_pairs=sum(self.batches.same_premise(step) for step in range(self.total)),
            history=self.history,
        )
        if collectives.rank() == 0:
            ran = {name: " and ".join(dict.fromkeys(ran[name] for ran in self.ran)) for name in self.ran[0]}
            took = Timing(
                seconds=seconds,
                workers=collectives.world_size(),
                precision=ran.pop("precision"),
                versions=ran,
                device=torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else self.device.type,
            )
            write_json(self.folder / OUTCOME, {"outcome": asdict(outcome), "timing": asdict(took)})
            for name in (LATEST, PREVIOUS):
                shutil.rmtree(self.folder / name, ignore_errors=True)
            self.written(OUTCOME)
        collectives.barrier()
        return outcome
