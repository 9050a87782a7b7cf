"""`python -m bench [--quick] [NAME ...]`: run benchmarks, print a table, write bench/results.json."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import subprocess
import sys
import time
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench import growth
from bench.measure import QUICK, ROOT, Row
from pipeline.utils.atomic_io import write_json
from pipeline.utils.environment import set_defaults

RESULTS = ROOT / "bench/results.json"
BENCHMARKS = {
    "training": "training step against a plain loop and sentence-transformers",
    "caching": "gradient caching against the plain step: time and memory",
    "quickthoughts": "a step of QuickThoughts against a plain loop",
    "workers": "two workers against one",
    "checkpoints": "what a checkpoint costs the training thread at the size of BERT-base, to a folder and to S3",
    "pairwise": "the loss, forward and backward, against broadcasting",
    "evaluation": "development evaluation and encoding",
    "data": "prepare and tokenize by size",
    "search": "entailment search against all pairs: time, memory, recall",
    "relation": "pairs by the relation head against a cross-encoder of the same backbone",
    "trials": "what a trial costs besides its training: in its Tune process, and with a Ray Train run for each trial",
    "serving": "gausscse serve against mlflow models serve: requests/s, p50 and p99",
    "hostile": "what a client of gausscse serve notices of hostile ones: p99 and memory",
    "bulk": "a corpus encoded from Parquet to Parquet against sentence-transformers and pandas",
    "growth": "time and memory by batch size, dimensions and sentence length (with the sizes of data: docs/growth.svg)",
    "grid": "a grid by number of trials, all trained before: seconds, requests, memory",
    "registry": "the registry by number of versions: seconds, requests to MLflow, memory",
    "gpu": "a step of BERT-base on a GPU, and other ways to compute it: tokens/s, share of the peak, memory",
}


def main() -> None:
    """Run the named benchmarks, or all of them. Results of the other benchmarks are kept."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    listed = "; ".join(f"{name}: {what}" for name, what in BENCHMARKS.items())
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: all. {listed}")
    parser.add_argument(
        "--quick", action="store_true", help="small sizes and data with gaps, to see that it runs; no results are written"
    )
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    for name in options.names:
        if name not in BENCHMARKS:
            parser.error(f"no benchmark {name!r}; there are {', '.join(BENCHMARKS)}")
    if options.quick:
        os.environ[QUICK] = "1"
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    set_defaults()
    print(_environment(), flush=True)
    found: dict[str, list[Row]] = {}
    for name in options.names or BENCHMARKS:
        start = time.monotonic()
        print(f"{name}: {BENCHMARKS[name]}", file=sys.stderr, flush=True)
        found[name] = importlib.import_module(f"bench.{name}").run(options.quick)
        print(f"{name}: {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
        if not options.quick:
            # Written after each benchmark, so that an interrupted run keeps its results.
            merged = _merged(options.out, found)
            write_json(options.out, merged)
            if options.out == RESULTS and name in ("data", "growth"):
                growth.plot(merged)
    print(table([row for rows in found.values() for row in rows]))


def table(rows: list[Row]) -> str:
    """The rows as a Markdown table."""
    lines = [
        "| name | ours | baseline | unit | ratio | peak MB | baseline's | |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        cells = [row.name, _number(row.ours), _number(row.baseline), row.unit, _number(row.ratio)]
        cells += [_number(row.peak_mb), _number(row.baseline_peak_mb), row.note]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _merged(path: Path, found: dict[str, list[Row]]) -> list[dict[str, Any]]:
    """The new results, and the file's results of benchmarks that measured nothing now, in the order of `BENCHMARKS`."""
    rows = {name: [{"benchmark": name, **asdict(row)} for row in rows] for name, rows in found.items()}
    if path.is_file():
        for row in json.loads(path.read_text(encoding="utf-8")):
            if not found.get(row["benchmark"]):
                rows.setdefault(row["benchmark"], []).append(row)
    return [row for name in BENCHMARKS for row in rows.get(name, [])]


def _environment() -> str:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "sentence-transformers", "numpy"))
    return (
        f"commit {commit.stdout.strip() or 'unknown'}; Python {platform.python_version()}; {packages}; "
        f"{os.cpu_count()} cores, {_processor()}"
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor())


if __name__ == "__main__":
    main()
