"""Growth of time and memory with batch size, dimensions, sentence length and corpus size; docs/growth.svg shows it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from bench.baselines import BF16
from bench.measure import ROOT, Row, alone, use_threads
from pipeline.config.load import load_params
from pipeline.models.encoder import GaussianEncoder
from pipeline.models.packing import TokenBlocks
from pipeline.training.step import BatchEncoder

PLOT = ROOT / "docs/growth.svg"
DIM, TOKENS = 384, 4096
SIZES = {"kl": (64, 128, 256, 512, 1024, 2048, 4096), "kl-dimwise": (64, 128, 256, 512, 1024)}
DIMS = {"kl": (96, 192, 384, 768, 1536), "kl-dimwise": (96, 192, 384, 768, 1536)}
LENGTHS = (8, 16, 32, 64, 128, 256, 512)

Points = list[tuple[float, float, float]]
"""(size, seconds, 10⁶ bytes)"""

# The panels of the plot: label of the x axis → pattern of the result rows that are its points, with curve and size.
PANELS = {
    f"triplets in the batch, D = {DIM}": rf"growth: (?P<curve>loss \S+), n = (?P<size>\d+), D = {DIM}$",
    "dimensions, n = 256": r"growth: (?P<curve>loss \S+), n = 256, D = (?P<size>\d+)$",
    "tokens a sentence, 4,096 in all": r"growth: (?P<curve>encoder), \d+ sentences of (?P<size>\d+) tokens",
    "sentence pairs": r"(?P<curve>prepare\+tokenize) (?P<size>\d+[kM]) generated$",
}


def run(quick: bool) -> list[Row]:
    """A row for each point: seconds of the second of two runs, and the memory needed on top of the input."""
    rows: list[Row] = []
    for kind in ("kl", "kl-dimwise"):
        shapes = [(n, DIM) for n in SIZES[kind]] + [(256, dim) for dim in DIMS[kind] if dim != DIM]
        for n, dim in shapes[:2] if quick else shapes:
            found = alone("bench.pairwise:loss", n=n, kind=kind, dim=dim)
            rows.append(_row(f"growth: loss {kind}, n = {n}, D = {dim}", found))
    tokens = 256 if quick else TOKENS
    for length in LENGTHS[:2] if quick else LENGTHS:
        found = alone("bench.growth:encoder", length=length, tokens=tokens)
        rows.append(_row(f"growth: encoder, {tokens // length} sentences of {length} tokens, forward and backward", found))
    return rows


def plot(rows: list[dict[str, Any]], file: Path = PLOT) -> None:
    """Draw the rows of bench/results.json that belong to a panel."""
    import matplotlib as mpl

    mpl.use("svg")
    # A fixed salt: the same figures then give the same bytes.
    mpl.rcParams["svg.hashsalt"] = "gausscse"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, len(PANELS), figsize=(15, 6.5), constrained_layout=True)
    for column, (panel, pattern) in enumerate(PANELS.items()):
        for name, points in _curves(rows, pattern).items():
            sizes, seconds, megabytes = zip(*sorted(points), strict=True)
            axes[0, column].plot(sizes, seconds, marker="o", label=name)
            axes[1, column].plot(sizes, megabytes, marker="o", label=name)
            axes[0, column].legend()
        for row, unit in enumerate(("seconds", "10⁶ bytes")):
            axes[row, column].set(xscale="log", yscale="log", xlabel=panel, ylabel=unit)
            axes[row, column].grid(visible=True, which="major", alpha=0.3)
    figure.savefig(file, metadata={"Date": None})


def _curves(rows: list[dict[str, Any]], pattern: str) -> dict[str, Points]:
    curves: dict[str, Points] = {}
    for row in rows:
        if found := re.match(pattern, row["name"]):
            size = float(found["size"].replace("k", "e3").replace("M", "e6"))
            curves.setdefault(found["curve"], []).append((size, row["ours"], row["peak_mb"]))
    return curves


def encoder(length: int, tokens: int) -> Callable[[], None]:
    """Forward and backward of the packaged encoder over `tokens` tokens, in sentences of equal length; bf16, dropout on."""
    use_threads()
    # The encoder has 512 positions; model.max_length only limits training.
    module = BatchEncoder(GaussianEncoder.from_backbone(load_params(ROOT / "params.yaml").model, 1), bf16=BF16)
    ids = torch.randint(1000, 20_000, (tokens,), generator=torch.Generator().manual_seed(1))
    batch = TokenBlocks(ids=ids, mask=None, shapes=((tokens // length, length),))

    def step() -> None:
        module(batch).sum().backward()
        module.zero_grad(set_to_none=True)

    return step


def _row(name: str, found: dict[str, Any]) -> Row:
    return Row(name=name, ours=found["seconds"], unit="s", peak_mb=found["grown_mb"])
