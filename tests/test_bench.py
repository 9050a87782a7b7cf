"""The benchmarks run, measure what they say, and keep each other's figures; no figure itself is tested."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bench.baselines import broadcast_loss
from bench.measure import compared, peak_mb
from pipeline.gaussian.distribution import Gaussian
from tests.conftest import ROOT
from tests.objectives.loss import contrastive_loss


@pytest.mark.parametrize("kind", ["kl", "kl-dimwise"])
def test_the_baseline_computes_the_same_loss(kind: str) -> None:
    generator = torch.Generator().manual_seed(1)
    roles = [tuple(torch.randn(2, 7, 12, generator=generator, dtype=torch.float64)) for _ in range(3)]
    plain = broadcast_loss(roles, kind, 0.05)  # type: ignore[arg-type]
    ours = contrastive_loss(*(Gaussian(*role) for role in roles), "ent+con+rev", kind)  # type: ignore[arg-type, call-arg]
    torch.testing.assert_close(plain, ours)


def test_a_comparison_is_of_medians_and_its_ratio_of_rounds() -> None:
    seconds = ([1.0, 2.0, 1.0], [4.0, 4.0, 3.0])
    made = compared("a", "pairs/s", seconds, [5.0, 6.0], done=8, note="quiet")
    assert (made.ours, made.baseline, made.ratio, made.peak_mb, made.baseline_peak_mb) == (8.0, 2.0, 3.0, 5.0, 6.0)
    assert made.note == "quiet; ratio 2 to 4 over 3 rounds"
    assert compared("a", "s", seconds, [5.0]).ours == 1.0


def allocate(megabytes: int) -> object:
    """Prepared 50 MB, and what then needs `megabytes` for a moment."""
    held = b"x" * 50_000_000

    def work() -> None:
        assert len(b"y" * (megabytes * 1_000_000)) and held

    return work


def test_memory_is_that_of_the_work_and_not_of_its_preparation() -> None:
    assert peak_mb("tests.test_bench:allocate", megabytes=100) == pytest.approx(100, abs=15)


def test_a_benchmark_runs_alone_by_name(tmp_path: Path) -> None:
    out = tmp_path / "results.json"
    command = [sys.executable, "-m", "bench", "--quick", "--out", str(out), "pairwise"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=True)
    table = [line for line in done.stdout.splitlines() if line.startswith("| loss")]
    assert [line.split(",")[0] for line in table] == ["| loss kl", "| loss kl-dimwise", "| loss kl"]
    # Nothing is written by a quick run: its figures mean nothing.
    assert not out.exists()
