"""The Gaussian encoder: a Hugging Face backbone, the first token's hidden state, one linear head each for mean and variance.

Shapes: m sentences, H hidden size of the backbone, D dimensions of the Gaussian.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from safetensors.torch import load_file
from torch import Tensor, nn
from tqdm import tqdm
from transformers import AutoConfig, AutoModel, AutoTokenizer, PreTrainedTokenizerBase

from pipeline import backbone as backbones
from pipeline import bert
from pipeline.blocks import TokenBlocks, lay_out, masked_mean, token_budget_batches
from pipeline.calibration import Calibration, read_calibration, to_text
from pipeline.data.tokens import Shard, TokenStore
from pipeline.errors import UserError
from pipeline.files import check_sums, write_directory, write_sums
from pipeline.gaussian import Gaussian
from pipeline.model_folder import THRESHOLDS
from pipeline.params import ModelParams
from pipeline.sentence_pairs import ScoreKind, SentencePairs
from pipeline.weights import write_tensors

FORMAT = "gausscse-encoder-1"
_WEIGHTS = "model.safetensors"
_BACKBONE = "backbone_config"
# Keys of config.json that are not notes.
_OWN = ("format", "model", "dim")
# Padded tokens in one forward pass outside training, which keeps the activations of the packaged encoder under 100 MB, and the
# blocks it is cut into.
_ENCODE_TOKENS, _ENCODE_BLOCKS = 4096, 4
# Keys that came after the format, and what models saved before them do.
_LATER = {"pooling": "first", "log_var_init": None, "log_var_bound": None}
# Under the logarithm of σ², so that it stays finite.
_FLOOR = 1e-6


@dataclass(frozen=True, slots=True)
class Unusual:
    """How many of some sentences were not encoded as sentences usually are."""

    empty: int
    """Nothing but white space; encoded as that."""
    cut: int
    """Longer than `params.max_length` tokens, and cut there."""


class GaussianEncoder(nn.Module, SentencePairs):
    """Sentence → Gaussian (DESIGN section 2, Encoder).

    `from_pretrained` and `from_backbone` make one; `forward` is for training, `encode` and what `SentencePairs` answers for use.
    """

    def __init__(self, backbone: nn.Module, tokenizer: PreTrainedTokenizerBase, params: ModelParams) -> None:
        super().__init__()
        # An unused pooler would leave parameters without gradient, which DDP refuses.
        if getattr(backbone, "pooler", None) is not None:
            backbone.pooler = None  # type: ignore[assignment]
        self.backbone = backbone
        self.tokenizer = tokenizer
        self.params = params
        hidden: int = backbone.config.hidden_size  # type: ignore[union-attr, assignment]
        self.dim = params.dim or hidden
        self.mean_head = nn.Linear(hidden, self.dim)
        self.variance_head = nn.Linear(hidden, self.dim)
        self.calibration: Calibration | None = None
        self.score_kind: ScoreKind = "kl"
        self.notes: dict[str, Any] = {}

    @staticmethod
    def from_backbone(params: ModelParams, seed: int) -> GaussianEncoder:
        """A pretrained backbone with heads drawn by `seed`; in training mode.

        Raises:
            UserError: the backbone cannot be loaded, or its file lacks weights.
        """
        found = backbones.resolve(params.backbone, params.revision)
        backbones.check_pinned(found)
        # transformers draws random numbers while it loads (for a pooler). They are not used; the caller's must not change.
        with torch.random.fork_rng(devices=[]):
            backbone = backbones.load_model(found)
        if not hasattr(backbone.config, "hidden_size"):
            raise UserError(f"model.backbone: {params.backbone!r} is no text encoder (it has no hidden size)")
        longest = getattr(backbone.config, "max_position_embeddings", None)
        if longest and params.max_length > longest:
            raise UserError(f"model.max_length: {params.max_length} exceeds the {longest} positions of {params.backbone!r}")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            encoder = GaussianEncoder(backbone, backbones.load_tokenizer(found), params)
        if params.log_var_init is not None:
            start, bound = params.log_var_init, params.log_var_bound
            if bound is not None:
                start = bound * math.atanh(start / bound)
            if params.variance_head == "sigma":
                start = math.sqrt(max(math.exp(start) - _FLOOR, 0.0))
            nn.init.zeros_(encoder.variance_head.weight)
            nn.init.constant_(encoder.variance_head.bias, start)
        return encoder.train()

    @staticmethod
    def from_pretrained(path: str | Path) -> GaussianEncoder:
        """An encoder that `save_pretrained` wrote; in evaluation mode, offline.

        Raises:
            UserError: not such a folder, or a file differs from its SHA-256 sum.
        """
        path = Path(path)
        if not (path / "config.json").is_file():
            raise UserError(f"{path}: no config.json here: name a folder written by save_pretrained")
        check_sums(path)
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
        if config.get("format") != FORMAT:
            raise UserError(f"{path}/config.json: format is {config.get('format')!r}, this version reads {FORMAT!r}")
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)
        try:
            params = ModelParams.model_validate_json(json.dumps(_LATER | config["model"]))
        except (KeyError, TypeError, ValidationError):
            raise UserError(f"{path}/config.json: its section model is not one that this version knows") from None
        # Every weight that is drawn here is replaced, so the caller's random numbers must not change.
        with torch.random.fork_rng(devices=[]):
            architecture = AutoConfig.from_pretrained(path / _BACKBONE, local_files_only=True, trust_remote_code=False)
            encoder = GaussianEncoder(AutoModel.from_config(architecture), tokenizer, params)
        encoder.load_state_dict(load_file(path / _WEIGHTS))
        encoder.calibration = read_calibration(path)
        encoder.notes = {key: value for key, value in config.items() if key not in _OWN}
        encoder.score_kind = _score_kind(encoder.notes)
        return encoder.eval()

    def save_pretrained(self, path: str | Path, **notes: Any) -> None:
        """Write config.json, model.safetensors, tokenizer, threshold and SHA256SUMS into a new folder, whole or not at all.

        Args:
            notes: JSON values kept in config.json beside the parameters and those that it was loaded with (how it was made).
        """
        with write_directory(Path(path)) as folder:
            config = {**self.notes, **notes, "format": FORMAT, "model": self.params.model_dump(mode="json"), "dim": self.dim}
            (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
            self.backbone.config.save_pretrained(folder / _BACKBONE)  # type: ignore[union-attr, operator]
            self.tokenizer.save_pretrained(folder)
            write_tensors(self.state_dict(), folder / _WEIGHTS)
            if self.calibration is not None:
                (folder / THRESHOLDS).write_text(to_text(self.calibration), encoding="utf-8")
            write_sums(folder)

    def forward(self, batch: TokenBlocks) -> Gaussian:
        """m sentences → Gaussian of (m, D), in the order of the blocks."""
        hidden = self._pooled(batch)
        mean = self.mean_head(hidden)
        if self.params.mean_activation == "tanh":
            mean = torch.tanh(mean)
        spread = self.variance_head(hidden)
        if self.params.variance_head == "sigma":
            # σ may come out negative: σ² is what counts. The floor keeps the logarithm finite; bf16 has too few digits for it.
            spread = spread.to(torch.promote_types(spread.dtype, torch.float32))
            spread = torch.log(spread.square() + _FLOOR)
        if self.params.log_var_bound is not None:
            spread = self.params.log_var_bound * torch.tanh(spread / self.params.log_var_bound)
        return Gaussian(mean, spread)

    def _pooled(self, batch: TokenBlocks) -> Tensor:
        """(m, H): one vector a sentence, by `model.pooling`."""
        first = self.params.pooling == "first"
        if bert.is_bert_shaped(self.backbone):
            return (bert.first_token_states if first else bert.mean_states)(self.backbone, batch)
        rectangles = [
            (self.backbone(input_ids=ids, attention_mask=mask).last_hidden_state, mask) for ids, mask in batch.rectangles()
        ]
        return torch.cat([states[:, 0] if first else masked_mean(states, mask) for states, mask in rectangles])

    @torch.inference_mode()
    def encode_rows(
        self,
        store: TokenStore,
        rows: NDArray[np.integer],
        *,
        bf16: bool = False,
        batch_size: int | None = None,
        progress: bool = False,
    ) -> Gaussian:
        """Encode sentences of a token store, without dropout.

        Args:
            rows: (m,) sentences of the store, shortest first (that is what keeps padding away).
            bf16: autocast.
            batch_size: sentences of one forward pass at most; there are no more tokens in one than fit anyway.
            progress: a bar on stderr.

        Returns:
            Gaussian of (m, D), float32, on the encoder's device.
        """
        device = self.mean_head.weight.device
        was_training, _ = self.training, self.eval()
        parts: list[Gaussian] = []
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=bf16):
            lengths = store.lengths_of(rows)
            with tqdm(total=len(rows), unit=" sentences", disable=not progress) as bar:
                for batch in token_budget_batches(lengths, np.arange(len(rows)), _ENCODE_TOKENS):
                    step = batch_size or len(batch)
                    for part in (batch[start : start + step] for start in range(0, len(batch), step)):
                        parts.append(self(lay_out(store, rows[part], _ENCODE_BLOCKS, device)).to(torch.float32))
                        bar.update(len(part))
        self.train(was_training)
        return Gaussian.cat(parts) if parts else Gaussian(*torch.empty((2, 0, self.dim), device=device))

    def encode(
        self,
        sentences: Iterable[str],
        *,
        batch_size: int | None = None,
        device: str | torch.device | None = None,
        progress: bool = False,
    ) -> Gaussian:
        """Encode sentences, sorted by length inside, returned in the order given.

        Args:
            sentences: m strings; longer ones are cut at `params.max_length` tokens, and an empty one is encoded as what it is. Of
                both a warning (`warnings`) says how many there were.
            batch_size: sentences of one forward pass at most; by default as many as 4,096 tokens are.
            device: where to compute; default where the weights are.
            progress: a bar on stderr.

        Returns:
            Gaussian of (m, D), float32, on the CPU.

        Raises:
            UserError: an item is not a string, or `sentences` is one string; or a batch of none is asked for.
        """
        if isinstance(sentences, str):
            raise UserError("encode takes a list of sentences; of one, [sentence]")
        texts = list(sentences)
        encoded, unusual = self.encode_counted(texts, batch_size=batch_size, device=device, progress=progress)
        said = [f"{unusual.empty} are empty"] if unusual.empty else []
        said += [f"{unusual.cut} are longer than {self.params.max_length} tokens and were cut"] if unusual.cut else []
        if said:
            warnings.warn(f"of {len(texts)} sentences {' and '.join(said)}", stacklevel=2)
        return encoded

    def encode_counted(
        self,
        texts: Sequence[str],
        *,
        batch_size: int | None = None,
        device: str | torch.device | None = None,
        progress: bool = False,
    ) -> tuple[Gaussian, Unusual]:
        """As `encode`, for who counts instead of being warned."""
        if batch_size is not None and batch_size < 1:
            raise UserError(f"batch_size is {batch_size}: at least 1 is needed")
        for row, text in enumerate(texts):
            if not isinstance(text, str):
                raise UserError(f"sentence {row} is {type(text).__name__}, not text")
            if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
                raise UserError(f"sentence {row} has half of a character (a lone surrogate), which is no text")
        if device is not None:
            self.to(device)
        ids, unusual = self._ids(texts) if texts else ([], Unusual(0, 0))
        store = self._store(ids)
        order = np.argsort(store.length, kind="stable")
        encoded = self.encode_rows(store, order, batch_size=batch_size, progress=progress).to("cpu")
        back = torch.from_numpy(np.argsort(order))
        return encoded[back], unusual

    def _store(self, ids: Sequence[Sequence[int]]) -> TokenStore:
        lengths = np.array([len(row) for row in ids], dtype=np.int32)
        shard = Shard(
            ids=np.fromiter(chain.from_iterable(ids), dtype=np.int32, count=int(lengths.sum())),
            offsets=np.concatenate(([0], np.cumsum(lengths))),
            length=lengths,
        )
        pad: Any = self.tokenizer.pad_token_id
        return TokenStore((shard,), max(len(lengths), 1), pad_id=int(pad), directory=Path())

    def _ids(self, texts: Sequence[str]) -> tuple[list[list[int]], Unusual]:
        longest = self.params.max_length
        found: Any = self.tokenizer(list(texts), truncation=True, max_length=longest, return_overflowing_tokens=True)
        # What is cut off follows the sentence that it is of.
        of = np.asarray(found["overflow_to_sample_mapping"])
        first = np.flatnonzero(np.diff(of, prepend=-1))
        unusual = Unusual(empty=sum(not text.strip() for text in texts), cut=len(np.unique(np.delete(of, first))))
        return [found["input_ids"][row] for row in first], unusual


def _score_kind(notes: Mapping[str, Any]) -> ScoreKind:
    """How a model compares, by the objective that it says it was trained with."""
    objective = notes.get("trial", {}).get("objective", {})
    if objective.get("name") == "simcse":
        return "cosine"
    return "kl-dimwise" if objective.get("similarity") == "kl-dimwise" else "kl"
