"""The training loop: plain torch, one process per worker, with a callback for progress.

Shapes: n rows in the global batch, n_r of them on this worker, m sentences to encode, D dimensions.
Each checkpoint includes the encoder with the highest development score so far, so the best model never comes from steps that are
repeated after a kill. When the trial is finished, that encoder is its model, and the outcome names it by its content digest.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from pipeline.data.token_sets import with_own_sentences
from pipeline.data.token_shards import FetchedShards
from pipeline.data.token_store import Reading, open_store, read_rows
from pipeline.distributed import collectives
from pipeline.distributed.precision import all_have_bf16
from pipeline.distributed.transfer import HostCopy
from pipeline.identity.digests import library_versions
from pipeline.models.encoder import GaussianEncoder
from pipeline.training import checkpoint
from pipeline.training.pace import Pace, Progress, Speed, device_name
from pipeline.training.step import (
    BatchEncoder,
    DeviceBatch,
    accumulate_gradients,
    data_parallel,
    new_parts,
    optimizer_for,
    set_rate,
    together,
)
from pipeline.trials.trial import Outcome, Timing
from pipeline.trials.trial_folder import TrialFolder
from pipeline.utils.errors import UserError

if TYPE_CHECKING:
    from pipeline.config.params import Schedule

# Steps between two progress reports.
REPORT_EVERY = 10


class Paused(Exception):
    """Raised by `train` on every worker after the same step: the run was asked to pause, and its checkpoint is saved."""


def learning_rate_at(step: int, total: int, peak: float, schedule: Schedule, warmup_ratio: float) -> float:
    """Learning rate of a step (0 … total − 1); params.yaml, `train.schedule`, says which paper or code uses which schedule."""
    if schedule == "linear-rise":
        return peak * (step + 1) / total
    warmup = round(warmup_ratio * total) if schedule == "warmup-linear-decay" else 0
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * (total - step) / (total - warmup)


def train(
    train_tokens: Path,
    dev_tokens: Path,
    folder: TrialFolder,
    report: Callable[[Progress], None],
    device: torch.device,
    pause: Callable[[], bool] = lambda: False,
    shards: FetchedShards | None = None,
) -> Outcome:
    """Run a trial to its end in the process group of this worker, from the start or from a checkpoint.

    Args:
        train_tokens: token store with the rows that the objective trains on.
        dev_tokens: token store with the rows of its development score.
        folder: the trial's folder. If it has a checkpoint, the same for all workers, the run resumes from it.
        report: called on every worker every `REPORT_EVERY` steps, at every scoring and at the end.
        pause: called on the first worker at every step; if it returns True, the run saves a checkpoint after that
            step and ends when it is written.
        shards: the shards of the training store, if they are not all in `train_tokens`.

    Raises:
        Paused: `pause` returned True.
        UserError: a token store is damaged or lacks the objective's rows, there are fewer rows than a batch needs, or the loss or
            the development score is not finite. All workers raise the latter at the same step: the next that reports or saves.
        RunError: a store was changed meanwhile, or a batch needs more shards than there is room for.
    """
    run = _Run(train_tokens, dev_tokens, folder, report, device, pause, shards)
    with closing(run.checkpoints):
        return run.run()


class _Run:
    """State of one run of `train`."""

    def __init__(
        self,
        train_tokens: Path,
        dev_tokens: Path,
        folder: TrialFolder,
        report: Callable[[Progress], None],
        device: torch.device,
        pause: Callable[[], bool],
        shards: FetchedShards | None = None,
    ) -> None:
        trial = folder.trial
        self.trial, self.folder, self.report, self.device, self.pause = trial, folder, report, device, pause
        kind, self.shards = trial.objective.row_kind, shards
        self.reading = [Reading(train_tokens, shards=shards is None), Reading(dev_tokens)]
        self.store, rows = open_store(train_tokens) if shards is None else shards.store(), read_rows(train_tokens, kind)
        self.objective = trial.objective.make()
        # Other sentences would change the last digits of a score, by the sentences that are encoded together.
        self.dev, self.dev_rows = with_own_sentences(open_store(dev_tokens), self.objective.dev_rows(dev_tokens))
        workers = collectives.world_size()
        self.batches = self.objective.batches(rows, self.store, trial.train, trial.batch_size, trial.seed)
        if trial.batch_size < 2 * workers:
            raise UserError(
                f"batch size {trial.batch_size} over {workers} workers leaves fewer than two rows each: "
                "raise tune.batch_sizes (params.yaml) or lower cluster.workers (execution.yaml)"
            )
        self.total = trial.train.epochs * self.batches.steps_per_epoch
        if shards is not None and self.total:
            shards.plan(self.batches.sentences, self.batches.steps_per_epoch)
        self.encoder = GaussianEncoder.from_backbone(trial.model, trial.seed).to(device)
        self.encoder.variance_head.requires_grad_(self.objective.similarity is not None)
        with torch.random.fork_rng(devices=[]):
            # The same on every worker, from another seed than that of the heads.
            torch.manual_seed(~trial.seed)
            self.modules = self.objective.modules(self.encoder, self.batches)
        if shards is not None:
            shards.drop()
        if self.modules is not None:
            self.modules.to(device).train()
        # Wait for workers that are still downloading data or starting their device.
        collectives.barrier()
        self.bf16 = trial.train.precision == "bf16" and all_have_bf16(device)
        represent = partial(self.objective.represent, self.modules)
        alone = BatchEncoder(self.encoder, bf16=self.bf16, represent=represent)
        self.module = data_parallel(alone) if workers > 1 else alone
        self.trained = together(self.encoder, self.modules)
        self.optimizer = optimizer_for(self.trained, trial.train, trial.learning_rate, new_parts(self.encoder, self.objective))
        self.checkpoints = checkpoint.Checkpoints(folder, self.trained, self.optimizer, device)
        # Dropout differs between workers; all other randomness depends on the seed alone.
        torch.manual_seed(trial.seed + 1_000_003 * (1 + collectives.rank()))
        self.history: list[dict[str, Any]] = []
        # Losses of the steps since the last report. Those of the latest steps may not have been read yet: they are still
        # computed. Of each of these: step, learning rate, and the sum over the rows with its divisor.
        self.losses: list[float] = []
        self.unread: list[tuple[int, float, HostCopy, float]] = []
        self.next: DeviceBatch | None = None
        self.before: HostCopy | None = None
        self.pace = Pace(self.encoder.towers, device, trial.train.precision, bf16=self.bf16)
        self.best_step, self.best_score = -1, float("-inf")
        self.seconds_before = 0.0
        # Precision and library versions of each attempt, without repetitions.
        self.ran: list[dict[str, str]] = [{"precision": "bf16" if self.bf16 else "fp32", **library_versions()}]

    def run(self) -> Outcome:
        resumed = self._resume()
        start = resumed or 0
        if start < self.total:
            # The others wait for a worker whose node fetches the first shards.
            self.next = self._batch(start)
        collectives.barrier()
        began = time.monotonic()
        if resumed is None and (self.trial.train.step_zero_eligible or not self.total):
            speed = self.pace.now()
            self._tell(0, None, 0.0, self._score(0, 0.0), speed, None)
            self._save(0, 0.0)
        self.pace.begin()
        self.encoder.train()
        for step in range(start, self.total):
            rate, pause_requested = self._step(step)
            steps_done = step + 1
            score = steps_done % self.trial.train.eval_every == 0 or steps_done == self.total
            pause = pause_requested and steps_done < self.total
            reports = score or steps_done % REPORT_EVERY == 0
            if reports or pause:
                self._read_losses()
            now = time.monotonic()
            if reports:
                speed = self.pace.now()
                seconds_left = (now - began) / (steps_done - start) * (self.total - steps_done)
                mean_loss = float(np.mean(self.losses))
                self.losses = []
                self._tell(steps_done, mean_loss, rate, self._score(steps_done, rate) if score else None, speed, seconds_left)
            if score or pause:
                self._save(steps_done, self.seconds_before + time.monotonic() - began)
                self.pace.set_aside(time.monotonic() - now)
            if pause:
                self.checkpoints.wait()
                raise Paused
        return self._finish(self.seconds_before + time.monotonic() - began)

    def _batch(self, step: int) -> DeviceBatch:
        with nullcontext() if self.shards is None else self.shards.at(step):
            return DeviceBatch.of(self.store, self.batches.batch(step), self.trial.train, self.device)

    def _step(self, step: int) -> tuple[float, bool]:
        """One optimizer step: (learning rate, whether to pause after it). The host does not wait for the device.

        On several GPUs all workers pause one step after they were asked to: by then the answer of the step has arrived.
        """
        self.checkpoints.check()
        train = self.trial.train
        rate = learning_rate_at(step, self.total, self.trial.learning_rate, train.schedule, train.warmup_ratio)
        given = self.next or self._batch(step)
        batch = given.batch
        set_rate(self.optimizer, rate)
        divisor = max(batch.counted, 1) if self.objective.reduction == "mean" else 1
        gathered = collectives.gathered_bytes()
        own_loss = accumulate_gradients(
            self.module,
            given,
            train,
            # DDP averages the workers' gradients, but the gradient of the global loss is their sum.
            scale=collectives.world_size() / divisor,
            modules=self.modules,
        )
        # One reduction for both values; all workers learn of a pause request at the same step.
        asked = collectives.rank() == 0 and self.pause()
        totals = HostCopy(collectives.all_sum(torch.stack([own_loss, own_loss.new_full((), float(asked))])))
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.unread.append((step, rate, totals, divisor))
        self.pace.count(batch.n, given.tokens, collectives.gathered_bytes() - gathered)
        # Meanwhile the device computes.
        self.next = self._batch(step + 1) if step + 1 < self.total else None
        if collectives.world_size() > 1:
            answer, self.before = totals if self.device.type == "cpu" else self.before, totals
            asked = answer is not None and answer.read()[1] > 0
        return rate, asked

    def _read_losses(self) -> None:
        """Wait for the steps so far, and add their losses to `losses`."""
        for step, rate, totals, divisor in self.unread:
            loss = totals.read()[0] / divisor
            if not np.isfinite(loss):
                raise self._not_finite(f"the loss is {loss}", step, rate, step)
            self.losses.append(loss)
        self.unread = []

    def _not_finite(self, what: str, step: int, rate: float, batch_step: int) -> UserError:
        rows = np.sort(self.batches.rows(batch_step)).tolist()
        remedy = "lower tune.learning_rates"
        if "temperature" in type(self.trial.objective).model_fields:
            remedy += " or raise objective.temperature"
        return UserError(
            f"trial {self.trial.name}: {what} at step {step} of {self.total} (learning rate {rate:.3g}); its batch was rows "
            f"{', '.join(map(str, rows))} of data/prepared/train/{self.trial.objective.row_kind}.parquet, counted from 0; "
            f"{remedy} (params.yaml)"
        )

    def _score(self, step: int, rate: float) -> float:
        """The development score of the model as it is, and the best so far."""
        if self.modules is not None:
            self.modules.eval()
        score = self.objective.dev_score(self.encoder, self.dev, self.dev_rows, modules=self.modules, bf16=self.bf16)
        if self.modules is not None:
            self.modules.train()
        if not np.isfinite(score):
            raise self._not_finite("the development scores are not finite", max(step - 1, 0), rate, max(step - 1, 0))
        if score > self.best_score:
            # The weights are saved in this step's checkpoint, together with this record.
            self.best_step, self.best_score = step, score
        return score

    def _tell(self, step: int, loss: float | None, rate: float, score: float | None, speed: Speed, left: float | None) -> None:
        progress = Progress(
            step=step,
            total_steps=self.total,
            loss=loss,
            learning_rate=rate,
            score_name=self.trial.objective.score_name,
            score=score,
            best_score=self.best_score if self.best_step >= 0 else None,
            row_kind=self.trial.objective.row_kind,
            seconds_left=left,
            **asdict(speed),
        )
        self.history.append({key: getattr(progress, key) for key in ("step", "loss", "learning_rate", "score")})
        self.report(progress)

    def _check_data(self, *, whole: bool = False) -> None:
        """Check that no batch can have come from other data than the trial's."""
        for reading in [*self.reading, *([] if self.shards is None else [self.shards])]:
            reading.check(whole=whole)

    def _save(self, step: int, seconds: float) -> None:
        self._check_data()
        state = {name: getattr(self, name) for name in ("best_step", "best_score", "history", "losses", "ran")}
        state |= {"digest": self.trial.digest, "step": step, "seconds": seconds}
        self.checkpoints.save(state, partial(self._write_best, step, self.best_step, self.best_score))

    def _write_best(self, step: int, best_step: int, best_score: float, new: Path, weights: checkpoint.Weights) -> None:
        """Write the best encoder so far into a step's checkpoint: the encoder at that step, or the last checkpoint's best."""
        if best_step == step:
            asked = self.trial.objective
            notes = {"trial": self.trial.model_dump(mode="json"), "step": step, asked.score_name: best_score}
            notes |= {"capabilities": [*asked.capabilities], "similarity": asked.gaussian_similarity or "cosine"}
            self.encoder.save_pretrained(self.folder.best_for(new), self.modules, weights=weights, **notes)
        elif best_step >= 0:
            self.folder.keep_best(new)

    def _resume(self) -> int | None:
        """The step to resume from; None if there is nothing to resume."""
        try:
            if (latest := self.folder.checkpoint) is None:
                return None
            state = checkpoint.load(latest, self.trained, self.optimizer, self.device)
        except UserError as error:
            raise UserError(f"{error}; remove {self.folder.path}/latest to train {self.trial.name} from the start") from None
        self.best_step, self.best_score = state["best_step"], state["best_score"]
        self.history, self.seconds_before = state["history"], state["seconds"]
        self.ran = [*(ran for ran in state["ran"] if ran not in self.ran), *self.ran]
        self.losses = state["losses"]
        return int(state["step"])

    def _finish(self, seconds: float) -> Outcome:
        self._check_data(whole=True)
        weights = ""
        self.checkpoints.wait()
        if collectives.rank() == 0:
            weights = self.folder.publish_model()
        # Publishing may take long if the storage is slow.
        collectives.barrier()
        outcome = Outcome(
            digest=self.trial.digest,
            name=self.trial.name,
            best_step=self.best_step,
            score_name=self.trial.objective.score_name,
            best_score=self.best_score,
            weights=collectives.text_from_first(weights, self.device),
            total_steps=self.total,
            rows=len(self.batches),
            same_source_pairs=sum(self.batches.same_source(step) for step in range(self.total)),
            history=self.history,
        )
        if collectives.rank() == 0:
            ran = {name: " and ".join(dict.fromkeys(ran[name] for ran in self.ran)) for name in self.ran[0]}
            took = Timing(
                seconds=seconds,
                workers=collectives.world_size(),
                threads=torch.get_num_threads(),
                precision=ran.pop("precision"),
                versions=ran,
                device=device_name(self.device),
            )
            self.folder.finish(outcome, took)
        collectives.barrier()
        return outcome
