"""Triplets per second of the training step, packaged encoder, batches of 64, two threads, bf16."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from bench.baselines import BF16, PlainLoop, SentenceTransformersLoop
from bench.corpus import Corpus, corpus
from bench.measure import Row, compared, in_turn, is_quick, peak_mb, several, use_threads
from pipeline.families.pairs.contrastive import make_objective
from pipeline.families.pairs.triplets import GlobalBatches, triplet_batch
from pipeline.gaussian.distribution import SimilarityKind
from pipeline.models.encoder import GaussianEncoder
from pipeline.models.packing import by_length, lay_out
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
        self.batches = GlobalBatches(len(data.triplets), data.triplets[:, 0].__getitem__, batch_size, 1)
        self.step_number, self.loss, self.workers = 0, loss, 1

    def step(self) -> None:
        """One optimizer step; without `loss`, only forward and backward of the encoder."""
        rows = self.batches.rows(self.step_number)
        self.step_number += 1
        batch = triplet_batch(self.objective, self.data.triplets[rows], "keep")
        if self.loss:
            given = DeviceBatch.of(self.data.store, batch, self.train, torch.device("cpu"))
            accumulate_gradients(self.module, given, self.train, scale=self.workers / len(rows))
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
    steps, rounds = (1, 1) if quick else (4, 7)
    compared_with = {f"{ours} {kind}": 3 for kind in KINDS for ours in ("ours", "plain")} | {"sentence-transformers": 2}
    seconds = in_turn({name: prepared(name, steps) for name in (*compared_with, "encoder")}, rounds)
    peaks = {name: peak_mb("bench.training:prepared", variant=name, steps=most) for name, most in compared_with.items()}
    done = steps * (QUICK_BATCH if quick else BATCH)
    rows: list[Row] = []
    for kind in KINDS:
        for baseline, words in ((f"plain {kind}", "a plain loop"), ("sentence-transformers", "sentence-transformers")):
            name, both = f"training {kind} against {words}", (f"ours {kind}", baseline)
            rows.append(compared(name, "triplets/s", [seconds[one] for one in both], [peaks[one] for one in both], done=done))
    return [
        *rows,
        compared(
            "training kl against its encoder alone",
            "triplets/s",
            [seconds["ours kl"], seconds["encoder"]],
            [peaks["ours kl"]],
            done=done,
            note="forward and backward without loss or optimizer",
        ),
    ]


def prepared(variant: str, steps: int) -> Callable[[], object]:
    """A function that runs steps of a variant: ours or plain with a similarity, sentence-transformers, or the encoder alone."""
    use_threads()
    data, batch = corpus(), QUICK_BATCH if is_quick() else BATCH
    if variant == "sentence-transformers":
        return partial(SentenceTransformersLoop(data.params.model, data.texts, batch).steps, steps)
    kind: SimilarityKind = "kl-dimwise" if variant.endswith("dimwise") else "kl"
    if variant.startswith("plain"):
        return several(PlainLoop(data.params.model, data.texts, batch, kind, TEMPERATURE).step, steps)
    return several(Product(data, kind, batch_size=batch, loss=variant != "encoder").step, steps)
