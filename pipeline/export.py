"""A sentence-transformers model with the same means, for programs that know nothing of variances.

`python -m pipeline.export models:/gausscse@champion FOLDER` writes one, of a registered model or of a model's folder.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import nn

from pipeline.encoder import GaussianEncoder
from pipeline.errors import UserError, run_stage
from pipeline.files import refuse_taken, write_directory


def export(encoder: GaussianEncoder, path: str | Path) -> None:
    """Write Transformer, pooling and a dense layer with the mean's activation, all sentence-transformers' own modules.

    It loads without this package and without anybody's code. Its vectors are the means that `encoder.encode` gives; it has no
    variances, and so no direction.

    Args:
        path: a new folder, written whole or not at all.

    Raises:
        UserError: sentence-transformers is not installed, or there is something at `path`.
    """
    path = Path(path).absolute()
    refuse_taken(path)
    try:
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.base.modules import Dense, Transformer
        from sentence_transformers.sentence_transformer.modules import Pooling
    except ImportError:
        raise UserError("the export needs sentence-transformers: pip install 'gausscse-pipeline[export]'") from None
    device = encoder.mean_head.weight.device
    with TemporaryDirectory(prefix="gausscse-") as temporary:
        encoder.backbone.save_pretrained(temporary)  # type: ignore[union-attr, operator]
        encoder.tokenizer.save_pretrained(temporary)
        transformer = Transformer(temporary, max_seq_length=encoder.params.max_length)
        hidden = encoder.mean_head.in_features
        pooling = Pooling(hidden, pooling_mode="cls" if encoder.params.pooling == "first" else "mean")
        activation = nn.Tanh() if encoder.params.mean_activation == "tanh" else nn.Identity()
        dense = Dense(hidden, encoder.dim, activation_function=activation)
        with torch.no_grad():
            dense.linear.weight.copy_(encoder.mean_head.weight)
            dense.linear.bias.copy_(encoder.mean_head.bias)
        model = SentenceTransformer(modules=[transformer, pooling, dense], device=str(device))
        with write_directory(path) as folder:
            model.save_pretrained(str(folder), create_model_card=False)


def main() -> None:
    """Export the model that the command line names."""
    if len(sys.argv) != 3:
        raise UserError("usage: python -m pipeline.export models:/NAME@ALIAS|FOLDER OUT")
    source, out = sys.argv[1:]
    # Of weights that a model has not, bars of a second, and the like.
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    from pipeline.registry import encoder_folder

    with encoder_folder(source) as folder:
        encoder = GaussianEncoder.from_pretrained(folder)
    export(encoder, out)
    print(f"{out}: {encoder.dim} dimensions; SentenceTransformer({out!r}) loads it")


if __name__ == "__main__":
    run_stage(main)
