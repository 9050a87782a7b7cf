"""`gausscse export MODEL OUT`: writes a model for programs that do not have this package, or one with fewer dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipeline.utils.atomic_io import refuse_taken
from pipeline.utils.logs import log
from pipeline.utils.parser import MODEL, Parser, whole


def main(arguments: Sequence[str]) -> None:
    """Export the model that the command line names."""
    parser = Parser(
        prog="gausscse export",
        description="Write a model for programs that do not have this package (sentence-transformers, ONNX), or with fewer "
        "dimensions.",
    )
    parser.add_argument("model", help=MODEL)
    parser.add_argument("out", help="a new folder")
    parser.add_argument(
        "--format",
        choices=["sentence-transformers", "onnx", "gausscse"],
        default="sentence-transformers",
        help="default: sentence-transformers",
    )
    parser.add_argument("--dims", type=whole(1), help="keep the first DIMS dimensions of the Gaussians; default: all")
    options = parser.parse_args(arguments)
    from transformers.utils import logging

    from pipeline.models.encoder import GaussianEncoder
    from pipeline.registry.loading import encoder_folder

    # The progress bars of transformers last a second, and its warnings are about weights that the model does not have.
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    with encoder_folder(options.model) as folder:
        encoder = GaussianEncoder.from_pretrained(folder)
    if options.dims is not None:
        encoder.cut(options.dims)
        if encoder.calibration is None:
            log.warning(f"{options.out}: has no threshold, since that of all dimensions does not fit; give `entails` one")
    if options.format == "gausscse":
        refuse_taken(Path(options.out))
        encoder.save_pretrained(options.out)
        log.info(f"{options.out}: {encoder.dim} dimensions; GaussianEncoder.from_pretrained({options.out!r}) loads it")
        return
    if encoder.writes:
        log.warning(f"{options.model}: its decoder is not exported; `encoder.decode` and `gausscse serve` have it")
    if options.format == "onnx":
        from pipeline.inference.onnx_export import ENCODER, export_onnx

        export_onnx(encoder, options.out)
        log.info(f"{options.out}: {encoder.dim} dimensions; onnxruntime loads {ENCODER}")
        return
    from pipeline.inference.export import export

    export(encoder, options.out)
    log.info(f"{options.out}: {encoder.dim} dimensions; SentenceTransformer({options.out!r}) loads it")
