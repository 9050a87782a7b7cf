"""The figures of a GPU (bench/gpu.py), here at quick size on whatever there is."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict

import pytest
import torch

from bench import gpu
from bench.measure import QUICK
from pipeline.training.pace import device_name


@pytest.mark.faults
def test_a_figure_that_cannot_be_measured_leaves_a_row_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def too_large(*_: object, n: int, **__: object) -> dict[str, object]:
        if n == gpu.QUICK.large:
            raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 52 GB")
        return {"ours": 1.0, "peak_mb": 1.0, "unit": "s", "note": "measured"}

    real = gpu._measurements

    def sooner(sizes: gpu.Sizes) -> Iterator[tuple[str, Callable[..., gpu.Fields]]]:
        # These two take longest; `make bench QUICK=1` runs them all.
        return (entry for entry in real(sizes) if not entry[0].endswith(("compiled layers", "computes")))

    monkeypatch.setenv(QUICK, "1")
    monkeypatch.setattr(gpu, "_measurements", sooner)
    monkeypatch.setattr(gpu, "_loss", too_large)
    rows = gpu.run(True)
    assert [json.loads(line.split(": ", 2)[2]) for line in capsys.readouterr().err.splitlines() if line.startswith("gpu:")] == [
        asdict(entry) for entry in rows
    ]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    assert all(entry.note.startswith(f"{device_name(torch.device(device))}; ") for entry in rows)
    failed = [entry for entry in rows if entry.ours is None]
    assert [entry.name.split(", ")[1] for entry in failed if "OutOfMemoryError" in entry.note] == ["loss kl"] * 2
    assert failed[-1].note.endswith("not measured: OutOfMemoryError: CUDA out of memory. Tried to allocate 52 GB")
    # varlen_attn needs a GPU.
    assert [entry.name for entry in failed if "OutOfMemoryError" not in entry.note] == [
        "tiny BERT, 8 triplets, attention without dropout, against varlen_attn"
    ] * (device == "cpu")
    for entry in rows:
        assert entry.ours is None or (entry.ours > 0 and entry.peak_mb)
        assert (" against " in entry.name and "loss" not in entry.name and entry.ours is not None) == (entry.ratio is not None)
