"""Gradient caching: how much time it costs to limit memory, for a global batch far larger than a micro-batch."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from bench.corpus import corpus
from bench.measure import Row, in_turn, peak_mb, ratio, use_threads
from bench.training import Product


def run(quick: bool) -> list[Row]:
    """One row: a step of 512 triplets (1,536 sentences) in micro-batches of 64 sentences, against the plain step."""
    use_threads()
    batch_size, micro_batch, repeats = (16, 8, 1) if quick else (512, 64, 3)
    data = corpus()
    cached, plain = (
        Product(data, "kl", batch_size=batch_size, micro_batch=micro_batch),
        Product(data, "kl", batch_size=batch_size),
    )
    seconds = in_turn({"cached": cached.step, "plain": plain.step}, repeats)
    factor, spread = ratio(seconds["cached"], seconds["plain"])
    peaks = [peak_mb("bench.caching:prepared", batch_size=batch_size, micro_batch=size) for size in (micro_batch, None)]
    return [
        Row(
            name=f"gradient caching, batch {batch_size}, micro-batches of {micro_batch} sentences, against the plain step",
            ours=batch_size / statistics.median(seconds["cached"]),
            baseline=batch_size / statistics.median(seconds["plain"]),
            ratio=factor,
            unit="triplets/s",
            peak_mb=peaks[0],
            baseline_peak_mb=peaks[1],
            note=spread,
        )
    ]


def prepared(batch_size: int, micro_batch: int | None) -> Callable[[], None]:
    """A function that runs two steps, to measure memory."""
    use_threads()
    product = Product(corpus(), "kl", batch_size=batch_size, micro_batch=micro_batch)

    def two() -> None:
        product.step()
        product.step()

    return two
