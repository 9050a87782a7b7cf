"""`gausscse export MODEL OUT`: writes a model for programs that do not have this package, or one with fewer dimensions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from pipeline.data.schema import RELATIONS
from pipeline.models.model_dir import CARD
from pipeline.utils.atomic_io import refuse_taken, write_directory, write_sums
from pipeline.utils.logs import log
from pipeline.utils.parser import MODEL, Parser, whole

if TYPE_CHECKING:
    from pipeline.models.encoder import GaussianEncoder
    from pipeline.models.model_dir import Engine


def main(arguments: Sequence[str]) -> None:
    """Export the model that the command line names."""
    parser = Parser(
        prog="gausscse export",
        description="Write a model for programs without this package (sentence-transformers, ONNX, OpenVINO), or a smaller one.",
    )
    parser.add_argument("model", help=MODEL)
    parser.add_argument("out", help="a new folder")
    known, usual = list(_FORMATS), "sentence-transformers"
    parser.add_argument("--format", choices=known, default=usual, help=f"default: {usual}")
    parser.add_argument("--dims", type=whole(1), help="keep the first DIMS dimensions of the Gaussians; default: all")
    options = parser.parse_args(arguments)
    from transformers.utils import logging

    from pipeline.models.encoder import GaussianEncoder
    from pipeline.registry.loading import encoder_folder

    # The progress bars of transformers last a second, and its warnings are about weights that the model does not have.
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    refuse_taken(Path(options.out))
    with encoder_folder(options.model) as folder:
        encoder = GaussianEncoder.from_pretrained(folder)
        card = (folder / CARD).read_text(encoding="utf-8") if (folder / CARD).is_file() else ""
    all_dimensions = encoder.dim
    if options.dims is not None:
        encoder.cut(options.dims)
        if encoder.calibration is None:
            log.warning(f"{options.out}: has no threshold, since that of all dimensions does not fit; give `entails` one")
    if encoder.writes and options.format != "gausscse":
        log.warning(f"{options.model}: its decoder is not exported; `encoder.decode` and `gausscse serve` have it")
    how = _FORMATS[options.format].format(out=options.out)
    with write_directory(Path(options.out)) as folder:
        _write(encoder, options.format, folder / "files")
        for file in (folder / "files").iterdir():
            file.rename(folder / file.name)
        (folder / "files").rmdir()
        lines = [f"# {Path(options.out).name}", f"Exported from {options.model} by `gausscse export`: {how}."]
        if encoder.dim < all_dimensions:
            lines.append(f"It has the first {encoder.dim} of {all_dimensions} dimensions; the figures below are of all.")
        if encoder.relation_head is not None:
            names = ", ".join(f"{k} {name}" for k, name in enumerate(RELATIONS))
            lines.append(f"The outputs of the relation head, in their order: {names}.")
        about = card.partition("\n---\n")[2].strip()
        if options.format != "gausscse" and about:
            lines.append("Below is the card of the exported model. `gausscse.load` takes that one, and not this folder.")
            about = about.replace('"this folder"', json.dumps(options.model))
        text = "\n\n".join([*lines, about])
        (folder / CARD).write_text(f"{text.rstrip()}\n", encoding="utf-8")
        write_sums(folder)
    log.info(f"{options.out}: {encoder.dim} dimensions; {how}")


def _write(encoder: GaussianEncoder, form: str, folder: Path) -> None:
    match form:
        case "gausscse":
            encoder.save_pretrained(folder)
        case "sentence-transformers":
            from pipeline.inference.export import export

            export(encoder, folder)
        case "onnx":
            from pipeline.inference.onnx_export import export_onnx

            export_onnx(encoder, folder)
        case _:
            from pipeline.inference.onnx_export import export_openvino

            export_openvino(encoder, folder, cast("Engine", form))


# Each format, and what loads it.
_FORMATS = {
    "sentence-transformers": "SentenceTransformer({out!r}) loads it",
    "onnx": "onnxruntime loads encoder.onnx",
    "openvino": "openvino loads encoder.xml",
    "openvino-int8": "openvino loads encoder.xml, which computes in int8",
    "gausscse": "gausscse.load({out!r}) loads it",
}
