"""A grid whose storage is on an S3 server that fails at seeded points of it: for a while, for longer than any retry, for good.

By default the outages last 3 to 12 seconds; with GAUSSCSE_OUTAGES=60 they last 20 to 60.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.load import load_execution
from pipeline.storage.object_store import Storage
from pipeline.trials.trial import FAILURE, OUTCOME
from pipeline.utils.atomic_io import read_json, write_json
from tests.conftest import ROOT
from tests.distributed.test_trials import make_trial
from tests.faulty_s3 import faulty
from tests.gates import wait_for
from tests.store import random_stores

pytestmark = [pytest.mark.faults, pytest.mark.weekly]

LONGEST = float(os.environ.get("GAUSSCSE_OUTAGES", "0"))
KINDS = ("503", "hang", "500", "slow")


class Grid:
    """Trials with one place for a worker, each in its own storage."""

    def __init__(self, folder: Path, backbone: Path) -> None:
        self.folder = folder
        self.stores = random_stores(folder / "stores", sentences=400, triplets=400)
        self.trials = [make_trial(backbone, self.stores, rate) for rate in (1e-3, 3e-3)]
        self.errors = ""

    @contextmanager
    def run(self, name: str, storage: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
        """The stage in a process; its result is in the file of that name."""
        execution = load_execution(ROOT / "execution.yaml").model_dump(mode="json")
        execution["cluster"] |= {"workers": 1, "cpus_per_worker": 1.0, "max_failures": 2, "storage": storage}
        (train, dev), spec = self.stores, self.folder / f"{name}.spec.json"
        write_json(
            spec,
            {
                "execution": execution,
                "trials": [trial.model_dump(mode="json") for trial in self.trials],
                "places": {"train_tokens": str(train), "dev_tokens": str(dev)},
                "mlflow": str(self.folder / "mlflow" / name),
            },
        )
        (self.folder / "mlflow" / name).mkdir(parents=True, exist_ok=True)
        log = self.folder / f"{name}.log"
        command = [sys.executable, str(ROOT / "tests/distributed/grid_driver.py"), str(spec), str(self.result(name))]
        env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment}
        with log.open("wb") as out, subprocess.Popen(command, cwd=self.folder, env=env, stdout=out, stderr=out) as process:
            try:
                yield process
                process.wait(400)
            finally:
                process.kill()
                self.errors = log.read_text(encoding="utf-8", errors="replace")

    def result(self, name: str) -> Path:
        return self.folder / f"{name}.json"


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory, tiny_backbone: Path) -> Grid:
    return Grid(tmp_path_factory.mktemp("outages"), tiny_backbone)


@pytest.fixture(scope="module")
def undisturbed(grid: Grid) -> Path:
    storage = grid.folder / "storage"
    with grid.run("undisturbed", str(storage)) as process:
        pass
    assert process.returncode == 0, grid.errors[-3000:]
    return storage


def assert_same(grid: Grid, name: str, storage: Storage, undisturbed: Path) -> None:
    assert read_json(grid.result(name)) == read_json(grid.result("undisturbed"))
    for trial in grid.trials:
        told: Any = storage.read(f"trials/{trial.digest}/{OUTCOME}")
        model = storage.read(f"trials/{trial.digest}/best-{json.loads(told)['outcome']['weights']}.ref")
        storage.get(str(model), grid.folder / name / trial.digest)
        here = undisturbed / "trials" / trial.digest
        (grid.folder / name / f"{trial.digest}.json").write_text(told, encoding="utf-8")
        assert read_json(grid.folder / name / f"{trial.digest}.json")["outcome"] == read_json(here / OUTCOME)["outcome"]
        weights = [folder / "model.safetensors" for folder in (grid.folder / name / trial.digest, here / "best")]
        assert weights[0].read_bytes() == weights[1].read_bytes()


def test_a_server_that_fails_at_seeded_points_of_a_grid_changes_no_figure(grid: Grid, undisturbed: Path, s3: str) -> None:
    r = random.Random(20)
    # The requests of the run at which the server begins to fail, and for how long.
    points = [(kind, r.randrange(30, 90), r.uniform(20, LONGEST) if LONGEST else r.uniform(3, 12)) for kind in KINDS]
    with faulty(s3.replace("/gausscse?", "/outages?")) as proxy:
        met: list[tuple[str, int]] = []
        with grid.run("outages", proxy.storage) as process:
            for kind, after, seconds in points:
                before = proxy.disturbed
                proxy.fail(kind, seconds, after=after)
                wait_for(lambda: proxy.over or process.poll() is not None, 600, "the outage ends", 0.02)
                assert process.poll() is None, "it ended before"
                met.append((f"{kind} for {seconds:.0f} s", proxy.disturbed - before))
        print(met)
        assert process.returncode == 0, grid.errors[-3000:]
        assert all(count for _, count in met), met
        assert "Traceback" not in grid.errors
        storage = Storage.open(proxy.storage, Path("/"))
        assert_same(grid, "outages", storage, undisturbed)


def test_a_lasting_outage_ends_the_stage_and_the_next_run_goes_on(grid: Grid, undisturbed: Path, s3: str) -> None:
    with faulty(s3.replace("/gausscse?", "/ended?")) as proxy:
        storage = Storage.open(s3.replace("/gausscse?", "/ended?"), Path("/"))
        first = grid.trials[0]
        for kind, why in (("503", "SLOW_DOWN"), ("403", "ACCESS_DENIED")):
            # Like a server that accepts small files; checkpoints and models are objects. A checkpoint takes some 45 requests, and
            # a trial has five.
            proxy.fail(kind, 600, "(PUT|POST) .*/objects/", after=80)
            with grid.run("ended", proxy.storage, AWS_MAX_ATTEMPTS="2") as process:
                pass
            assert process.returncode == 2, grid.errors[-3000:]
            last = grid.errors.splitlines()[-1]
            assert last.startswith("error: s3://team/ended") and why in last, grid.errors[-3000:]
            assert ("(given up after 3 attempts)" in last) == (kind == "503")
            assert "Traceback" not in grid.errors
            proxy.heal()
            assert not [trial for trial in grid.trials if storage.read(f"trials/{trial.digest}/{FAILURE}") is not None]
        assert storage.read(f"trials/{first.digest}/{OUTCOME}") is None
        with grid.run("ended", proxy.storage, AWS_MAX_ATTEMPTS="2") as process:
            pass
        assert process.returncode == 0, grid.errors[-3000:]
        assert_same(grid, "ended", storage, undisturbed)
