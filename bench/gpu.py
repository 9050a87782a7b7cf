"""A training step of BERT-base on a GPU: tokens per second, share of the peak, memory, and other ways to compute it.

Weights and tokens are random, with the lengths of SNLI and MultiNLI sentences, so no data and no weights are needed. A quick
run takes the same paths with a tiny model; it also runs on a CPU, where its figures mean nothing.
"""

from __future__ import annotations

import gc
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile
from transformers import BertConfig, BertModel, BertTokenizer

from bench import pairwise
from bench.measure import ROOT, Row, in_turn, ratio, use_threads
from bench.ways import FLOAT32, NESTED, VARLEN, Pairwise, Way, compiled, kl_in
from pipeline.config.load import load_params
from pipeline.data.token_store import Shard, TokenStore
from pipeline.distributed.precision import has_bf16
from pipeline.families.pairs.contrastive import make_objective
from pipeline.families.pairs.triplets import triplet_batch
from pipeline.gaussian import distribution
from pipeline.gaussian.pairwise import pairwise_kl
from pipeline.models.encoder import GaussianEncoder
from pipeline.training.pace import device_name, peak_memory, peak_tflops, weights_of
from pipeline.training.step import HEADS, BatchEncoder, DeviceBatch, accumulate_gradients, optimizer_for

# Quantiles of the tokens of premises and of hypotheses, in 12,000 pairs of SNLI and MultiNLI, cut at 64.
QUANTILES = (0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1)
PREMISE = (3, 10, 12, 14, 16, 18, 20, 24, 29, 38, 48, 64, 64)
HYPOTHESIS = (3, 7, 9, 10, 10, 11, 12, 14, 16, 18, 21, 28, 64)

Fields = dict[str, Any]
"""Some fields of a `Row`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes of a measurement: triplets in a batch and in a round (at least one batch), sentences in a micro-batch.

    `gaps`: every third triplet has no contradiction. `config`: what differs from BERT-base.
    """

    small: int = 512
    large: int = 4096
    micro_batch: int = 1536
    round: int = 2048
    rounds: int = 5
    gaps: bool = False
    config: Fields


QUICK = Sizes(
    small=8,
    large=16,
    micro_batch=12,
    round=8,
    rounds=1,
    gaps=True,
    config={"vocab_size": 2000, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64},
)


