"""An encoder as mteb sees models (extra `mteb`): its vectors are mean and log-variance side by side, its similarity is ours.

    import mteb
    from pipeline.mteb_model import MtebEncoder
    from pipeline.registry import load_encoder

    mteb.evaluate(MtebEncoder(load_encoder("models:/gausscse@champion")), tasks=mteb.get_tasks(tasks=["STSBenchmark"]))

What mteb computes from the vectors itself (its cosine and distance columns) means nothing here; its main scores go by
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

from pipeline.encoder import GaussianEncoder
from pipeline.errors import UserError
from pipeline.gaussian import Gaussian, pairwise_similarity

if TYPE_CHECKING:
    from mteb import TaskMetadata
    from mteb.models import ModelMeta
    from mteb.types import Array, BatchedInput, PromptType
    from torch.utils.data import DataLoader


class MtebEncoder:
    """A `GaussianEncoder` that follows mteb's EncoderProtocol.

    Args:
        encoder: what encodes.
        premise_first: the first sentence of a task's pair is a premise, the second its hypothesis: scored by sim(second‖first).
            By default the similarity of a and b is sim(a‖b), as everywhere in this library.
        name, revision: what mteb files its results under.

    Raises:
        UserError: mteb is not installed.
    """

    def __init__(
        self,
        encoder: GaussianEncoder,
        *,
        premise_first: bool = False,
        name: str = "gausscse/gausscse",
        revision: str = "local",
    ) -> None:
        self._encoder, self._premise_first = encoder, premise_first
        self.mteb_model_meta = _about(encoder, name, revision)

    def encode(
        self,
        inputs: DataLoader[BatchedInput],
        *,
        task_metadata: TaskMetadata | None = None,
        hf_split: str | None = None,
        hf_subset: str | None = None,
        prompt_type: PromptType | None = None,
        **kwargs: Any,
    ) -> Array:
        """(m, 2·D) float32, mean beside log-variance, of the texts of a loader. Sentences of all batches are sorted together."""
        texts = [text for batch in inputs for text in batch["text"]]
        # Tasks have documents; a warning for each batch of them would say nothing.
        with warnings.catch_warnings(action="ignore"):
            encoded = self._encoder.encode(texts, batch_size=kwargs.get("batch_size"))
        return torch.cat((encoded.mean, encoded.log_var), dim=1).numpy()

    def similarity(self, embeddings1: Array, embeddings2: Array) -> Tensor:
        """(m, m′) similarities of vectors that `encode` gave, of each with each; of a model without variances the cosine."""
        one, other = _gaussian(embeddings1), _gaussian(embeddings2)
        if self._encoder.score_kind == "cosine":
            return F.normalize(one.mean, dim=1) @ F.normalize(other.mean, dim=1).T
        with torch.inference_mode():
            if self._premise_first:
                return pairwise_similarity(other, one, self._encoder.score_kind).T
            return pairwise_similarity(one, other, self._encoder.score_kind)

    def similarity_pairwise(self, embeddings1: Array, embeddings2: Array) -> Tensor:
        """(m,) similarities of vectors that `encode` gave, of each with the one in its place."""
        one, other = _gaussian(embeddings1), _gaussian(embeddings2)
        return self._encoder.similarity(other, one) if self._premise_first else self._encoder.similarity(one, other)


def _gaussian(vectors: Array) -> Gaussian:
    both = torch.as_tensor(np.asarray(vectors), dtype=torch.float32)
    both = both.unsqueeze(0) if both.ndim == 1 else both
    return Gaussian(*both.chunk(2, dim=1))


def _about(encoder: GaussianEncoder, name: str, revision: str) -> ModelMeta:
    try:
        from mteb.models import ModelMeta
    except ImportError:
        raise UserError("the wrapper needs mteb: pip install 'gausscse-pipeline[mteb]'") from None
    return ModelMeta(
        loader=None,
        name=name,
        revision=revision,
        release_date=None,
        languages=["eng-Latn"],
        n_parameters=sum(parameter.numel() for parameter in encoder.parameters()),
        memory_usage_mb=None,
        max_tokens=encoder.params.max_length,
        embed_dim=2 * encoder.dim,
        license=None,
        open_weights=True,
        public_training_code=None,
        public_training_data=None,
        framework=["PyTorch"],
        similarity_fn_name=None,
        use_instructions=False,
        training_datasets=None,
    )
