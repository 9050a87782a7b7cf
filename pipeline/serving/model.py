"""A model that answers requests in batches, and the requests."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline.gaussian.distribution import Gaussian
from pipeline.models.encoder import GaussianEncoder
from pipeline.models.model_dir import Engine


class Job(NamedTuple):
    """What one request asks of a model."""

    operation: str
    """encode, query, means, similarity, score, relation, or one of `GaussianEncoder.operations`."""
    first: list[str]
    second: list[str] = []  # noqa: RUF012 (never changed)
    write: bool = False
    """Whether the model writes what the output says."""


class Gaussians(NamedTuple):
    """Answer to encode: (n, D) each."""

    mean: NDArray[np.float32]
    log_var: NDArray[np.float32]


class Means(NamedTuple):
    """Answer to means: (n, D), and the tokens of all sentences together."""

    mean: NDArray[np.float32]
    tokens: int


class Operated(NamedTuple):
    """Answer to an operation of the model: (n, D), and what it writes for them."""

    mean: NDArray[np.float32]
    texts: list[str] | None


class Answered(NamedTuple):
    """The answer to a request, and how its texts were read."""

    value: Answer
    cut: int
    """Texts that were longer than the model reads."""
    unknown: int
    """Texts with many words or characters that the model does not know."""


Answer = Gaussians | Gaussian | Means | Operated | list[float] | list[list[float]]
"""Gaussians, the Gaussian of a query with its token vectors, Means, Operated, (n,) similarities sim(first‖second) or scores of
"first entails second", or (n, 4) probabilities of the relations."""


class Model:
    """An encoder that answers requests."""

    def __init__(self, folder: Path, device: str, engine: Engine = "torch") -> None:
        """Read the model in a folder; all its files are compared with their sums."""
        self._encoder = GaussianEncoder.from_pretrained(folder, engine).to_device(device)

    @torch.inference_mode()
    def answers(self, jobs: list[Job]) -> list[Answered]:
        """Answer all requests of a batch with one call of the encoder."""
        encoder = self._encoder
        encoded, reading = encoder.encode_counted([text for job in jobs for text in (*job.first, *job.second)])
        answers: list[Answered] = []
        start = 0
        for job in jobs:
            middle = start + len(job.first)
            stop = middle + len(job.second)
            seen = reading.of(slice(start, stop))
            value = self._answer(job, encoded[start:middle], encoded[middle:stop], int(seen.tokens.sum()))
            answers.append(Answered(value, int(seen.cut.sum()), seen.strange))
            start = stop
        return answers

    def _answer(self, job: Job, first: Gaussian, second: Gaussian, tokens: int) -> Answer:
        encoder = self._encoder
        match job.operation:
            case "encode":
                return Gaussians(first.mean.numpy(), first.log_var.numpy())
            case "query":
                # Copies: torch sends the whole batch that a part belongs to.
                vectors = first.tokens and first.tokens.packed()
                return Gaussian(first.mean.clone(), first.log_var.clone(), tokens=vectors)
            case "means":
                return Means(first.mean.numpy(), tokens)
            case "similarity":
                return encoder.similarity(first, second).tolist()
            case "score":
                return encoder.score(first, second).tolist()
            case "relation":
                return torch.stack(encoder.relation(first, second), 1).tolist()
            case operation:
                output = encoder.operate(operation, *((first, second) if job.second else (first,)))
                return Operated(output.numpy(), encoder.write(output) if job.write else None)
