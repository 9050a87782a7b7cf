"""`gausscse encode` for different numbers of rows, against the usual script with sentence-transformers."""

# Lint and types are also checked without the extra `bench`.
# pyright: reportMissingImports=false

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from bench.corpus import corpus
from bench.data import Cost, cost, shell
from bench.measure import ROOT, Row, watched_mb
from pipeline.distributed.precision import has_bf16
from pipeline.models.encoder import GaussianEncoder

# Only two files, so that batches reach their largest number of rows at both sizes.
FILES = 2


def run(quick: bool) -> list[Row]:
    """Run both ways once at each of two sizes (one in a quick run), on a worker for each core."""
    sizes = (80,) if quick else (16_384, 65_536)
    data = corpus()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        GaussianEncoder.from_backbone(data.params.model, 1).save_pretrained(folder / "model")
        for file in ("params.yaml", "execution.yaml"):
            shutil.copy(ROOT / file, folder)
        rows: list[Row] = []
        for size in sizes:
            source = folder / f"corpus-{size}"
            source.mkdir()
            sentences = list(itertools.islice(itertools.cycle(itertools.chain.from_iterable(data.texts)), size))
            for part in range(FILES):
                pq.write_table(pa.table({"sentence": sentences[part::FILES]}), source / f"{part}.parquet")
            for bf16 in (False, True) if has_bf16(torch.device("cpu")) else (False,):
                ours, rate = _ours(folder, source, bf16)
                call = f"plain({str(source)!r}, {str(folder / f'plain-{size}.parquet')!r}, {bf16})"
                theirs = cost(["-c", f"from bench.bulk import plain; {call}"], folder)
                rows.append(
                    Row(
                        name=f"encode a corpus of {size} rows{' in bf16' * bf16} against sentence-transformers and pandas",
                        ours=size / ours.seconds,
                        baseline=size / theirs.seconds,
                        ratio=theirs.seconds / ours.seconds,
                        unit="rows/s",
                        peak_mb=ours.peak_mb,
                        baseline_peak_mb=theirs.peak_mb,
                        note=f"start to end, imports and Ray's start included; by its own line {rate:,.0f} rows/s; memory: the "
                        "largest process; a single run",
                    )
                )
        return rows


def plain(source: str, out: str, bf16: bool) -> None:
    """The usual script: all rows and all vectors in memory, one file at the end. It gives one vector per row and no variance.

    The sentences are encoded by a process on each core (sentence-transformers' `start_multi_process_pool`).
    """
    import pandas as pd
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    from bench.data import BACKBONE, MAX_LENGTH
    from pipeline.models.backbone import resolve

    transformer = Transformer(resolve(BACKBONE, None).location, max_seq_length=MAX_LENGTH)
    model = SentenceTransformer(modules=[transformer, Pooling(transformer.get_embedding_dimension(), pooling_mode="cls")])
    if bf16:
        model = model.bfloat16()
    rows = pd.read_parquet(source)
    pool = model.start_multi_process_pool(["cpu"] * (os.cpu_count() or 1))
    vectors = model.encode(rows["sentence"].tolist(), pool=pool, batch_size=64, show_progress_bar=False)
    model.stop_multi_process_pool(pool)
    rows.assign(vector=list(vectors)).to_parquet(out)


def _ours(folder: Path, source: Path, bf16: bool) -> tuple[Cost, float]:
    """The cost of the command (memory: its largest process), and the rate in its last progress line."""
    command = [sys.executable, "-m", "pipeline.cli", "encode", str(source), f"{source}-{bf16}", "--model", "model"]
    if bf16:
        command.append("--bf16")
    start = time.perf_counter()
    process = subprocess.Popen(command, cwd=folder, env=shell(), stdout=subprocess.PIPE, text=True)
    with watched_mb(process.pid, together=False) as peaks:
        said, _ = process.communicate()
        seconds = time.perf_counter() - start
    rates = re.findall(r"(\d+) rows/s", said)
    if process.returncode or not rates:
        raise RuntimeError(f"gausscse encode: {said}")
    return Cost(seconds=seconds, peak_mb=max(peaks)), float(rates[-1])
