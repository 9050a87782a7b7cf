"""The code that the product is measured against, written the usual way."""

# Lint and types are also checked without the extra `bench`.
# pyright: reportMissingImports=false

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.config.params import ModelParams
from pipeline.distributed.precision import has_bf16
from pipeline.gaussian.distribution import SimilarityKind
from pipeline.models.backbone import load_tokenizer, resolve

Texts = list[tuple[str, str, str]]
# As in training, processors without bf16 instructions compute in float32.
BF16 = has_bf16(torch.device("cpu"))


def broadcast_similarity(p_mean: Tensor, p_log_var: Tensor, q_mean: Tensor, q_log_var: Tensor, kind: SimilarityKind) -> Tensor:
    """sim(p_i‖q_j) by broadcasting over (n_p, n_q, D)."""
    d = p_log_var[:, None] - q_log_var[None]
    terms = 0.5 * (d.exp() + (p_mean[:, None] - q_mean[None]) ** 2 / q_log_var.exp()[None] - 1 - d)
    return 1 / (1 + terms.sum(-1)) if kind == "kl" else (1 / (1 + terms)).mean(-1)


def broadcast_loss(roles: list[tuple[Tensor, Tensor]], kind: SimilarityKind, temperature: float) -> Tensor:
    """The loss of Eq. 4 with all three blocks, from (mean, log-variance) of premises, entailments and contradictions."""
    premise, entailment, contradiction = roles
    blocks = [
        broadcast_similarity(*entailment, *premise, kind).T,
        broadcast_similarity(*contradiction, *premise, kind).T,
        broadcast_similarity(*premise, *entailment, kind).T,
    ]
    logits = torch.cat(blocks, 1) / temperature
    return F.cross_entropy(logits, torch.arange(len(logits)))


class PlainLoop:
    """A training loop over text: tokenizes on the fly, three forward passes, each padded to its longest, bf16 autocast, AdamW."""

    def __init__(self, model: ModelParams, texts: Texts, batch_size: int, kind: SimilarityKind, temperature: float) -> None:
        from transformers import AutoModel

        found = resolve(model.backbone, model.revision)
        self.tokenizer, self.max_length = load_tokenizer(found), model.max_length
        torch.manual_seed(1)
        self.encoder = AutoModel.from_pretrained(found.location, local_files_only=True, dtype=torch.float32).train()
        hidden = self.encoder.config.hidden_size
        self.heads = nn.ModuleList([nn.Linear(hidden, hidden), nn.Linear(hidden, hidden)])
        self.optimizer = torch.optim.AdamW([*self.encoder.parameters(), *self.heads.parameters()], lr=1e-4)
        self.kind: SimilarityKind = kind
        self.temperature = temperature
        self.batches = batches(texts, batch_size)

    def step(self) -> None:
        """One optimizer step."""
        batch = next(self.batches)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=BF16):
            roles = [self._encode(list(column)) for column in zip(*batch, strict=True)]
        loss = broadcast_loss(roles, self.kind, self.temperature)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def _encode(self, sentences: list[str]) -> tuple[Tensor, Tensor]:
        tokens = self.tokenizer(sentences, padding=True, truncation=True, max_length=self.max_length, return_tensors="pt")
        first = self.encoder(**tokens).last_hidden_state[:, 0]
        mean, log_var = (head(first) for head in self.heads)
        return torch.tanh(mean).float(), log_var.float()


class SentenceTransformersLoop:
    """SentenceTransformerTrainer with MultipleNegativesRankingLoss and bf16."""

    def __init__(self, model: ModelParams, texts: Texts, batch_size: int) -> None:
        from datasets import Dataset
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.models import Pooling, Transformer

        os.environ.setdefault("WANDB_DISABLED", "true")
        found = resolve(model.backbone, model.revision)
        transformer = Transformer(found.location, max_seq_length=model.max_length)
        pooling = Pooling(transformer.get_embedding_dimension(), pooling_mode="cls")
        self.model = SentenceTransformer(modules=[transformer, pooling], device="cpu")
        columns = dict(zip(("anchor", "positive", "negative"), map(list, zip(*texts, strict=True)), strict=True))
        self.dataset = Dataset.from_dict(columns).shuffle(seed=1)
        self.batch_size, self.used = batch_size, 0

    def steps(self, number: int) -> float:
        """Run a training of `number` optimizer steps; returns their seconds without the trainer's start and its first step."""
        from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
        from sentence_transformers.losses import MultipleNegativesRankingLoss
        from transformers import TrainerCallback

        class Clock(TrainerCallback):
            def __init__(self) -> None:
                self.ends: list[float] = []

            def on_step_end(self, *_: Any, **__: Any) -> None:
                self.ends.append(time.perf_counter())

        rows = range(self.used, self.used + (number + 1) * self.batch_size)
        self.used += len(rows)
        clock = Clock()
        with tempfile.TemporaryDirectory() as folder:
            arguments = SentenceTransformerTrainingArguments(
                output_dir=folder,
                per_device_train_batch_size=self.batch_size,
                max_steps=number + 1,
                bf16=BF16,
                use_cpu=True,
                learning_rate=1e-4,
                report_to="none",
                save_strategy="no",
                logging_strategy="no",
                disable_tqdm=True,
            )
            trainer = SentenceTransformerTrainer(
                model=self.model,
                args=arguments,
                train_dataset=self.dataset.select([row % len(self.dataset) for row in rows]),
                loss=MultipleNegativesRankingLoss(self.model),
                callbacks=[clock],
            )
            trainer.train()
        assert len(clock.ends) == number + 1
        return clock.ends[-1] - clock.ends[0]


def batches(texts: Texts, batch_size: int) -> Iterator[Texts]:
    """Endless shuffled batches."""
    generator = torch.Generator().manual_seed(1)
    while True:
        order = torch.randperm(len(texts), generator=generator).tolist()
        for start in range(0, len(order) - batch_size + 1, batch_size):
            yield [texts[i] for i in order[start : start + batch_size]]


def encode_in_order(encoder: nn.Module, tokenizer: Any, max_length: int, size: int) -> Callable[[list[str]], Tensor]:
    """A function that encodes sentences in the given order in bf16, `size` at a time, padded to the longest of each batch."""

    @torch.inference_mode()
    def encode(sentences: list[str]) -> Tensor:
        parts: list[Tensor] = []
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=BF16):
            for start in range(0, len(sentences), size):
                batch = sentences[start : start + size]
                tokens = tokenizer(batch, padding=True, truncation=True, max_length=max_length, return_tensors="pt")
                parts.append(encoder(**tokens).last_hidden_state[:, 0])
        return torch.cat(parts)

    return encode
