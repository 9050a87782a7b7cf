"""Engines: what computes an encoder's Gaussians outside training.

`torch` is the reference. OpenVINO computes the same float32 numbers on a CPU, up to rounding. `openvino-int8` computes others:
the layers of the backbone multiply integers. Their weights are rounded per channel when the model is read, and the activations in
each call, in groups of each token. So it needs no calibration, whose ranges would not fit texts of another kind. The heads
stay float32.
"""

from __future__ import annotations

import io
import logging
import warnings
from contextlib import redirect_stdout
from threading import Lock
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from pipeline.gaussian.distribution import Gaussian
from pipeline.gaussian.tokens import TokenVectors
from pipeline.models.graphs import EncoderGraph, Graph, RelationGraph
from pipeline.models.model_dir import Engine, check_engine
from pipeline.models.packing import TokenBlocks

# OpenVINO builds kernels for each shape that it meets. Padding to a multiple of this makes the shapes few.
_LENGTHS = 4
# Tokens of padding that cost as much time as a call.
_PADDING = 48
# Numbers of an activation that share a scale in int8: fewer are more exact, and slower.
_GROUP = 128


# OpenVINO's converters change warnings and standard output of the whole process meanwhile.
_converting = Lock()


def converted(graph: Graph, engine: Engine) -> Any:
    """A graph as a model of OpenVINO.

    Raises:
        UserError: OpenVINO is not installed.
    """
    check_engine(engine)
    import openvino

    shapes = [[-1 if axis in free else n for axis, n in enumerate(graph.inputs[name].shape)] for name, free in graph.axes.items()]
    example: Any = graph.inputs if isinstance(graph, EncoderGraph) else tuple(graph.inputs.values())
    with _converting, torch.inference_mode(), warnings.catch_warnings(action="ignore"):
        model = openvino.convert_model(graph.eval(), example_input=example, input=shapes)
    for names, ports in ((graph.inputs, model.inputs), (graph.outputs, model.outputs)):
        for name, port in zip(names, ports, strict=True):
            port.get_tensor().set_names({name})
    if engine != "openvino-int8" or isinstance(graph, RelationGraph):
        return model
    import nncf

    nncf.set_log_level(logging.ERROR)
    # Everything but the backbones stays as it is.
    heads = nncf.IgnoredScope(patterns=["^(?!.*backbone).*$"], validate=False)
    # Without its tables and progress bars.
    with _converting, redirect_stdout(io.StringIO()):
        model = nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_SYM, ignored_scope=heads)
    model.set_rt_info(_GROUP, ["runtime_options", "DYNAMIC_QUANTIZATION_GROUP_SIZE"])
    return model


class Compiled:
    """An encoder that OpenVINO computes on the CPU. One call at a time, on all threads; others wait."""

    def __init__(self, model: Any, longest: int, threads: int | None) -> None:
        """Args:
        model: `converted` of an `EncoderGraph`.
        longest: tokens of a sentence, at most.
        threads: by default as many as torch has.
        """
        options = {
            "INFERENCE_PRECISION_HINT": "f32",
            "INFERENCE_NUM_THREADS": threads or torch.get_num_threads(),
            "NUM_STREAMS": 1,
        }
        import openvino

        self._longest = longest
        self._request = openvino.Core().compile_model(model, "CPU", options).create_infer_request()
        self._free = Lock()

    @staticmethod
    def blocks(lengths: NDArray[np.integer]) -> int:
        """Blocks of sentences to compute one by one: a call costs about as much as the padding that it may save."""
        return 1 + int(lengths.max() * len(lengths) - lengths.sum()) // _PADDING

    def __call__(self, batch: TokenBlocks) -> Gaussian:
        """As `GaussianNetwork.forward` with the projection of the relation head."""
        with self._free:
            parts = [self._rectangle(*rectangle) for rectangle in batch.rectangles()]
        mean, log_var, *tokens = (torch.cat(part) for part in zip(*parts, strict=True))
        if not tokens:
            return Gaussian(mean, log_var)
        length = torch.cat([mask.sum(1) for _, mask in batch.rectangles()])
        return Gaussian(mean, log_var, tokens=TokenVectors(tokens[0], batch.first_tokens(), length))

    def _rectangle(self, ids: Tensor, mask: Tensor) -> list[Tensor]:
        """Mean, log-variance and a row of token vectors, padding included, of c sentences of L tokens."""
        longest = ids.shape[1]
        spare = (0, min(-longest % _LENGTHS, self._longest - longest))
        self._request.infer([F.pad(part, spare).numpy() for part in (ids, mask.long())])
        # Copies: the next call writes into the same memory.
        mean, log_var, *tokens = (torch.from_numpy(port.data.copy()) for port in self._request.output_tensors)
        return [mean, log_var, *(one[:, :longest].flatten(0, 1) for one in tokens)]
