"""What a grid whose trials are all finished costs, with a remote storage: few models are read, and MLflow is asked once."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from pipeline.cluster import garbage
from pipeline.cluster.grid_search import run_trials
from pipeline.cluster.session import Session
from pipeline.config.execution import TrackingParams
from pipeline.storage.object_store import Storage
from pipeline.tracking.mlflow_runs import pipeline_run
from pipeline.tracking.server import Tracker, open_tracker
from pipeline.trials.store import TrialStore
from pipeline.trials.trial import Trial, TrialResult
from pipeline.utils.errors import UserError
from tests.calls import counted
from tests.tracking.runs import finish, trial


class Grid:
    """Finished trials in a folder that each process uses as a remote storage."""

    def __init__(self, root: Path, count: int) -> None:
        self.root, self.trials = root, [trial(seed) for seed in range(1, count + 1)]
        store = self.store("made")
        for one in self.trials:
            finish(store.folder(one).path, one)
            store.folder(one).show()

    def store(self, name: str) -> TrialStore:
        """The store of a new process."""
        remote = str(self.root / "remote")
        return TrialStore(train_tokens=self.root, dev_tokens=self.root, storage=self.root / name, remote=remote)

    @property
    def remote(self) -> Storage:
        return Storage.open(str(self.root / "remote"))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """What the storage and MLflow are asked from now on."""
    calls = counted(monkeypatch, Storage, ("read", "write", "get", "remove", "entries"))
    return counted(monkeypatch, MlflowClient, ("search_runs", "create_run", "get_run", "log_batch"), calls)


def no_session() -> Session:
    raise AssertionError("a trial is trained")


def again(grid: Grid, name: str, tracker: Tracker, parent: str) -> Sequence[TrialResult]:
    return run_trials(grid.trials, grid.store(name), no_session, tracker, parent)


def test_a_finished_grid_is_found_without_its_models_and_by_one_search(
    tmp_path: Path, asked: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    tracker = open_tracker(TrackingParams(uri=None, experiment="test"), tmp_path)
    for count in (3, 12):
        grid = Grid(tmp_path / str(count), count)
        parent = pipeline_run(tracker, str(count), {}, {})
        again(grid, "first", tracker, parent)
        asked.clear()
        results = again(grid, "next", tracker, parent)
        assert [result.outcome.digest for result in results if result.outcome] == [one.digest for one in grid.trials]
        # A stamp; four notes, the model's pointer and its manifest.
        assert asked == {"write": count, "read": 6 * count, "search_runs": 1}
        assert not [*(grid.root / "next").rglob("model.safetensors")]
        # A model is downloaded where it is used, once.
        folder = grid.store("next").folder(grid.trials[1])
        assert (
            (folder.model / "model.safetensors").read_bytes() == (folder.model / "model.safetensors").read_bytes() == b"weights"
        )
        assert asked["get"] == 1


def found(grid: Grid, name: str, of: Trial) -> TrialResult:
    return grid.store(name).result(of, None)


def test_an_outcome_whose_model_is_lost_or_damaged_does_not_count(tmp_path: Path) -> None:
    grid = Grid(tmp_path, 3)
    lost, half, damaged = grid.trials
    # All three have the same model, so the same object.
    (manifest,) = [name for name in grid.remote.entries("objects") if name.endswith("/manifest")]
    text = grid.remote.read(manifest) or ""
    for file in grid.remote.entries(f"trials/{lost.digest}"):
        if file.endswith(".ref"):
            grid.remote.remove(file)
    assert found(grid, "a", lost).unfinished
    grid.remote.remove(manifest)
    assert found(grid, "a", half).unfinished
    fault = f"trials/{half.digest}/best: the storage does not have the model that trial.json names"
    assert grid.store("a").folder(half).fault() == fault
    grid.remote.write(manifest, text)
    assert not found(grid, "b", half).unfinished
    # Nobody notices before the model is used; then it has to be trained again.
    grid.remote.write(manifest.replace("/manifest", "/files/model.safetensors"), "weightz")
    assert not found(grid, "b", damaged).unfinished
    with pytest.raises(
        UserError, match=f"^{re.escape(damaged.name)}: best: .*differs from what was sent; run the command again to train"
    ):
        _ = grid.store("b").folder(damaged).model
    assert found(grid, "c", damaged).unfinished


def test_gc_reads_what_it_keeps_once(tmp_path: Path, asked: Counter[str]) -> None:
    for count in (3, 12):
        grid = Grid(tmp_path / str(count), count)
        asked.clear()
        verdicts = garbage._verdicts(grid.remote, {}, {}, 30)
        assert [verdict.item.name for verdict in verdicts][:count] == sorted(f"trials/{one.digest}" for one in grid.trials)
        # One listing; of each trial its outcome and its pointer.
        assert asked == {"entries": 1, "read": 2 * count}
        assert {verdict.why for verdict in verdicts if verdict.item.kind == "objects"} <= {verdicts[0].item.name}
