"""Export to ONNX, for programs that have neither torch nor this package.

The command `gausscse export --format onnx MODEL FOLDER` does this for a registered model or for a model's folder. With
`--int8 PAIRS` it also writes a quantised encoder, and measures how much PR-AUC the quantisation costs.

Shapes: m sentences of L tokens with padding, n pairs, D dimensions.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pipeline.config.data_params import FileSpec
from pipeline.data.cleaning import KEPT, has_label, own_reasons
from pipeline.data.readers import read_pairs
from pipeline.data.schema import ENTAILMENT
from pipeline.evaluation.metrics import pr_auc
from pipeline.gaussian.distribution import Gaussian
from pipeline.models.encoder import GaussianEncoder
from pipeline.models.model_dir import THRESHOLDS
from pipeline.models.network import pooled_rectangle
from pipeline.models.relation_head import Relation
from pipeline.models.threshold import to_text
from pipeline.utils.atomic_io import refuse_taken, write_directory, write_json, write_sums
from pipeline.utils.errors import UserError

FORMAT = "gausscse-onnx-1"
ENCODER, ENCODER_INT8, RELATION, ABOUT = "encoder.onnx", "encoder.int8.onnx", "relation.onnx", "onnx.json"
# Sentences in one run of the measurement.
_BATCH = 32


@dataclass(frozen=True, slots=True)
class Quantised:
    """The cost of quantising the encoder, measured on labelled pairs; in per cent."""

    pairs: int
    """Pairs with a label and two sentences."""
    pr_auc: float
    """PR-AUC of the scores from encoder.onnx."""
    pr_auc_int8: float
    """PR-AUC of the scores from encoder.int8.onnx."""


class _EncoderGraph(nn.Module):
    """Token ids and mask, both (m, L) → means and log-variances, each (m, D). By the backbone's own forward pass."""

    def __init__(self, encoder: GaussianEncoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        pooling = self.encoder.params.pooling
        hidden = [pooled_rectangle(tower, input_ids, attention_mask, pooling) for tower in self.encoder.towers]
        gaussian = self.encoder.gaussian_of(hidden)
        return gaussian.mean, gaussian.log_var


class _RelationGraph(nn.Module):
    """Two Gaussians, four tensors of (n, D) → probabilities of `RELATIONS`, (n, 4)."""

    def __init__(self, relation: Relation) -> None:
        super().__init__()
        self.head, self.relation = relation.head, relation

    def forward(self, *parts: Tensor) -> Tensor:
        return self.relation.probabilities(Gaussian(*parts[:2]), Gaussian(*parts[2:])).to(torch.float32)


def export_onnx(encoder: GaussianEncoder, path: str | Path, int8: str | None = None) -> Quantised | None:
    """Write encoder.onnx, relation.onnx if the model has a relation head, the weights of its operators if it has some (see
    `export`), the tokenizer, the threshold, and SHA-256 sums.

    encoder.onnx takes `input_ids` and `attention_mask`, int64 (m, L), and gives `mean` and `log_var`, float32 (m, D).
    relation.onnx takes `premise_mean`, `premise_log_var`, `hypothesis_mean` and `hypothesis_log_var`, (n, D), and gives
    `probabilities`, (n, 4), of entailment, neutral, contradiction and reversed. m, L and n may be any numbers; L at most the
    `max_length` in onnx.json.

    Args:
        encoder: on the CPU, in evaluation mode.
        path: a new folder, written completely or not at all.
        int8: a file of labelled pairs (docs/data.md). encoder.int8.onnx is then written, too: weights in int8, and activations
            quantised while it runs. What this costs on these pairs is in onnx.json.

    Returns:
        what the quantisation costs, if `int8` is given.

    Raises:
        UserError: a package is missing, `path` exists, or the pairs cannot be read or have one class only.
    """
    path = Path(path).absolute()
    refuse_taken(path)
    _check_installed()
    pairs = None if int8 is None else _pairs(int8)
    with write_directory(path) as folder, _quiet():
        ids = torch.tensor([[0, 1, 2], [2, 1, 0]])
        inputs = {"input_ids": ids, "attention_mask": torch.tensor([[1, 1, 1], [1, 1, 0]])}
        _write(_EncoderGraph(encoder), inputs, {0: "sentences", 1: "length"}, ["mean", "log_var"], folder / ENCODER)
        if encoder.relation_head is not None:
            write_relation(encoder.relation_head, folder / RELATION)
        encoder.write_weights(folder)
        encoder.tokenizer.save_pretrained(folder)
        if encoder.calibration is not None:
            (folder / THRESHOLDS).write_text(to_text(encoder.calibration), encoding="utf-8")
        quantised = None
        if pairs is not None:
            _quantise(folder)
            quantised = _measured(encoder, folder, *pairs)
        about = {"format": FORMAT, "dim": encoder.dim, "max_length": encoder.longest, "score": encoder.score_kind}
        about["pad_id"] = encoder.tokenizer.pad_token_id
        write_json(folder / ABOUT, about | ({"int8": asdict(quantised)} if quantised else {}))
        write_sums(folder)
    return quantised


def write_relation(relation: Relation, file: Path) -> None:
    """Write a relation head as relation.onnx (see `export_onnx`)."""
    names = [f"{sentence}_{part}" for sentence in ("premise", "hypothesis") for part in ("mean", "log_var")]
    gaussians = torch.randn(4, 2, relation.head.dim, generator=torch.Generator().manual_seed(0))
    _write(_RelationGraph(relation), dict(zip(names, gaussians, strict=True)), {0: "pairs"}, ["probabilities"], file)


def onnx_encode(file: Path, encoder: GaussianEncoder, sentences: Sequence[str]) -> Gaussian:
    """Gaussian of (m, D), in the order given, from encoder.onnx or encoder.int8.onnx of `encoder`."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    # As many threads as torch has, which is what the user set or the cores that this process may use.
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    order = sorted(range(len(sentences)), key=lambda row: len(sentences[row]))
    parts: list[Gaussian] = []
    for start in range(0, len(order), _BATCH):
        texts = [sentences[row] for row in order[start : start + _BATCH]]
        tokens: Any = encoder.tokenizer(texts, padding=True, truncation=True, max_length=encoder.longest, return_tensors="np")
        inputs = {name: tokens[name].astype(np.int64) for name in ("input_ids", "attention_mask")}
        parts.append(Gaussian(*(torch.from_numpy(part) for part in session.run(["mean", "log_var"], inputs))))
    return Gaussian.cat(parts)[torch.from_numpy(np.argsort(order))]


def _check_installed() -> None:
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError:
        raise UserError("the export needs onnx, onnxruntime and onnxscript: pip install 'gausscse-pipeline[onnx]'") from None


def _write(graph: nn.Module, inputs: dict[str, Tensor], axes: dict[int, str], outputs: Sequence[str], file: Path) -> None:
    """One ONNX file, whose inputs have the dynamic axes `axes`; weights over 2 GB are in a second file next to it."""
    program = torch.onnx.export(
        graph.eval(),
        tuple(inputs.values()),
        input_names=list(inputs),
        output_names=outputs,
        # `forward` of the relation head has *parts, whose shapes are one tuple.
        dynamic_shapes=((axes,) * len(inputs),) if isinstance(graph, _RelationGraph) else (axes,) * len(inputs),
        dynamo=True,
        verbose=False,
    )
    assert program is not None
    program.save(file)


def _quantise(folder: Path) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    # One scale for each output channel. Seven bits, because processors without VNNI add pairs of products in 16 bits, which
    # products of eight bits overflow.
    quantize_dynamic(folder / ENCODER, folder / ENCODER_INT8, per_channel=True, reduce_range=True, weight_type=QuantType.QInt8)


def _pairs(path: str) -> tuple[list[str], list[str], list[bool]]:
    """Premises, hypotheses, and whether each premise entails its hypothesis; pairs without a gold label or text are left out."""
    full = Path(path).absolute()
    premises: list[str] = []
    hypotheses: list[str] = []
    entailed: list[bool] = []
    for batch in read_pairs(full.parent, FileSpec(path=full.name)):
        rows = batch.filter(own_reasons(batch, "premise", "hypothesis", has_label(np.asarray(batch["label"]))) == KEPT)
        premises += rows["premise"].to_pylist()
        hypotheses += rows["hypothesis"].to_pylist()
        entailed += [label == ENTAILMENT for label in rows["label"].to_pylist()]
    if len(set(entailed)) < 2:
        raise UserError(f"{path}: PR-AUC needs pairs that are an entailment and pairs that are not; name another file")
    return premises, hypotheses, entailed


def _measured(
    encoder: GaussianEncoder, folder: Path, premises: Sequence[str], hypotheses: Sequence[str], entailed: Sequence[bool]
) -> Quantised:
    rows = {sentence: row for row, sentence in enumerate(dict.fromkeys([*premises, *hypotheses]))}
    p, h = (torch.tensor([rows[sentence] for sentence in side]) for side in (premises, hypotheses))
    areas: list[float] = []
    for name in (ENCODER, ENCODER_INT8):
        gaussians = onnx_encode(folder / name, encoder, list(rows))
        areas.append(100 * pr_auc(np.asarray(entailed), encoder.score(gaussians[p], gaussians[h]).double().numpy()))
    return Quantised(len(premises), *areas)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's remarks on packages that it does not need, and on names of axes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = logging.root.manager.disable
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(before)
