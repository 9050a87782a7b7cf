"""A tokenizer as the token stores need it: sentences in, arrays of token ids out, and a digest of what decides them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pipeline.data.token_store import read_manifest
from pipeline.utils.errors import UserError

if TYPE_CHECKING:
    from transformers.tokenization_utils_tokenizers import TokenizersBackend

    from pipeline.models.encoder import GaussianEncoder

Encoded = tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.int32]]
"""Token ids of n sentences end to end, stored lengths (n,) and lengths before truncation (n,)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    """A tokenizer, its origin, and the maximum length of a sentence."""

    name: str
    revision: str | None
    tokenizer: TokenizersBackend
    max_length: int
    """In tokens, special tokens included."""

    def __post_init__(self) -> None:
        """Check the tokenizer.

        Raises:
            UserError: the tokenizer has no padding token, or `max_length` is too large or too small for it.
        """
        if self.tokenizer.pad_token_id is None:
            raise UserError(f"model.backbone: the tokenizer of {self.name} has no padding token; choose an encoder that has one")
        least, most = self.tokenizer.num_special_tokens_to_add(pair=False) + 1, self.tokenizer.model_max_length
        if not least <= self.max_length <= most:
            raise UserError(f"model.max_length: got {self.max_length}; {self.name} takes {least} to {most} tokens")

    @staticmethod
    def of(model: GaussianEncoder) -> Encoder:
        """The tokenizer of a trained encoder."""
        tokenizer: Any = model.tokenizer
        params = model.params
        return Encoder(name=params.backbone, revision=params.revision, tokenizer=tokenizer, max_length=params.max_length)

    def reads(self, store: Path) -> bool:
        """True if a token store holds the tokens that this tokenizer makes."""
        manifest = read_manifest(store)
        return (manifest.get("tokenizer_sha256"), manifest.get("max_length")) == (self.digest(), self.max_length)

    def encode(self, sentences: Sequence[str]) -> Encoded:
        """The tokens of n sentences."""
        backend = self._plain()
        encodings = backend.encode_batch_fast(list(sentences))
        full = np.array([len(encoding) for encoding in encodings], dtype=np.int32)
        cut = np.flatnonzero(full > self.max_length).tolist()
        if cut:  # Let the tokenizer truncate, because it knows the positions of its special tokens.
            backend.enable_truncation(self.max_length, direction=self.tokenizer.truncation_side)
            for i, encoding in zip(cut, backend.encode_batch_fast([sentences[i] for i in cut]), strict=True):
                encodings[i] = encoding
        stored = np.minimum(full, self.max_length)
        # `ids` makes a new list on each access. Use one at a time: thousands of live lists trigger the garbage collector often.
        rows = (encoding.ids for encoding in encodings)
        ids = np.fromiter(chain.from_iterable(rows), dtype=np.int32, count=int(stored.sum()))
        return ids, stored, full

    def digest(self) -> str:
        """SHA-256 of the tokenizer's serialisation: vocabulary, normalisation, special tokens."""
        return hashlib.sha256(self._plain().to_str().encode()).hexdigest()

    def _plain(self) -> Any:
        """The tokenizer without padding and truncation, which its files may set, and which calling it sets again."""
        backend = self.tokenizer.backend_tokenizer
        backend.no_padding()
        backend.no_truncation()
        return backend
