"""Export to a sentence-transformers model: the means are its embeddings, the variances a further output.

The command `gausscse export models:/gausscse@champion FOLDER` does this for a registered model or for a model's folder.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import nn

from pipeline.models.encoder import GaussianEncoder
from pipeline.utils.atomic_io import refuse_taken, write_directory
from pipeline.utils.errors import UserError


def export(encoder: GaussianEncoder, path: str | Path) -> None:
    """Write a transformer, pooling and a dense layer with the activation of the mean, all modules of sentence-transformers.

    The exported model loads without this package and without custom code. Its vectors are the means of `encoder.encode`. With
    `output_value=None` it also gives `log_var`, or `sigma` if `model.variance_head` is sigma; a model that compares by cosine has
    neither. If it has operations, their weights are there, too (`write_weights`).

    Args:
        path: a new folder, written completely or not at all.

    Raises:
        UserError: sentence-transformers is not installed, `path` exists, or the encoder has two backbones (`model.towers`).
    """
    path = Path(path).absolute()
    refuse_taken(path)
    if len(encoder.towers) > 1:
        raise UserError("the model has two backbones (model.towers: encoders), which sentence-transformers cannot concatenate")
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
        mean = Dense(hidden, encoder.dim, activation_function=activation)
        # Before the mean, which takes the place of the pooled state.
        variance = Dense(hidden, encoder.dim, activation_function=None, module_output_name=encoder.params.variance_head)
        with torch.no_grad():
            for dense, head in ((mean, encoder.mean_head), (variance, encoder.variance_head)):
                dense.linear.weight.copy_(head.weight)
                dense.linear.bias.copy_(head.bias)
        variances = [] if encoder.score_kind == "cosine" else [variance]
        model = SentenceTransformer(modules=[transformer, pooling, *variances, mean], device=str(device))
        with write_directory(path) as folder:
            model.save_pretrained(str(folder), create_model_card=False)
            encoder.write_weights(folder)
