"""Sentences per second of a QuickThoughts step, packaged encoder, generated running text, batches of 256, two threads, bf16."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import count
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.nn.functional as F
from torch import nn

from bench.baselines import BF16
from bench.corpus import tokenized
from bench.data import running_text
from bench.measure import ROOT, Row, compared, in_turn, is_quick, peak_mb, several, use_threads
from pipeline.config.load import load_params
from pipeline.config.params import ModelParams
from pipeline.data.token_store import Rows, TokenStore, open_store, read_rows
from pipeline.families.text.generated import generate_documents
from pipeline.families.text.params import QuickThoughtsParams
from pipeline.families.text.quickthoughts import QuickThoughtsObjective
from pipeline.models.backbone import load_tokenizer, resolve
from pipeline.models.encoder import GaussianEncoder
from pipeline.training.step import HEADS, BatchEncoder, DeviceBatch, accumulate_gradients, optimizer_for

BATCH, QUICK_BATCH, STEPS, ROUNDS = 256, 16, 2, 7
PARAMS = QuickThoughtsParams(
    name="quickthoughts",
    loss="softmax",
    context_size=1,
    block_size=1,
    direction="both",
    score="dot",
    temperature=1.0,
    reduction="mean",
    run_length=None,
)


@cache
def documents() -> list[list[str]]:
    """Sentences of generated documents. Some documents have one sentence: it has no context."""
    return [document[: 1 if k % 9 == 0 else None] for k, document in enumerate(generate_documents("train", 1_000, 1))]


class Product:
    """The product's own training step, over a token store."""

    def __init__(self, batch: int) -> None:
        params = load_params(ROOT / "params.yaml")
        self.train = params.train.model_copy(update={"micro_batch": None})
        self.encoder = GaussianEncoder.from_backbone(_model(), 1)
        self.objective = QuickThoughtsObjective(params=PARAMS)
        self.encoder.variance_head.requires_grad_(False)
        self.module = BatchEncoder(self.encoder, bf16=BF16, represent=partial(self.objective.represent, None))
        self.optimizer = optimizer_for(self.encoder, self.train, 1e-4, HEADS)
        self.store, rows = _stored()
        self.batches = self.objective.batches(rows, self.store, self.train, batch, 1)
        self.numbers = count()

    def step(self) -> None:
        """One optimizer step."""
        batch = self.batches.batch(next(self.numbers))
        given = DeviceBatch.of(self.store, batch, self.train, torch.device("cpu"))
        accumulate_gradients(self.module, given, self.train, scale=1 / max(batch.counted, 1))
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


class PlainLoop:
    """A loop over text: tokenizes on the fly, pads to the longest, mean over the tokens, two linear heads, bf16, AdamW."""

    def __init__(self, batch: int) -> None:
        from transformers import AutoModel

        found = resolve(_model().backbone, None)
        self.tokenizer = load_tokenizer(found)
        torch.manual_seed(1)
        self.encoder = AutoModel.from_pretrained(found.location, local_files_only=True, dtype=torch.float32).train()
        hidden = self.encoder.config.hidden_size
        self.f, self.g = nn.Linear(hidden, hidden // 2), nn.Linear(hidden, hidden // 2)
        self.optimizer = torch.optim.AdamW([*self.encoder.parameters(), *self.f.parameters(), *self.g.parameters()], lr=1e-4)
        self.batches = self._batches(batch)

    def _batches(self, batch: int) -> Iterator[tuple[list[str], torch.Tensor]]:
        sentences = [sentence for document in documents() for sentence in document]
        document = np.repeat(np.arange(len(documents())), list(map(len, documents())))
        for start in count(0, batch):
            at = [(start + k) % len(sentences) for k in range(batch)]
            yield [sentences[k] for k in at], torch.tensor([int(document[k]) for k in at])

    def step(self) -> None:
        """One optimizer step."""
        sentences, document = next(self.batches)
        tokens = self.tokenizer(sentences, padding=True, truncation=True, max_length=_model().max_length, return_tensors="pt")
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=BF16):
            states = self.encoder(**tokens).last_hidden_state
            mask = tokens["attention_mask"][..., None]
            pooled = (states * mask).sum(1) / mask.sum(1)
            f, g = self.f(pooled).float(), self.g(pooled).float()
        n = len(sentences)
        scores = (f @ g.T).masked_fill(torch.eye(n, dtype=torch.bool), float("-inf"))
        targets = torch.diag(torch.ones(n - 1), 1) + torch.diag(torch.ones(n - 1), -1)
        targets = targets * (document[:, None] == document)
        rows = targets.sum(1) > 0
        loss = F.cross_entropy(scores[rows], targets[rows] / targets[rows].sum(1, keepdim=True))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


def _model() -> ModelParams:
    given = load_params(ROOT / "params.yaml").model.encoder
    return given.model_copy(update={"mean_activation": "none", "pooling": "mean", "dim": None})


@cache
def _stored() -> tuple[TokenStore, Rows]:
    """The documents, prepared and tokenized."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pq.write_table(pa.table({"text": [" ".join(document) for document in documents()]}), folder / "text.parquet")
        tokenized(folder, load_params(ROOT / "params.yaml"), running_text(folder))
        # Mapped into memory, where they stay without the folder.
        return open_store(folder / "tokens/train"), read_rows(folder / "tokens/train", "documents")


def run(quick: bool) -> list[Row]:
    """Sentences per second, as medians over rounds in which both run a few steps in turn."""
    use_threads()
    variants = ("ours", "plain")
    return [
        compared(
            "quickthoughts step against a plain loop",
            "sentences/s",
            in_turn({name: prepared(name) for name in variants}, 1 if quick else ROUNDS).values(),
            [peak_mb("bench.quickthoughts:prepared", variant=name) for name in variants],
            done=STEPS * (QUICK_BATCH if quick else BATCH),
        )
    ]


def prepared(variant: str) -> Callable[[], None]:
    """A function that runs a few steps of a variant."""
    use_threads()
    batch = QUICK_BATCH if is_quick() else BATCH
    return several((Product(batch) if variant == "ours" else PlainLoop(batch)).step, STEPS)
