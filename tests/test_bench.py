"""The benchmarks run, measure what they say, and keep each other's figures; no figure itself is tested."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bench import __main__ as cli
from bench.baselines import broadcast_loss
from bench.measure import Row, compared, in_turn, peak_mb
from pipeline.gaussian.distribution import Gaussian
from pipeline.objectives import contrastive_loss
from tests.conftest import ROOT


def row(name: str, ours: float = 1.0) -> Row:
    return Row(name=name, ours=ours, baseline=2.0, ratio=2.0, unit="s", peak_mb=10.0)


@pytest.mark.parametrize("kind", ["kl", "kl-dimwise"])
def test_the_baseline_computes_the_same_loss(kind: str) -> None:
    generator = torch.Generator().manual_seed(1)
    roles = [tuple(torch.randn(2, 7, 12, generator=generator, dtype=torch.float64)) for _ in range(3)]
    plain = broadcast_loss(roles, kind, 0.05)  # type: ignore[arg-type]
    ours = contrastive_loss(*(Gaussian(*role) for role in roles), "ent+con+rev", kind)  # type: ignore[arg-type, call-arg]
    torch.testing.assert_close(plain, ours)


def test_variants_take_turns_after_one_round_for_warming_up() -> None:
    calls: list[str] = []
    seconds = in_turn({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 3)
    assert "".join(calls) == "ab" * 4
    assert [len(times) for times in seconds.values()] == [3, 3]


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


def test_figures_of_other_benchmarks_are_kept_in_order(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    first = cli._merged(file, {"pairwise": [row("p")], "training": [row("t")]})
    assert [entry["name"] for entry in first] == ["t", "p"]
    file.write_text(json.dumps(first), encoding="utf-8")
    second = cli._merged(file, {"training": [row("t2"), row("t3")]})
    assert [entry["name"] for entry in second] == ["t2", "t3", "p"]
    assert {"name", "ours", "baseline", "ratio", "unit", "peak_mb"} <= second[0].keys()
    # Without a GPU nothing was measured, so the earlier figures stay.
    assert cli._merged(file, {"training": [], "pairwise": [row("p2")]})[0]["name"] == "t"


def test_a_benchmark_runs_alone_by_name(tmp_path: Path) -> None:
    out = tmp_path / "results.json"
    command = [sys.executable, "-m", "bench", "--quick", "--out", str(out), "pairwise"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=True)
    table = [line for line in done.stdout.splitlines() if line.startswith("| loss")]
    assert [line.split(",")[0] for line in table] == ["| loss kl", "| loss kl-dimwise", "| loss kl"]
    # Nothing is written by a quick run: its figures mean nothing.
    assert not out.exists()


def test_the_committed_results_are_of_every_benchmark() -> None:
    rows = json.loads((ROOT / "bench/results.json").read_text(encoding="utf-8"))
    # Those of `gpu` need a GPU.
    assert {entry["benchmark"] for entry in rows} | {"gpu"} == set(cli.BENCHMARKS)
    for entry in rows:
        assert "not measured" in entry["note"] if entry["ours"] is None else entry["ours"] > 0
        assert (entry["baseline"] is None) == (entry["ratio"] is None)
