"""The Gaussian encoder: a Hugging Face backbone, the first token's hidden state, one linear head each for mean and variance.

Shapes: m sentences, L tokens, H hidden size of the backbone, D dimensions of the Gaussian.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoTokenizer, PreTrainedTokenizerBase

from pipeline import backbone as backbones
from pipeline.batching import token_budget_batches
from pipeline.errors import UserError
from pipeline.files import check_sums, write_directory, write_sums
from pipeline.gaussian import Gaussian
from pipeline.params import ModelParams

FORMAT = "gausscse-encoder-1"
_WEIGHTS = "model.safetensors"
_BACKBONE = "backbone_config"
# Padded tokens in one forward pass of `encode`: keeps activations of the packaged encoder under 300 MB.
_ENCODE_TOKENS = 4096


class GaussianEncoder(nn.Module):
    """Sentence → Gaussian (DESIGN section 2, Encoder).

    `from_pretrained` and `from_backbone` make one; `forward` is for training, `encode` for use.
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

    @staticmethod
    def from_backbone(params: ModelParams, seed: int) -> GaussianEncoder:
        """A pretrained backbone with heads drawn by `seed`; in training mode.

        Raises:
            UserError: the backbone cannot be loaded.
        """
        found = backbones.resolve(params.backbone, params.revision)
        try:
            backbone = AutoModel.from_pretrained(
                found.location, revision=found.revision, local_files_only=found.is_local, dtype=torch.float32
            )
        except (OSError, ValueError, KeyError) as error:
            raise UserError(f"model.backbone: {params.backbone!r} cannot be loaded: {error}") from None
        if not hasattr(backbone.config, "hidden_size"):
            raise UserError(f"model.backbone: {params.backbone!r} is no text encoder (it has no hidden size)")
        longest = getattr(backbone.config, "max_position_embeddings", None)
        if longest and params.max_length > longest:
            raise UserError(f"model.max_length: {params.max_length} exceeds the {longest} positions of {params.backbone!r}")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            encoder = GaussianEncoder(backbone, backbones.load_tokenizer(found), params)
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
        backbone = AutoModel.from_config(AutoConfig.from_pretrained(path / _BACKBONE, local_files_only=True))
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
        encoder = GaussianEncoder(backbone, tokenizer, ModelParams.model_validate_json(json.dumps(config["model"])))
        encoder.load_state_dict(load_file(path / _WEIGHTS))
        return encoder.eval()

    def save_pretrained(self, path: str | Path, **notes: Any) -> None:
        """Write config.json, model.safetensors, the tokenizer and SHA256SUMS into a new folder, whole or not at all.

        Args:
            notes: JSON values kept in config.json beside the parameters (how the model was made).
        """
        with write_directory(Path(path)) as folder:
            config = {"format": FORMAT, "model": self.params.model_dump(mode="json"), "dim": self.dim, **notes}
            (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
            self.backbone.config.save_pretrained(folder / _BACKBONE)  # type: ignore[union-attr, operator]
            self.tokenizer.save_pretrained(folder)
            save_file({k: v.contiguous() for k, v in self.state_dict().items()}, folder / _WEIGHTS)
            write_sums(folder)

    def forward(self, ids: Tensor, mask: Tensor) -> Gaussian:
        """(m, L) token ids and mask → Gaussian of (m, D)."""
        hidden = self.backbone(input_ids=ids, attention_mask=mask).last_hidden_state[:, 0]
        mean = self.mean_head(hidden)
        if self.params.mean_activation == "tanh":
            mean = torch.tanh(mean)
        spread = self.variance_head(hidden)
        if self.params.variance_head == "sigma":
            # σ may come out negative: σ² is what counts. The floor keeps the logarithm finite; bf16 has too few digits for it.
            spread = spread.to(torch.promote_types(spread.dtype, torch.float32))
            spread = torch.log(spread.square() + 1e-6)
        return Gaussian(mean, spread)

    @torch.inference_mode()
    def encode(self, sentences: Iterable[str], *, device: str | torch.device | None = None) -> Gaussian:
        """Encode sentences, sorted by length inside, returned in the order given.

        Args:
            sentences: m strings; longer ones are cut at `params.max_length` tokens.
            device: where to compute; default where the weights are.

        Returns:
            Gaussian of (m, D), float32, on the CPU.

        Raises:
            UserError: an item is not a string.
        """
        texts = list(sentences)
        for row, text in enumerate(texts):
            if not isinstance(text, str):
                raise UserError(f"sentence {row} is {type(text).__name__}, not text")
        if device is not None:
            self.to(device)
        target = next(self.parameters()).device
        was_training, _ = self.training, self.eval()
        out = torch.empty((2, len(texts), self.dim))
        if texts:
            encoded = self.tokenizer(texts, truncation=True, max_length=self.params.max_length)["input_ids"]
            lengths = np.array([len(ids) for ids in encoded])  # type: ignore[arg-type]
            for rows in token_budget_batches(lengths, np.argsort(lengths, kind="stable"), _ENCODE_TOKENS):
                batch = self.tokenizer.pad({"input_ids": [encoded[i] for i in rows]}, return_tensors="pt").to(target)  # type: ignore[index]
                gaussian = self(batch["input_ids"], batch["attention_mask"])
                index = torch.from_numpy(rows)
                out[0, index] = gaussian.mean.float().cpu()
                out[1, index] = gaussian.log_var.float().cpu()
        self.train(was_training)
        return Gaussian(out[0], out[1])