class Steps:
    """Optimizer steps over the same few batches of random triplets.

    Attributes:
        number: of batches.
        tokens: in all batches together, without padding.
    """

    def __init__(self, device: torch.device, sizes: Sizes, batch: int, micro_batch: int | None, *, dropout: bool) -> None:
        params = load_params(ROOT / "params.yaml")
        self.device, self.train = device, params.train.model_copy(update={"micro_batch": micro_batch})
        config = BertConfig(**(sizes.config if dropout else {**sizes.config, "attention_probs_dropout_prob": 0.0}))
        torch.manual_seed(1)
        with device:
            # The tokenizer is not used.
            backbone = BertModel(config, add_pooling_layer=False)
            self.encoder = GaussianEncoder(backbone, BertTokenizer(), params.model).train()
        self.module = BatchEncoder(self.encoder, bf16=has_bf16(device))
        self.optimizer = optimizer_for(self.encoder, self.train, 1e-5, HEADS)
        self.number = max(1, sizes.round // batch)
        self.store, triplets = random_triplets(batch * self.number, config.vocab_size, gaps=sizes.gaps)
        objective = make_objective("ent+con+rev", "kl", 0.05)
        self.batches = [triplet_batch(objective, part, "keep") for part in np.split(triplets, self.number)]
        used = triplets[triplets >= 0]
        self.tokens = int(self.store.lengths_of(used).sum())

    def __call__(self, way: Way) -> None:
        """All steps, and wait for the device.

        Raises:
            ArithmeticError: the last loss is not finite.
        """
        train = self.train if way.blocks is None else self.train.model_copy(update={"length_groups": way.blocks})
        loss = torch.zeros(())
        with ExitStack() as stack:
            for module, name, function in way.functions:
                stack.enter_context(patch.object(module, name, function))
            for batch in self.batches:
                given = DeviceBatch.of(self.store, batch, train, self.device)
                loss = accumulate_gradients(self.module, given, train, scale=1 / batch.n)
                self.optimizer.step()
                self.optimizer.zero_grad(set_to_none=True)
            if not math.isfinite(loss.item()):
                raise ArithmeticError(f"the loss is {loss.item()}")


def random_triplets(n: int, words: int, *, gaps: bool) -> tuple[TokenStore, np.ndarray[Any, np.dtype[np.int32]]]:
    """A store of 3·n sentences and (n, 4) triplets of them; with `gaps`, every third has no contradiction."""
    random = np.random.default_rng(1)
    roles = (PREMISE, HYPOTHESIS, HYPOTHESIS)
    lengths = np.concatenate([np.interp(random.random(n), QUANTILES, role) for role in roles]).round().astype(np.int32)
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    shard = Shard(ids=random.integers(1, words, offsets[-1], dtype=np.int32), offsets=offsets, length=lengths)
    triplets = np.stack((*np.arange(3 * n, dtype=np.int32).reshape(3, n), np.full(n, -1, np.int32)), 1)
    if gaps:
        triplets[::3, 2] = -1
    return TokenStore((shard,), 3 * n, pad_id=0, directory=Path()), triplets


def run(quick: bool) -> list[Row]:
    """A row for each figure, printed as soon as it is measured. What fails leaves a row that says why."""
    use_threads()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu" and not quick:
        print("gpu: torch finds no GPU, so nothing is measured; with QUICK=1 it runs on the CPU", file=sys.stderr, flush=True)
        return []
    model, sizes = ("tiny BERT", QUICK) if quick else ("BERT-base", Sizes(config={}))
    return [_row(f"{model}, {name}", device, partial(measure, device, sizes)) for name, measure in _measurements(sizes)]


def _measurements(sizes: Sizes) -> Iterator[tuple[str, Callable[..., Fields]]]:
    """Name and function (of device and sizes) of each measurement. Those that take longest, or may fail worst, come last."""
    small, large, micro = f"{sizes.small} triplets", f"{sizes.large} triplets", sizes.micro_batch
    at_once = partial(_step, batch=sizes.small)
    cached = partial(_step, batch=sizes.large, micro_batch=micro)
    in_parts = f"{large} in micro-batches of {micro} sentences"
    yield small, at_once
    yield in_parts, cached
    yield f"{small} against 4 blocks", partial(at_once, other=Way(blocks=4))
    yield f"{small} against 1 block", partial(at_once, other=Way(blocks=1))
    yield f"{small} against variable-length attention", partial(at_once, other=NESTED)
    yield f"{small}, attention without dropout, against varlen_attn", partial(at_once, other=VARLEN, dropout=False)
    yield f"{in_parts}, against variable-length attention", partial(cached, other=NESTED)
    yield f"{in_parts}, against kl in float32", partial(cached, other=FLOAT32)
    for n in (sizes.small, sizes.large):
        for dtype in (torch.float32, torch.float64):
            name = f"loss kl, n = {n}, D = {pairwise.DIM}, against plain products in {str(dtype)[6:]}"
            yield name, partial(_loss, n=n, dtype=dtype)
    yield f"{small}: how long the device computes", partial(_busy, batch=sizes.small)
    yield f"{small} against compiled layers", lambda device, sizes: at_once(device, sizes, other=compiled(device))
    yield f"{large} at once", partial(_step, batch=sizes.large)


def _row(name: str, device: torch.device, measure: Callable[[], Fields]) -> Row:
    start = time.monotonic()
    fields: Fields = {"ours": None, "peak_mb": None, "unit": ""}
    try:
        fields |= measure()
    except Exception as error:
        # Whatever it is, the other rows are still wanted.
        fields["note"] = f"not measured: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
    fields["note"] = f"{device_name(device)}; {fields['note']}"
    row = Row(name=name, **fields)
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    print(f"gpu: {time.monotonic() - start:.0f} s: {json.dumps(asdict(row), ensure_ascii=False)}", file=sys.stderr, flush=True)
    return row


def _step(
    device: torch.device,
    sizes: Sizes,
    *,
    batch: int,
    micro_batch: int | None = None,
    other: Way | None = None,
    dropout: bool = True,
) -> Fields:
    """Tokens per second of the product's step, its share of the peak, and another way to compute it, in turn."""
    steps = Steps(device, sizes, batch, micro_batch, dropout=dropout)
    variants: dict[str, Callable[[], None]] = {"ours": partial(steps, Way())}
    if other is not None:
        variants["other"] = partial(steps, other)
    seconds, fields = _in_turn(device, sizes.rounds, variants)
    bf16 = has_bf16(device)
    tflops = 6 * weights_of(steps.encoder.backbone) * steps.tokens / seconds["ours"] / 1e12
    peak = peak_tflops(device_name(device), bf16=bf16)
    note = [
        "bf16" if bf16 else "float32",
        "no peak known" if peak is None else f"MFU {100 * tflops / peak:.1f} %",
        f"{batch * steps.number / seconds['ours']:,.0f} triplets/s",
        *(f"{name} {1000 * value / steps.number:.1f} ms a step" for name, value in seconds.items()),
        fields["note"],
    ]
    speed = {key: steps.tokens / fields[key] for key in ("ours", "baseline") if fields.get(key)}
    return {**fields, **speed, "unit": "tokens/s", "note": "; ".join(note)}


def _busy(device: torch.device, sizes: Sizes, *, batch: int) -> Fields:
    """Percent of the product's step in which the device computes, and with what. Otherwise it waits for the host."""
    steps = Steps(device, sizes, batch, None, dropout=True)
    seconds, fields = _in_turn(device, sizes.rounds, {"ours": partial(steps, Way())})
    cuda = device.type == "cuda"
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]) as profiled:
        steps(Way())
    # The events of the host have the time of the kernels that they started.
    events = [event for event in profiled.key_averages() if event.device_type.name == "CPU"]
    spent = {event.key: (event.self_device_time_total if cuda else event.self_cpu_time_total) / 1e6 for event in events}
    whole = sum(spent.values())
    longest = sorted(spent.items(), key=lambda item: -item[1])[:8]
    shares = ", ".join(f"{operator.removeprefix('aten::')} {100 * value / whole:.0f} %" for operator, value in longest)
    return {**fields, "ours": 100 * whole / seconds["ours"], "unit": "% of a step", "note": f"of that {shares}"}


