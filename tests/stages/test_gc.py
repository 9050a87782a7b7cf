"""`gausscse gc --delete --keep-days 0` again and again does not affect another project that is training a grid.

The collecting project has other parameters and a registry of its own, so only the run itself keeps what it needs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from folders import folder_of

from pipeline.cli.gc import main
from pipeline.config.execution import TrackingParams
from pipeline.config.load import load_params
from pipeline.storage.object_store import Storage
from pipeline.storage.sync import Mirror
from pipeline.storage.uses import RUNS, USES
from pipeline.tracking.server import open_tracker
from pipeline.trials.grid import Recipe
from pipeline.trials.trial_folder import TrialFolder
from tests.cli.storages import fates
from tests.stages.conftest import small_project
from tests.stages.running import environment, set_keys

pytestmark = pytest.mark.faults
STAGES = ("tune",)
RESULTS = {"tune": ("results/tune/trials.csv", "results/tune/curves.csv", "results/tune/best.yaml")}


@contextmanager
def stage(root: Path, name: str) -> Iterator[subprocess.Popen[bytes]]:
    log = root / f"{name}.log"
    # Two threads that wait for each other take many times as long where much else runs.
    keys = {"OMP_NUM_THREADS": "1", **{key: value for key, value in os.environ.items() if key.startswith("AWS_")}}
    command = [sys.executable, "-m", f"stages.{name}"]
    with (
        log.open("wb") as out,
        subprocess.Popen(command, cwd=root, env=environment(**keys), stdout=out, stderr=out) as process,
    ):
        try:
            yield process
            assert process.wait(600) == 0, log.read_text(encoding="utf-8")[-3000:]
        finally:
            process.kill()


@dataclass(frozen=True)
class Undisturbed:
    tokenized: Path
    root: Path


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, tiny_backbone: Path) -> Undisturbed:
    tokenized = small_project(tmp_path_factory.mktemp("gc"), tiny_backbone)
    set_keys(tokenized, {"tune.seeds": [1, 2], "train.seeds": [2, 3]})
    for name in ("prepare", "identity", "tokenize"):
        with stage(tokenized, name):
            pass
    root = Path(shutil.copytree(tokenized, tokenized.with_name("undisturbed")))
    for name in STAGES:
        with stage(root, name):
            pass
    return Undisturbed(tokenized, root)


@pytest.mark.parametrize("on", ["folder", "s3"])
def test_a_run_that_is_going_on_ends_as_if_nothing_had_been_collected(
    undisturbed: Undisturbed,
    on: str,
    s3: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = str(tmp_path / "kept") if on == "folder" else s3.replace("/gausscse?", f"/{tmp_path.name}?")
    storage = Storage.open(name)
    run, collector = (Path(shutil.copytree(undisturbed.tokenized, tmp_path / which)) for which in ("run", "collector"))
    for root in (run, collector):
        set_keys(root, {"cluster.storage": name}, "execution.yaml")
    set_keys(collector, {"train.weight_decay": 0.5})
    open_tracker(TrackingParams(uri=None, experiment="gausscse"), collector)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    # An earlier run left the final seed of the grid, and another left what nobody needs.
    p = load_params(run / "params.yaml")
    reused = Recipe.of(p.model, p.objective, p.train, run).trial(2e-3, 16, seed=2)
    earlier = Path(shutil.copytree(undisturbed.root / ".gausscse/trials" / reused.digest, tmp_path / "earlier"))
    if storage.folder is None:
        TrialFolder(reused, Mirror(earlier, storage, f"trials/{reused.digest}")).show()
    else:
        shutil.copytree(earlier, storage.folder / "trials" / reused.digest)
    written = storage.entries(f"trials/{reused.digest}/trial.json")
    rubbish = storage.put(folder_of(tmp_path / "rubbish", a="rubbish"))

    monkeypatch.chdir(collector)
    rounds: dict[str, int] = {}
    removed: dict[str, str] = {}
    for number, what in enumerate(STAGES):
        with stage(run, what) as process:
            while process.poll() is None:
                time.sleep(0.2)
                # Until the run has begun, nothing keeps what it will use.
                if number == 0 and f"{USES}/trials.{reused.digest}" not in storage.entries(USES):
                    continue
                capsys.readouterr()
                main(["--delete", "--keep-days", "0"])
                said = fates(capsys.readouterr().out)
                removed |= {thing: why for thing, (fate, why) in said.items() if fate == "removed"}
                rounds[what] = rounds.get(what, 0) + 1
    assert min(rounds[what] for what in STAGES) >= 2, rounds
    # Of all that was in the storage, only what the run had no use for.
    assert removed.keys() == {f"objects/{rubbish}"}
    for file in (file for what in STAGES for file in RESULTS[what]):
        assert (run / file).read_bytes() == (undisturbed.root / file).read_bytes(), file
    # Nothing was trained a second time: one trial of the grid was left to train.
    assert storage.entries(f"trials/{reused.digest}/trial.json") == written
    for what in STAGES:
        assert "1 trial of 1 worker" in (run / f"{what}.log").read_text(encoding="utf-8")
    assert len(storage.entries(RUNS)) == 2 * len(STAGES)
