"""How time and memory grow with batch size, dimensions and sentence length; docs/growth.svg shows it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from bench.corpus import corpus
from bench.measure import ROOT, Row, alone
from pipeline.blocks import TokenBlocks
from pipeline.encoder import GaussianEncoder
from pipeline.step import BatchEncoder

PLOT = ROOT / "docs/growth.svg"
THREADS, DIM, TOKENS = 2, 384, 4096
SIZES = {"kl": (64, 128, 256, 512, 1024, 2048, 4096), "kl-dimwise": (64, 128, 256, 512, 1024)}
DIMS = {"kl": (96, 192, 384, 768, 1536), "kl-dimwise": (96, 192, 384, 768, 1536)}
LENGTHS = (8, 16, 32, 64, 128, 256, 512)

Points = list[tuple[int, float, float]]
"""(size, seconds, 10⁶ bytes)"""


def run(quick: bool) -> list[Row]:
    """A row a point: seconds of the second of two runs, and the memory it needs on top of its input."""
    curves: dict[str, dict[str, Points]] = {
        "triplets in the batch, D = 384": {},
        "dimensions, n = 256": {},
        "tokens a sentence": {},
    }
    rows: list[Row] = []
    for kind in ("kl", "kl-dimwise"):
        for panel, sizes in (("triplets in the batch, D = 384", SIZES[kind]), ("dimensions, n = 256", DIMS[kind])):
            points: Points = []
            for size in sizes[:2] if quick else sizes:
                n, dim = (size, DIM) if panel.startswith("triplets") else (256, size)
                found = alone("bench.pairwise:loss", n=n, kind=kind, dim=dim)
                points.append((size, found["seconds"], found["grown_mb"]))
                rows.append(_row(f"growth: loss {kind}, n = {n}, D = {dim}", found))
            curves[panel][f"loss {kind}"] = points
    points = []
    for length in LENGTHS[:2] if quick else LENGTHS:
        found = alone("bench.growth:encoder", length=length, tokens=TOKENS)
        points.append((length, found["seconds"], found["grown_mb"]))
        rows.append(_row(f"growth: encoder, {TOKENS // length} sentences of {length} tokens, forward and backward", found))
    curves["tokens a sentence"][f"encoder, {TOKENS:,} tokens in all"] = points
    if not quick:
        _plot(curves)
    return rows


def encoder(length: int, tokens: int) -> Callable[[], None]:
    """Forward and backward of the packaged encoder over `tokens` tokens in sentences of one length; bf16, dropout on."""
    torch.set_num_threads(THREADS)
    # Positions up to 512; training cuts at model.max_length.
    module = BatchEncoder(GaussianEncoder.from_backbone(corpus().params.model, 1), bf16=True)
    ids = torch.randint(1000, 20_000, (tokens,), generator=torch.Generator().manual_seed(1))
    batch = TokenBlocks(ids=ids, mask=None, shapes=((tokens // length, length),))

    def step() -> None:
        module(batch).sum().backward()
        module.zero_grad(set_to_none=True)

    return step


def _row(name: str, found: dict[str, Any]) -> Row:
    return Row(name=name, ours=found["seconds"], baseline=None, ratio=None, unit="s", peak_mb=found["grown_mb"])


def _plot(curves: dict[str, dict[str, Points]]) -> None:
    import matplotlib as mpl

    mpl.use("svg")
    # The same figures give the same bytes.
    mpl.rcParams["svg.hashsalt"] = "gausscse"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 3, figsize=(12, 6.5), constrained_layout=True)
    for column, (panel, lines) in enumerate(curves.items()):
        for name, points in lines.items():
            sizes, seconds, megabytes = zip(*points, strict=True)
            axes[0, column].plot(sizes, seconds, marker="o", label=name)
            axes[1, column].plot(sizes, megabytes, marker="o", label=name)
        for row, unit in enumerate(("seconds", "10⁶ bytes")):
            axes[row, column].set(xscale="log", yscale="log", xlabel=panel, ylabel=unit)
            axes[row, column].grid(visible=True, which="major", alpha=0.3)
        axes[0, column].legend()
    figure.savefig(PLOT, metadata={"Date": None})
