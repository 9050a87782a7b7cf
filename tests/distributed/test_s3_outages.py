"""A grid whose storage is on an S3 server that fails for longer than any retry, or refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.storage.object_store import Storage
from pipeline.trials.trial import FAILURE, OUTCOME
from pipeline.utils.atomic_io import read_json
from tests.distributed.grids import EXECUTION, specify, start
from tests.distributed.test_trials import make_trial
from tests.faulty_s3 import faulty
from tests.store import random_stores

pytestmark = [pytest.mark.faults, pytest.mark.weekly]


class Grid:
    """Trials with one place for a worker, each in its own storage."""

    def __init__(self, folder: Path, backbone: Path) -> None:
        self.folder = folder
        self.stores = random_stores(folder / "stores", sentences=400, triplets=400)
        self.trials = [make_trial(backbone, self.stores, rate) for rate in (1e-3, 3e-3)]
        self.errors = ""

    def run(self, name: str, storage: str, **environment: str) -> int:
        """Run the stage in a process, in the folder of that name; returns its exit code."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        keys = {"cpus_per_worker": 1.0, "max_failures": 2, "storage": storage}
        execution = EXECUTION.model_copy(update={"cluster": EXECUTION.cluster.model_copy(update=keys)})
        # Without a folder, the storage is that of section cluster.
        train, dev = self.stores
        specify(folder, {"train_tokens": train, "dev_tokens": dev}, folder, self.trials, execution)
        with start(folder, "out.json", None, OMP_NUM_THREADS="1", **environment) as process:
            code = process.wait(400)
        self.errors = (folder / "out.json.log").read_text(encoding="utf-8", errors="replace")
        return code

    def result(self, name: str) -> Path:
        return self.folder / name / "out.json"


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory, tiny_backbone: Path) -> Grid:
    return Grid(tmp_path_factory.mktemp("outages"), tiny_backbone)


@pytest.fixture(scope="module")
def undisturbed(grid: Grid) -> Path:
    storage = grid.folder / "storage"
    assert grid.run("undisturbed", str(storage)) == 0, grid.errors[-3000:]
    return storage


def assert_same(grid: Grid, name: str, storage: Storage, undisturbed: Path) -> None:
    assert read_json(grid.result(name)) == read_json(grid.result("undisturbed"))
    for trial in grid.trials:
        outcome: Any = storage.read(f"trials/{trial.digest}/{OUTCOME}")
        model = storage.read(f"trials/{trial.digest}/best-{json.loads(outcome)['outcome']['weights']}.ref")
        storage.get(str(model), grid.folder / name / trial.digest)
        here = undisturbed / "trials" / trial.digest
        assert json.loads(outcome)["outcome"] == read_json(here / OUTCOME)["outcome"]
        weights = [folder / "model.safetensors" for folder in (grid.folder / name / trial.digest, here / "best")]
        assert weights[0].read_bytes() == weights[1].read_bytes()


def test_a_lasting_outage_ends_the_stage_and_the_next_run_goes_on(grid: Grid, undisturbed: Path, s3: str) -> None:
    with faulty(s3.replace("/gausscse?", "/ended?")) as proxy:
        storage = Storage.open(s3.replace("/gausscse?", "/ended?"), Path("/"))
        first = grid.trials[0]
        for kind, why in (("503", "SLOW_DOWN"), ("403", "ACCESS_DENIED")):
            # Like a server that accepts small files; checkpoints and models are objects. A checkpoint takes some 45 requests, and
            # a trial has five.
            proxy.fail(kind, 600, "(PUT|POST) .*/objects/", after=80)
            assert grid.run("ended", proxy.storage, AWS_MAX_ATTEMPTS="2") == 2, grid.errors[-3000:]
            last = grid.errors.splitlines()[-1]
            assert last.startswith("error: s3://team/ended") and why in last, grid.errors[-3000:]
            assert ("(given up after 3 attempts)" in last) == (kind == "503")
            assert "Traceback" not in grid.errors
            proxy.heal()
            assert not [trial for trial in grid.trials if storage.read(f"trials/{trial.digest}/{FAILURE}") is not None]
        assert storage.read(f"trials/{first.digest}/{OUTCOME}") is None
        assert grid.run("ended", proxy.storage, AWS_MAX_ATTEMPTS="2") == 0, grid.errors[-3000:]
        assert_same(grid, "ended", storage, undisturbed)
