"""Wrapper of an encoder for mteb (extra `mteb`). Its vectors are mean and log-variance side by side; its similarity is ours.

    import mteb
    from pipeline.inference.mteb import MtebEncoder
    from pipeline.registry.loading import load

    mteb.evaluate(MtebEncoder(load("models:/gausscse@champion")), tasks=mteb.get_tasks(tasks=["STSBenchmark"]))

The numbers that mteb computes from the vectors itself (its cosine and distance columns) are meaningless here. Its main scores use
`similarity` and `similarity_pairwise`.

Shapes: m sentences, D dimensions.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.data.cleaning import is_empty
from pipeline.gaussian.distribution import Gaussian, pairwise_similarity
from pipeline.models.encoder import GaussianEncoder
from pipeline.utils.errors import UserError

if TYPE_CHECKING:
    from mteb.models import ModelMeta
    from mteb.types import Array, BatchedInput
    from torch.utils.data import DataLoader


class MtebEncoder:
    """Wraps a `GaussianEncoder` in mteb's EncoderProtocol.

    Args:
        encoder: the encoder to evaluate.
        premise_first: the first sentence of a pair is the premise and the second the hypothesis, so score sim(second‖first).
            By default the similarity of a and b is sim(a‖b), as everywhere in this library.
        name: model name in mteb's results.
        revision: model revision in mteb's results.

    Raises:
        UserError: mteb is not installed.
    """

    def __init__(
        self, encoder: GaussianEncoder, *, premise_first: bool = False, name: str = "gausscse/gausscse", revision: str = "local"
    ) -> None:
        self._encoder, self._premise_first = encoder, premise_first
        self.mteb_model_meta = _about(encoder, name, revision)

    def encode(self, inputs: DataLoader[BatchedInput], **kwargs: Any) -> Array:
        """Encode the texts of a loader as (m, 2·D) float32: mean, then log-variance. Sorts the texts of all batches together.

        Args:
            kwargs: `batch_size`; all others, such as the task, have no effect.
        """
        texts = [text for batch in inputs for text in batch["text"]]
        # Tasks have long and empty texts, and each text needs a vector.
        encoded, _ = self._encoder.encode_counted(texts, batch_size=kwargs.get("batch_size"), allow_empty=True)
        if empty := sum(map(is_empty, texts)):
            warnings.warn(f"of {len(texts)} texts {empty} are empty; their vectors say nothing", stacklevel=2)
        return torch.cat((encoded.mean, encoded.log_var), dim=1).numpy()

    def similarity(self, embeddings1: Array, embeddings2: Array) -> Tensor:
        """(m, m′) similarities of all pairs of vectors from `encode`; cosines if the model has no variances."""
        first, second = _gaussian(embeddings1), _gaussian(embeddings2)
        if self._encoder.score_kind == "cosine":
            return F.normalize(first.mean, dim=1) @ F.normalize(second.mean, dim=1).T
        with torch.inference_mode():
            if self._premise_first:
                return pairwise_similarity(second, first, self._encoder.score_kind).T
            return pairwise_similarity(first, second, self._encoder.score_kind)

    def similarity_pairwise(self, embeddings1: Array, embeddings2: Array) -> Tensor:
        """(m,) similarities of vectors from `encode`, row by row. mteb has no place for the token vectors of a relation head."""
        first, second = _gaussian(embeddings1), _gaussian(embeddings2)
        return self._encoder.similarity(*((second, first) if self._premise_first else (first, second)))


def _gaussian(vectors: Array) -> Gaussian:
    both = torch.atleast_2d(torch.as_tensor(np.asarray(vectors), dtype=torch.float32))
    return Gaussian(*both.chunk(2, dim=1))


def _about(encoder: GaussianEncoder, name: str, revision: str) -> ModelMeta:
    try:
        from mteb.models import ModelMeta
    except ImportError:
        raise UserError("the wrapper needs mteb: pip install 'gausscse-pipeline[mteb]'") from None
    return ModelMeta.create_empty(
        {
            "name": name,
            "revision": revision,
            "languages": ["eng-Latn"],
            "n_parameters": sum(parameter.numel() for parameter in encoder.parameters()),
            "max_tokens": encoder.params.max_length,
            "embed_dim": 2 * encoder.dim,
            "open_weights": True,
            "framework": ["PyTorch"],
            "use_instructions": False,
        }
    )
