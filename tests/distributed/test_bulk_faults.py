"""`gausscse encode` is killed, loses the processes that encode, or finds a damaged corpus."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.conftest import ROOT
from tests.distributed.bulk import WORDS, command, contents, make_project, run
from tests.gates import wait_for


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, tiny_backbone: Path) -> Path:
    return make_project(tmp_path_factory.mktemp("bulk"), tiny_backbone)


def start(project: Path, corpus: Path, out: Path) -> subprocess.Popen[str]:
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command(str(corpus), str(out)), cwd=project, env=environment, start_new_session=True, **pipes)


@pytest.mark.faults
def test_a_damaged_corpus_is_one_line_and_what_was_encoded_stays(project: Path, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for name in ("a.parquet", "b.parquet"):
        pq.write_table(pa.table({"text": [f"a dog {name} {number}" for number in range(3000)]}), corpus / name)
    data = bytearray((corpus / "b.parquet").read_bytes())
    # Past the magic number: the data, not the footer that is read first.
    data[4:2000] = b"x" * 1996
    (corpus / "b.parquet").write_bytes(data)
    done = run(project, str(corpus), str(tmp_path / "out"))
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {corpus}/b.parquet: cannot be read (")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out/part-000001.parquet").exists()
    assert not (tmp_path / "out/_manifest.json").exists()


@pytest.mark.faults
def test_a_killed_run_continues_with_the_missing_parts(project: Path, tmp_path: Path) -> None:
    """More rows in more parts: the process that encodes them is killed, then the run itself."""
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    r = np.random.default_rng(4)
    for number in range(8):
        texts = [" ".join(r.choice(WORDS, r.integers(1, 6))) for _ in range(12_000)]
        pq.write_table(pa.table({"text": texts}), corpus / f"{number}.parquet")
    done = run(project, str(corpus), str(tmp_path / "undisturbed"))
    assert done.returncode == 0, done.stderr

    def wait_for_parts(count: int) -> None:
        # `.ci/run` lets this wait for everything else on the machine.
        wait_for(lambda: len(list((tmp_path / "out").glob("_part-*.json"))) >= count, 400, f"{count} parts", 0.02)

    process = start(project, corpus, tmp_path / "out")
    wait_for_parts(1)
    encoding = [one for one in psutil.Process(process.pid).children(recursive=True) if "ray::Map(" in " ".join(one.cmdline())]
    assert encoding
    encoding[0].kill()
    wait_for_parts(3)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "out").glob("part-*.parquet")}
    assert 3 <= len(before) < 8
    process = start(project, corpus, tmp_path / "out")
    said, err = process.communicate(timeout=900)
    assert (process.returncode, err) == (0, "")
    assert "of 8 parts are already encoded" in said
    assert sum(file.stat().st_mtime_ns == then for file, then in before.items()) >= len(before) - 1
    assert contents(tmp_path / "out") == contents(tmp_path / "undisturbed")


@pytest.mark.faults
def test_a_part_whose_process_always_dies_is_given_up(project: Path, tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a dog on the cat"] * 16_000}), tmp_path / "corpus.parquet")
    process = start(project, tmp_path / "corpus.parquet", tmp_path / "out")
    killed: set[int] = set()

    def ends() -> bool:
        for one in psutil.Process(process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if len(killed) < 3 and one.pid not in killed and "ray::Map(" in " ".join(one.cmdline()):
                    one.kill()
                    killed.add(one.pid)
        return process.poll() is not None

    wait_for(ends, 400, "the part is given up")
    said, err = process.communicate()
    assert len(killed) == 3
    assert process.returncode == 2
    expected = (
        "error: corpus.parquet: rows 0 to 15999: every process that works on it dies (tried 3 times; out of memory?); "
        "what is finished is kept, the next run goes on with the rest\n"
    )
    assert err == expected, said
