"""`gausscse export MODEL OUT`: writes a model as a sentence-transformers model."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.cli.parser import Parser
from pipeline.utils.logs import log


def main(arguments: Sequence[str]) -> None:
    """Export the model that the command line names."""
    parser = Parser(prog="gausscse export", description="Write a model as a sentence-transformers model.")
    parser.add_argument("model", help="models:/NAME@ALIAS, models:/NAME/VERSION or a model's folder")
    parser.add_argument("out", help="a new folder")
    options = parser.parse_args(arguments)
    from transformers.utils import logging

    from pipeline.inference.export import export
    from pipeline.models.encoder import GaussianEncoder
    from pipeline.registry import encoder_folder

    # The progress bars of transformers last a second, and its warnings are about weights that the model does not have.
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    with encoder_folder(options.model) as folder:
        encoder = GaussianEncoder.from_pretrained(folder)
    export(encoder, options.out)
    log.info(f"{options.out}: {encoder.dim} dimensions; SentenceTransformer({options.out!r}) loads it")
