"""Another process takes the memory while stages train, score and encode: they wait for it, and the results are the same."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.conftest import ROOT
from tests.distributed.bulk import make_project
from tests.gates import Gate, wait_for
from tests.stages.running import set_keys

pytestmark = pytest.mark.faults

SHORT = (
    r"node [\d.]+ ran out of memory \([\d.]+ of [\d.]+ GB in use; largest processes: .*python\S* -c import sys.* GB\)\); "
    r"[\d.]+ GB are free for Ray, [\d.]+ GB are needed"
)
# Holds more until so much of the machine's memory is in use, whatever others take and give back.
HOG = """import sys, time, psutil
held = []
while True:
    memory = psutil.virtual_memory()
    missing = int(sys.argv[1]) - (memory.total - memory.available)
    held.append(b"x" * max(0, missing))
    print("held", flush=True) if missing <= 0 else None
    time.sleep(0.2)
"""
IN_A_SESSION = """import ray, stages
from pathlib import Path
from pipeline.cluster.encoding import encode_stores
from pipeline.cluster.session import session
from pipeline.config.load import load_execution
from pipeline.utils.errors import run_stage
def main():
    with session(load_execution().cluster) as on:
        there = on.params.model_copy(update={"address": "auto"})
        %s
run_stage(main)
"""
# As stage evaluate does on a cluster, or with several GPUs.
SCORES = IN_A_SESSION % 'print("scored", len(encode_stores(Path("model"), [Path("data/tokens/dev")], there, lambda: on)[0]))'
FAILS = IN_A_SESSION % 'ray.get(ray.remote(lambda: int("three")).remote())'
ENCODES = ("-m", "pipeline.cli", "encode", "corpus", "out", "--model", "model", "--column", "text")


@contextmanager
def hog(limit: int) -> Iterator[None]:
    """While the block runs, half a gigabyte more than the limit is in use."""
    command = [sys.executable, "-c", HOG, str(limit + 2**29)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            yield
        finally:
            process.kill()


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> int:
    """A Ray that is started kills processes while more bytes are in use; the pipeline and what else runs now need less."""
    memory = psutil.virtual_memory()
    used = memory.total - memory.available
    # Others keep five gigabytes.
    if (limit := min(used + 2**33, memory.total - 5 * 2**30)) < used + 3 * 2**30:
        pytest.skip("other processes use the memory that this test needs")
    monkeypatch.setenv("RAY_memory_usage_threshold", f"{limit / memory.total:.5f}")
    return limit


def said(root: Path) -> str:
    return (root / "said").read_text(encoding="utf-8")


def start(root: Path, *command: str, gate: Gate | None = None) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **(gate.environment(str(ROOT)) if gate else {})}
    with (root / "said").open("wb") as out:
        return subprocess.Popen([sys.executable, *command], cwd=root, env=environment, stdout=out, stderr=out)


def wait_until_it_waits(root: Path, process: subprocess.Popen[bytes]) -> None:
    wait_for(lambda: "; waiting" in said(root) or process.poll() is not None, 100, "it waits")


def said_after_the_wait(root: Path, process: subprocess.Popen[bytes]) -> str:
    assert process.wait(300) == 0, said(root)
    _, *waits, after = re.split(rf"(warning: {SHORT}; waiting 120 s at most\n)", said(root))
    assert waits and "Traceback" not in said(root), said(root)
    return after


@pytest.fixture(scope="module", params=[1, pytest.param(2, marks=pytest.mark.weekly)], ids=["one-worker", "two-workers"])
def project(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tiny_backbone: Path) -> Path:
    """A model, a corpus and token stores; stage tune trains seed 1, stage train seed 2."""
    root = make_project(tmp_path_factory.mktemp("memory"), tiny_backbone)
    shutil.copy2(ROOT / "dvc.yaml", root)
    set_keys(root, {"data.generated": {"train": 1200, "dev": 240, "test": 240}, "train.seeds": [1, 2], "train.eval_every": 10})
    set_keys(root, {"tune.learning_rates": [1e-3], "tune.batch_sizes": [16], "tune.seeds": [1]})
    set_keys(root, {"cluster.workers": request.param}, "execution.yaml")
    for stage in ("prepare", "tokenize", "identity"):
        assert start(root, "-m", f"stages.{stage}").wait(300) == 0, said(root)
    return root


def test_a_search_that_gets_no_memory_ends_in_one_line(project: Path, limit: int) -> None:
    set_keys(project, {"cluster.placement_timeout_s": 3.0}, "execution.yaml")
    with hog(limit):
        assert start(project, "-m", "stages.tune").wait(200) == 2, said(project)
    set_keys(project, {"cluster.placement_timeout_s": 120.0}, "execution.yaml")
    kept = "what is finished is kept, the next run goes on with the rest"
    ending = rf"warning: {SHORT}; waiting 3 s at most\nerror: {SHORT}, also after 3 s; end other processes; {kept}\n\Z"
    assert re.search(ending, said(project)), said(project)


def test_tune_and_train_wait_for_memory_and_go_on(project: Path, limit: int, tmp_path: Path) -> None:
    for stage in ("tune", "train"):
        # Held where all steps are taken.
        gate = Gate(tmp_path / stage, r"/trials/\w+/\.trial\.json\.")
        gate.close()
        process = start(project, "-m", f"stages.{stage}", gate=gate)
        wait_for(lambda: gate.holds() or process.poll() is not None, 300, f"{stage} trains")  # noqa: B023
        begun = {log: log.read_bytes().splitlines()[0] for log in project.glob(".gausscse/trials/*/progress.log")}
        with hog(limit):
            wait_until_it_waits(project, process)
            gate.open()
        assert f"{stage}: " in said_after_the_wait(project, process)
        # It goes on from a checkpoint: the first report still has its time.
        assert begun == {log: log.read_bytes().splitlines()[0] for log in begun} != {}


@pytest.mark.parametrize(("command", "end"), [(ENCODES, "encode: 840 rows in 3 parts"), (("-c", SCORES), "scored ")])
def test_encoding_waits_for_memory(project: Path, limit: int, command: tuple[str, ...], end: str) -> None:
    with hog(limit):
        process = start(project, *command)
        wait_until_it_waits(project, process)
    assert end in said_after_the_wait(project, process)


def test_sigterm_ends_the_wait_for_memory(project: Path, limit: int) -> None:
    with hog(limit):
        process = start(project, "-c", SCORES)
        wait_until_it_waits(project, process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143
    assert said(project).endswith("error: interrupted; finished work is kept, run the same command again to go on\n")


def test_an_exception_of_ray_that_nothing_handles_is_one_line(project: Path) -> None:
    assert start(project, "-c", FAILS).wait(200) == 2
    kept = "what is finished is kept, the next run goes on with the rest"
    assert said(project).splitlines()[1:] == [f"error: Ray: ValueError: invalid literal for int() with base 10: 'three'; {kept}"]
