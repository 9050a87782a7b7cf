"""Tables of scored pairs, as stage evaluate writes them."""

from __future__ import annotations

from typing import Any

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
