"""How often a model finds the next sentence of running text.

Shapes: S sentences in a store, a sentences, c candidates, D dimensions.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from pipeline.data.token_sets import TextSet
from pipeline.families.objective import Objective
from pipeline.families.text.running_text import neighbours, next_sentence
from pipeline.gaussian.distribution import Gaussian

Following = Callable[[Gaussian, Gaussian], Tensor]
"""Gaussians of a sentences and c candidates → (a, c) score of "this candidate is the next sentence"."""


@torch.inference_mode()
def score_text(sentences: Gaussian, text: TextSet, objective: Objective) -> pa.Table:
    """What is found of the next sentence, for each pair of neighbours in running text.

    An objective without a method `following` knows nothing of the order of sentences; the cosine of the means takes its place.

    Returns:
        Table of n rows: document, next_sentence (whether the objective's score is highest for the next sentence, among 64) and
        next_sentence_cosine (the same by the cosine of the means).
    """
    following: Following = getattr(objective, "following", _cosine)
    return pa.table(
        {
            "document": text.document[neighbours(text.document).ravel()],
            "next_sentence": next_right(sentences, text, following),
            "next_sentence_cosine": next_right(sentences, text, _cosine),
        }
    )


def next_right(sentences: Gaussian, text: TextSet, following: Following) -> NDArray[np.bool_]:
    """Whether the next sentence has the highest score, for each pair of neighbours."""
    numbers = torch.from_numpy(text.sentence.astype(np.int64)).to(sentences.mean.device)

    def scores(first: NDArray[np.int64], second: NDArray[np.int64]) -> NDArray[np.float64]:
        return following(sentences[numbers[first]], sentences[numbers[second]]).double().cpu().numpy()

    return next_sentence(neighbours(text.document), scores)


def _cosine(a: Gaussian, b: Gaussian) -> Tensor:
    return F.normalize(a.mean) @ F.normalize(b.mean).T
