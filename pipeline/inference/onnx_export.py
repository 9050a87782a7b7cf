"""Export to ONNX or OpenVINO, for programs that have neither torch nor this package.

The command `gausscse export --format onnx MODEL FOLDER` does this for a registered model or for a model's folder; `--format
openvino` and `openvino-int8` write what the engines of these names compute (`pipeline.models.engines`).

Shapes: m sentences of L tokens with padding, n pairs, D dimensions.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from pipeline.data.schema import RELATIONS
from pipeline.models.encoder import GaussianEncoder
from pipeline.models.engines import converted
from pipeline.models.graphs import EncoderGraph, Graph, RelationGraph
from pipeline.models.model_dir import Engine
from pipeline.models.threshold import write_calibration
from pipeline.utils.atomic_io import refuse_taken, write_directory, write_json, write_sums
from pipeline.utils.errors import UserError

ENCODER, RELATION = "encoder.onnx", "relation.onnx"


def export_onnx(encoder: GaussianEncoder, path: str | Path) -> None:
    """Write encoder.onnx, relation.onnx if the model has a relation head, the weights of its operators if it has some (see
    `export`), the tokenizer, the threshold, and SHA-256 sums.

    encoder.onnx takes `input_ids` and `attention_mask`, int64 (m, L), and gives `mean` and `log_var`, float32 (m, D).
    If the model has a relation head, encoder.onnx also gives `tokens`, int8 (m, L, d). relation.onnx takes `premise_mean` and
    `premise_log_var`, (n, D), `premise_tokens`, (n, L, d), and `premise_mask`, (n, L), and the same of the hypothesis. It gives
    `probabilities`, (n, 4), of entailment, neutral, contradiction and reversed. m, L and n may be any numbers; L at most the
    `max_length` in onnx.json.

    Args:
        encoder: on the CPU, in evaluation mode.
        path: a new folder, written completely or not at all.

    Raises:
        UserError: a package is missing, or `path` exists.
    """
    _check_installed()
    _export(encoder, path, "onnx", "onnx", _write)


def export_openvino(encoder: GaussianEncoder, path: str | Path, engine: Engine = "openvino") -> None:
    """As `export_onnx`, but encoder.xml and relation.xml, each with a file .bin, which OpenVINO reads.

    Args:
        engine: what OpenVINO then computes (`pipeline.models.engines`).
    """

    def write(graph: Graph, file: Path) -> None:
        model = converted(graph, engine)
        import openvino

        openvino.save_model(model, file, compress_to_fp16=False)

    _export(encoder, path, "openvino", "xml", write)


def _export(encoder: GaussianEncoder, path: str | Path, kind: str, ending: str, write: Callable[[Graph, Path], None]) -> None:
    path = Path(path).absolute()
    refuse_taken(path)
    with write_directory(path) as folder, _quiet():
        write(EncoderGraph(encoder), folder / f"encoder.{ending}")
        if encoder.relation_head is not None:
            write(RelationGraph(encoder.relation_head, encoder.dim), folder / f"relation.{ending}")
        encoder.write_weights(folder)
        encoder.tokenizer.save_pretrained(folder)
        if encoder.calibration is not None:
            write_calibration(encoder.calibration, folder)
        about = {"format": f"gausscse-{kind}-1", "dim": encoder.dim, "max_length": encoder.longest, "score": encoder.score_kind}
        about |= {"pad_id": encoder.tokenizer.pad_token_id, "relations": RELATIONS}
        write_json(folder / f"{kind}.json", about)
        write_sums(folder)


def _check_installed() -> None:
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError:
        raise UserError("the export needs onnx, onnxruntime and onnxscript: pip install 'gausscse-pipeline[onnx]'") from None


def _write(graph: Graph, file: Path) -> None:
    """One ONNX file; weights over 2 GB are in a second file next to it."""
    shapes = tuple(graph.axes.values())
    program = torch.onnx.export(
        graph.eval(),
        tuple(graph.inputs.values()),
        input_names=list(graph.inputs),
        output_names=graph.outputs,
        # `forward` of the relation head has *parts, whose shapes are one tuple.
        dynamic_shapes=(shapes,) if isinstance(graph, RelationGraph) else shapes,
        dynamo=True,
        verbose=False,
    )
    assert program is not None
    program.save(file)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the converters' remarks on packages that they do not need, on names of axes and on traced conditions."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = logging.root.manager.disable
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(before)