def _loss(device: torch.device, sizes: Sizes, *, n: int, dtype: torch.dtype) -> Fields:
    """Seconds of the loss of n triplets, forward and backward, against `kl_in`, and the largest error of the latter."""
    once = pairwise.loss(n, "kl", device=device)

    def work(function: Pairwise) -> None:
        with patch.object(distribution, "pairwise_kl", function):
            once()
        if device.type == "cuda":
            torch.cuda.synchronize()

    _, fields = _in_turn(device, sizes.rounds, {"ours": partial(work, pairwise_kl), "other": partial(work, kl_in(dtype))})
    # Of a set with itself, so that some pairs are equal: their terms cancel completely.
    mean, log_var = torch.randn((2, n, pairwise.DIM), device=device) * torch.tensor((0.5, 0.3), device=device)[:, None, None]
    pair = (mean, log_var, mean, log_var)
    error = float((kl_in(dtype)(*pair) - pairwise_kl(*pair)).abs().max())
    return {**fields, "unit": "s", "note": f"{fields['note']}; largest error of the other's similarities {error:.1g}"}


def _in_turn(device: torch.device, rounds: int, variants: dict[str, Callable[[], None]]) -> tuple[dict[str, float], Fields]:
    """Median seconds of each of one or two variants, and the row's fields of them.

    A peak is that of tensors on the GPU in a variant's second round; on a CPU, that of the process.
    """
    first: dict[str, float] = {}
    peaks: list[float] = []
    for name, variant in variants.items():
        start = time.perf_counter()
        variant()
        first[name] = time.perf_counter() - start
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        variant()
        peaks.append(peak_memory(device) / 1e6)
    seconds = in_turn(variants, rounds)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    fields: Fields = {"ours": medians["ours"], "peak_mb": peaks[0]}
    notes = [f"first round {first['ours']:.1f} s"]
    if "other" in variants:
        factor, spread = ratio(seconds["ours"], seconds["other"])
        fields |= {"baseline": medians["other"], "ratio": factor, "baseline_peak_mb": peaks[1]}
        notes = [spread, *notes, f"the other's {first['other']:.1f} s"]
    return medians, {**fields, "note": "; ".join(notes)}
