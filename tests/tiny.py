# pyright: reportUnknownMemberType=false
"""A tiny random backbone with a tokenizer of its own: a folder that AutoModel and AutoTokenizer load offline."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModel, BertTokenizer

SENTENCES = (
    "A man plays a guitar on the street.",
    "A person plays an instrument.",
    "Two dogs run across a green field.",
    "Nobody is outside.",
    "A woman is reading a red book in the park.",
    "A child sleeps.",
)
ROTARY: dict[str, dict[str, Any]] = {
    # Its second layer sees four tokens to either side: most sentences are longer.
    "modernbert": {"local_attention": 8, "global_attn_every_n_layers": 2},
    "eurobert": {},
    "gte": {},
    "nomic_bert": {},
    "jina_embeddings_v3": {},
}
"""What a tiny backbone with rotary positions has in its configuration, by `model_type`."""
for _keys in ROTARY.values():
    _keys |= {"bos_token_id": 2, "cls_token_id": 2, "eos_token_id": 3, "sep_token_id": 3}
MODERNBERT: dict[str, Any] = {"kind": "modernbert", **ROTARY["modernbert"]}
"""Arguments of `make_tiny_backbone`; without dropout, as all models of this kind are."""
DROPOUT: dict[str, Any] = {"embedding_dropout": 0.2, "mlp_dropout": 0.2, "attention_dropout": 0.2}
"""Arguments that add it."""
_POSITIONS = 64
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def make_tiny_backbone(
    folder: Path,
    sentences: Sequence[str] = SENTENCES,
    *,
    hidden: int = 32,
    layers: int = 2,
    seed: int = 0,
    kind: str = "bert",
    **more: Any,
) -> Path:
    """Write config.json, model.safetensors, tokenizer.json and tokenizer_config.json of a random BERT, or of another `kind`.

    The vocabulary is every letter, digit and punctuation mark, with its continuation, and the words of `sentences`, so
    that no plain ASCII text becomes unknown. The same arguments give the same bytes.

    Args:
        folder: made if missing.
        sentences: their lower-cased words become whole tokens.
        hidden: hidden size, a multiple of 4 (heads).
        layers: number of layers.
        seed: of the weights; the caller's random state is left alone.
        kind: its `model_type` in transformers.
        more: keys of its configuration.

    Returns:
        The folder, to be given as `model.backbone`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    characters = [chr(code) for code in range(33, 127) if not chr(code).isupper()]
    continued = [f"##{c}" for c in characters if c.isalnum()]
    spaced = "".join(c if c.isalnum() else " " for c in " ".join(sentences).lower())
    words = sorted({word for word in spaced.split() if len(word) > 1})
    tokens = (*_SPECIAL, *characters, *continued, *words)
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = BertTokenizer(vocabulary, do_lower_case=True, model_max_length=_POSITIONS)
    tokenizer.save_pretrained(folder)
    shape: dict[str, Any] = {
        "vocab_size": len(tokens),
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "intermediate_size": 2 * hidden,
        "max_position_embeddings": _POSITIONS,
        "pad_token_id": 0,
    }
    config = AutoConfig.for_model(kind, **shape, **more)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        AutoModel.from_config(config).save_pretrained(folder)
    return folder
