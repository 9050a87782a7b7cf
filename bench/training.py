"""Triplets per second of the training step, packaged encoder, batches of 64, two threads, bf16."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from bench.baselines import BF16, PlainLoop, SentenceTransformersLoop
from bench.corpus import Corpus, corpus
from bench.measure import Row, is_quick, peak_mb, ratio, use_threads
from pipeline.gaussian.distribution import SimilarityKind
from pipeline.models.encoder import GaussianEncoder
from pipeline.models.packing import by_length, lay_out
from pipeline.objectives import make_objective
from pipeline.objectives.batch_sampler import GlobalBatches
from pipeline.objectives.triplets import triplet_batch
from pipeline.training.step import HEADS, BatchEncoder, DeviceBatch, accumulate_gradients, optimizer_for

BATCH, TEMPERATURE = 64, 0.05
QUICK_BATCH = 8
KINDS: tuple[SimilarityKind, ...] = ("kl", "kl-dimwise")


class Product:
    """The product's own training step, over the token store."""

    def __init__(
        self, data: Corpus, kind: SimilarityKind, *, batch_size: int, micro_batch: int | None = None, loss: bool = True
    ) -> None:
        self.data, self.batch_size = data, batch_size
        self.train = data.params.train.model_copy(update={"micro_batch": micro_batch})
        self.encoder = GaussianEncoder.from_backbone(data.params.model, 1)
        self.module = BatchEncoder(self.encoder, bf16=BF16)
        self.optimizer = optimizer_for(self.encoder, self.train, 1e-4, HEADS)
        self.objective = make_objective("ent+con+rev", kind, TEMPERATURE)
        self.batches = GlobalBatches(data.triplets[:, 0], np.zeros(len(data.triplets), np.int32), batch_size, 1)
        self.step_number, self.loss = 0, loss

    def step(self) -> None:
        """One optimizer step; without `loss`, only forward and backward of the encoder."""
        rows = self.batches.rows(self.step_number)
        self.step_number += 1
        batch = triplet_batch(self.objective, self.data.triplets[rows], "keep")
        if self.loss:
            given = DeviceBatch.of(self.data.store, batch, self.train, torch.device("cpu"))
            accumulate_gradients(self.module, given, self.train, scale=1 / len(rows))
            self.optimizer.step()
        else:
            wanted = np.concatenate(batch.sentences)
            wanted = wanted[wanted >= 0]
            wanted = wanted[by_length(self.data.store, wanted, None)[0]]
            self.module(lay_out(self.data.store, wanted, self.train.length_groups, "cpu")).sum().backward()
        self.optimizer.zero_grad(set_to_none=True)


def run(quick: bool) -> list[Row]:
    """Triplets per second, as medians over rounds; in each round, all variants run a few steps in turn."""
    use_threads()
    data = corpus()
    batch, steps, rounds = (QUICK_BATCH, 1, 1) if quick else (BATCH, 4, 7)
    trainer = SentenceTransformersLoop(data.params.model, data.texts, batch)
    variants: dict[str, Callable[[int], float]] = {}
    for kind in KINDS:
        variants[f"ours {kind}"] = _timed(Product(data, kind, batch_size=batch).step)
        variants[f"plain {kind}"] = _timed(PlainLoop(data.params.model, data.texts, batch, kind, TEMPERATURE).step)
    variants["sentence-transformers"] = trainer.steps
    variants["encoder"] = _timed(Product(data, "kl", batch_size=batch, loss=False).step)
    for variant in variants.values():
        variant(1)
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, variant in variants.items():
            seconds[name].append(variant(steps) / steps)
    speed = {name: batch / statistics.median(times) for name, times in seconds.items()}
    peaks = {
        name: peak_mb("bench.training:prepared", variant=name)
        for name in variants
        if name in ("ours kl", "ours kl-dimwise", "plain kl", "plain kl-dimwise", "sentence-transformers")
    }
    rows: list[Row] = []
    for kind in KINDS:
        for baseline in (f"plain {kind}", "sentence-transformers"):
            ours = f"ours {kind}"
            factor, spread = ratio(seconds[ours], seconds[baseline])
            rows.append(
                Row(
                    name=f"training {kind} against {'a plain loop' if baseline.startswith('plain') else baseline}",
                    ours=speed[ours],
                    baseline=speed[baseline],
                    ratio=factor,
                    unit="triplets/s",
                    peak_mb=peaks[ours],
                    baseline_peak_mb=peaks[baseline],
                    note=spread,
                )
            )
    factor, spread = ratio(seconds["ours kl"], seconds["encoder"])
    rows.append(
        Row(
            name="training kl against its encoder alone",
            ours=speed["ours kl"],
            baseline=speed["encoder"],
            ratio=factor,
            unit="triplets/s",
            peak_mb=peaks["ours kl"],
            note=f"forward and backward without loss or optimizer; {spread}",
        )
    )
    return rows


def _timed(step: Callable[[], None]) -> Callable[[int], float]:
    def steps(number: int) -> float:
        start = time.perf_counter()
        for _ in range(number):
            step()
        return time.perf_counter() - start

    return steps


def prepared(variant: str) -> Callable[[], None]:
    """A function that runs three steps of a variant, to measure memory."""
    use_threads()
    data, batch = corpus(), QUICK_BATCH if is_quick() else BATCH
    if variant == "sentence-transformers":
        trainer = SentenceTransformersLoop(data.params.model, data.texts, batch)

        def two() -> None:
            trainer.steps(2)

        return two
    kind: SimilarityKind = "kl-dimwise" if variant.endswith("dimwise") else "kl"
    loop = (
        Product(data, kind, batch_size=batch)
        if variant.startswith("ours")
        else PlainLoop(data.params.model, data.texts, batch, kind, TEMPERATURE)
    )

    def three() -> None:
        for _ in range(3):
            loop.step()

    return three
