"""Export to ONNX, for programs that have neither torch nor this package.

The command `gausscse export --format onnx MODEL FOLDER` does this for a registered model or for a model's folder.

Shapes: m sentences of L tokens with padding, n pairs, D dimensions.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from pipeline.data.schema import RELATIONS
from pipeline.gaussian.distribution import Gaussian
from pipeline.gaussian.tokens import SCALE
from pipeline.models.encoder import GaussianEncoder
from pipeline.models.network import hidden_states, pool
from pipeline.models.relation_head import Relation
from pipeline.models.threshold import write_calibration
from pipeline.utils.atomic_io import refuse_taken, write_directory, write_json, write_sums
from pipeline.utils.errors import UserError

FORMAT = "gausscse-onnx-1"
ENCODER, RELATION, ABOUT = "encoder.onnx", "relation.onnx", "onnx.json"


class _EncoderGraph(nn.Module):
    """Token ids and mask, both (m, L) → means and log-variances, each (m, D), and for a relation head (m, L, d) token vectors.

    By the backbone's own forward pass.
    """

    def __init__(self, encoder: GaussianEncoder) -> None:
        super().__init__()
        self.encoder = encoder

        self.projection = encoder.relation_head and encoder.relation_head.projection

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, ...]:
        pooling = self.encoder.params.pooling
        states = [hidden_states(tower, input_ids, attention_mask) for tower in self.encoder.towers]
        gaussian = self.encoder.gaussian_of([pool(one, attention_mask, pooling) for one in states])
        tokens = () if self.projection is None else (self.projection(states[0]),)
        return gaussian.mean, gaussian.log_var, *tokens


class _RelationGraph(nn.Module):
    """Two sentences → probabilities of `RELATIONS`, (n, 4). A sentence is a mean and a log-variance, (n, D), token vectors,
    (n, L, d), and a mask, (n, L)."""

    def __init__(self, relation: Relation) -> None:
        super().__init__()
        self.head, self.relation = relation.head, relation

    def forward(self, *parts: Tensor) -> Tensor:
        half = len(parts) // 2
        gaussians = Gaussian(*parts[:2]), Gaussian(*parts[half : half + 2])
        (p_tokens, p_mask), (h_tokens, h_mask) = parts[2:half], parts[half + 2 :]
        logits = self.head.logits(p_tokens / SCALE, p_mask.bool(), h_tokens / SCALE, h_mask.bool())
        return self.relation.of_logits(logits, *gaussians).to(torch.float32)


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
    path = Path(path).absolute()
    refuse_taken(path)
    _check_installed()
    with write_directory(path) as folder, _quiet():
        ids = torch.tensor([[0, 1, 2], [2, 1, 0]])
        inputs = {"input_ids": ids, "attention_mask": torch.tensor([[1, 1, 1], [1, 1, 0]])}
        graph, axes = _EncoderGraph(encoder), {name: {0: "sentences", 1: "length"} for name in inputs}
        _write(graph, inputs, axes, ["mean", "log_var", *(["tokens"] if graph.projection else [])], folder / ENCODER)
        if encoder.relation_head is not None:
            write_relation(encoder.relation_head, encoder.dim, folder / RELATION)
        encoder.write_weights(folder)
        encoder.tokenizer.save_pretrained(folder)
        if encoder.calibration is not None:
            write_calibration(encoder.calibration, folder)
        about = {"format": FORMAT, "dim": encoder.dim, "max_length": encoder.longest, "score": encoder.score_kind}
        about |= {"pad_id": encoder.tokenizer.pad_token_id, "relations": RELATIONS}
        write_json(folder / ABOUT, about)
        write_sums(folder)


def write_relation(relation: Relation, dim: int, file: Path) -> None:
    """Write a relation head for Gaussians of `dim` dimensions as relation.onnx (see `export_onnx`)."""
    generator = torch.Generator().manual_seed(0)
    inputs: dict[str, Tensor] = {}
    axes: dict[str, dict[int, str]] = {}
    for sentence in ("premise", "hypothesis"):
        own = {name: torch.randn(2, dim, generator=generator) for name in ("mean", "log_var")}
        own["tokens"] = torch.ones((2, 3, relation.projection.out_features), dtype=torch.int8)
        own["mask"] = torch.tensor([[1, 1, 1], [1, 1, 0]])
        inputs |= {f"{sentence}_{part}": numbers for part, numbers in own.items()}
        length = {1: f"{sentence}_length"}
        axes |= {f"{sentence}_{part}": {0: "pairs", **(length if part in ("tokens", "mask") else {})} for part in own}
    _write(_RelationGraph(relation), inputs, axes, ["probabilities"], file)


def _check_installed() -> None:
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError:
        raise UserError("the export needs onnx, onnxruntime and onnxscript: pip install 'gausscse-pipeline[onnx]'") from None


def _write(
    graph: nn.Module, inputs: dict[str, Tensor], axes: dict[str, dict[int, str]], outputs: Sequence[str], file: Path
) -> None:
    """One ONNX file, whose inputs have the dynamic axes `axes`; weights over 2 GB are in a second file next to it."""
    shapes = tuple(axes.values())
    program = torch.onnx.export(
        graph.eval(),
        tuple(inputs.values()),
        input_names=list(inputs),
        output_names=outputs,
        # `forward` of the relation head has *parts, whose shapes are one tuple.
        dynamic_shapes=(shapes,) if isinstance(graph, _RelationGraph) else shapes,
        dynamo=True,
        verbose=False,
    )
    assert program is not None
    program.save(file)


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
