"""Tables of scored pairs, as stage evaluate writes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

VARIANCES = ("sim_hp", "sim_ph", "premise_log_var", "hypothesis_log_var")


def scored(**columns: list[Any]) -> pa.Table:
    """A scored table; columns not given are the same for every pair."""
    n = len(next(iter(columns.values())))
    usual = {
        "label": 0,
        "reverse_label": -1,
        "premise_tokens": 5,
        "hypothesis_tokens": 5,
        "score": 0.5,
        "sim_hp": 0.5,
        "sim_ph": 0.5,
        "premise_log_var": 0.0,
        "hypothesis_log_var": 0.0,
    }
    return pa.table({name: columns.get(name, [value] * n) for name, value in usual.items()})


def random_table(seed: int, n: int = 400) -> pa.Table:
    r = np.random.default_rng(seed)
    # Rounded, so that there are ties and values on the edges of bins.
    sim_hp, sim_ph = r.random(n).round(2), r.random(n).round(2)
    return pa.table(
        {
            "label": r.integers(-1, 3, n).astype(np.int8),
            "reverse_label": r.integers(-1, 3, n).astype(np.int8),
            "premise_tokens": r.integers(2, 30, n).astype(np.int32),
            "hypothesis_tokens": r.integers(2, 30, n).astype(np.int32),
            "score": sim_hp,
            "sim_hp": sim_hp,
            "sim_ph": sim_ph,
            "premise_log_var": r.normal(size=n).round(1),
            "hypothesis_log_var": r.normal(size=n).round(1),
        }
    )
