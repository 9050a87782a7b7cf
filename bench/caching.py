"""Gradient caching: how much time it costs to limit memory, for a global batch far larger than a micro-batch."""

from __future__ import annotations

from collections.abc import Callable

from bench.corpus import corpus
from bench.measure import Row, compared, in_turn, peak_mb, several, use_threads
from bench.training import Product


def run(quick: bool) -> list[Row]:
    """One row: a step of 512 triplets (1,536 sentences) in micro-batches of 64 sentences, against the plain step."""
    use_threads()
    batch_size, micro_batch, repeats = (16, 8, 1) if quick else (512, 64, 3)
    data = corpus()
    steps = {size: Product(data, "kl", batch_size=batch_size, micro_batch=size).step for size in (micro_batch, None)}
    seconds = in_turn({"cached": steps[micro_batch], "plain": steps[None]}, repeats)
    return [
        compared(
            f"gradient caching, batch {batch_size}, micro-batches of {micro_batch} sentences, against the plain step",
            "triplets/s",
            seconds.values(),
            [peak_mb("bench.caching:prepared", batch_size=batch_size, micro_batch=size) for size in steps],
            done=batch_size,
        )
    ]


def prepared(batch_size: int, micro_batch: int | None) -> Callable[[], None]:
    """A function that runs two steps, to measure memory."""
    use_threads()
    return several(Product(corpus(), "kl", batch_size=batch_size, micro_batch=micro_batch).step, 2)
