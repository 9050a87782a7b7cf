"""A worker on its own, without Ray, that trains while its storage on S3 fails at seeded points, does not answer, or refuses."""

from __future__ import annotations

import random
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.cluster import worker
from pipeline.storage import filesystem
from pipeline.storage.object_store import Storage
from pipeline.storage.sync import Mirror
from pipeline.trials import progress_log
from pipeline.trials.progress_log import RECORDS
from pipeline.trials.trial import FAILURE, LATEST, OUTCOME, PAUSE, PREVIOUS, STOPPED, Trial
from pipeline.trials.trial_folder import BEST, TrialFolder
from pipeline.utils.atomic_io import read_json
from pipeline.utils.errors import StorageError, TransientStorageError
from tests import gates
from tests.faulty_s3 import FaultyS3, faulty
from tests.store import random_stores
from tests.trial_of import trial_on, worker_config

pytestmark = pytest.mark.faults

NOTES = rf"(HEAD|GET) .*/({STOPPED}|{PAUSE})"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_log, "_EVERY", 0.05)


def trial_of(backbone: Path, stores: tuple[Path, Path], **train: int) -> tuple[Trial, dict[str, Any]]:
    trial = trial_on(backbone, stores, 1e-3, **{"eval_every": 1000, "epochs": 400, **train})
    return trial, worker_config(trial, stores, search="a", early_stopping={"grace_scorings": 2, "reduction_factor": 2})


def steps(mirror: Mirror) -> int:
    file = mirror.folder / RECORDS
    return file.read_bytes().count(b"\n") if file.exists() else 0


def mirror_in(proxy: FaultyS3, tmp_path: Path, name: str = "here") -> Mirror:
    (tmp_path / name).mkdir()
    storage = Storage.open(proxy.storage.replace("/gausscse?", f"/{tmp_path.name}?"), tmp_path)
    return Mirror(tmp_path / name, storage, "trials/x")


def in_a_thread(trial: Trial, config: dict[str, Any], mirror: Mirror) -> Future[str]:
    return ThreadPoolExecutor(1).submit(worker._train, config, TrialFolder(trial, mirror), torch.device("cpu"), first=True)


def wait_for(what: Any) -> None:
    gates.wait_for(what, 60, "the worker goes on")


def test_steps_go_on_while_the_server_does_not_answer(s3: str, tiny_backbone: Path, tmp_path: Path, quick: None) -> None:
    trial, config = trial_of(tiny_backbone, random_stores(tmp_path / "stores"))
    with faulty(s3) as proxy:
        mirror = mirror_in(proxy, tmp_path)
        run = in_a_thread(trial, config, mirror)
        wait_for(lambda: steps(mirror) >= 1)
        proxy.fail("hang", 60, NOTES)
        wait_for(lambda: proxy.disturbed >= 1)
        before, looks = steps(mirror), proxy.disturbed
        # A report is ten steps. A look on the training thread, every two seconds, would take ten seconds, and then its retries.
        wait_for(lambda: steps(mirror) >= before + 60)
        assert not proxy.over
        assert proxy.disturbed - looks < 10
        assert mirror.storage is not None
        mirror.storage.write(f"trials/x/{PAUSE}", "a")
        proxy.heal()
        assert run.exception(60) is None
    assert not (mirror.folder / OUTCOME).exists()
    assert (mirror.folder / "latest").is_dir()


def test_steps_go_on_while_a_checkpoint_cannot_be_sent(s3: str, tiny_backbone: Path, tmp_path: Path, quick: None) -> None:
    trial, config = trial_of(tiny_backbone, random_stores(tmp_path / "stores"), eval_every=100)
    with faulty(s3) as proxy:
        mirror = mirror_in(proxy, tmp_path)
        assert mirror.storage is not None
        proxy.fail("hang", 120, "(PUT|POST) .*/objects/")
        run = in_a_thread(trial, config, mirror)
        # The checkpoint of step 100 is the first; the thread that sends reports and looks for notes goes on as well.
        wait_for(lambda: (mirror.storage.read(f"trials/x/{RECORDS}") or "").count("\n") >= 16)  # type: ignore[union-attr]
        assert proxy.disturbed and not proxy.over
        assert mirror.storage.read(f"trials/x/{LATEST}.ref") is None
        mirror.storage.write(f"trials/x/{PAUSE}", "a")
        wait_for((mirror.folder / PAUSE).exists)
        proxy.heal()
        assert run.exception(60) is None
        # It ended once the last checkpoint was sent.
        again = Mirror(tmp_path / "again", mirror.storage, "trials/x")
        assert not again.pull(PREVIOUS, LATEST)
    steps_of = [read_json(tmp_path / "again" / name / "state.json")["step"] for name in (PREVIOUS, LATEST)]
    assert 100 <= steps_of[0] < steps_of[1] <= 201


def test_a_temporary_error_is_noted_once_and_a_refusal_ends_the_run(
    s3: str, tiny_backbone: Path, tmp_path: Path, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setattr(filesystem, "_SILENT_S", 1.0)
    trial, config = trial_of(tiny_backbone, random_stores(tmp_path / "stores"))
    with faulty(s3) as proxy:
        mirror = mirror_in(proxy, tmp_path)
        run = in_a_thread(trial, config, mirror)
        wait_for(lambda: steps(mirror) >= 1)
        proxy.fail("503", 60, NOTES)
        before = proxy.disturbed
        wait_for(lambda: proxy.disturbed >= before + 3)
        assert not run.done()
        proxy.fail("403", 60, NOTES)
        error = run.exception(60)
    assert isinstance(error, StorageError) and "ACCESS_DENIED" in str(error)
    assert (mirror.folder / RECORDS).read_text(encoding="utf-8").count("training goes on") == 1


def test_a_storage_that_fails_at_seeded_points_changes_no_figure(
    s3: str, tiny_backbone: Path, tmp_path: Path, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attempt is a new process: it has an empty folder and the storage."""
    trial, config = trial_of(tiny_backbone, random_stores(tmp_path / "stores"), epochs=40, eval_every=20)
    twin = Mirror(tmp_path / "twin")
    twin.folder.mkdir()
    worker._train(config, TrialFolder(trial, twin), torch.device("cpu"), first=True)
    undisturbed = read_json(twin.folder / OUTCOME)["outcome"]
    # From this request of an attempt on, its storage fails: while it looks for a checkpoint, reads one, or writes one.
    points = [3, *sorted(random.Random(20).sample(range(10, 160), 4))]
    ends = "(PUT|POST|GET|HEAD) .*/(objects|trials/x/latest)"
    with faulty(s3) as proxy:
        for attempt, (point, kind) in enumerate(zip(points, ("503", "500", "reset", "503", "reset"), strict=True)):
            # The fault lasts longer than the retries.
            monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")
            mirror = mirror_in(proxy, tmp_path, f"attempt-{attempt}")
            proxy.fail(kind, 60, ends, after=point)
            run = in_a_thread(trial, config, mirror)
            assert type(run.exception(120)) is TransientStorageError
            proxy.heal()
            assert mirror.storage is not None
            assert mirror.storage.read(f"trials/x/{FAILURE}") is None
        # The last attempt's retries outlast its faults.
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "12")
        mirror = mirror_in(proxy, tmp_path, "last")
        before = proxy.disturbed
        proxy.fail("503", 60, ends, after=30, most=4)
        run = in_a_thread(trial, config, mirror)
        assert run.exception(120) is None
        assert proxy.disturbed == before + 4
    assert read_json(mirror.folder / OUTCOME)["outcome"] == undisturbed
    weights = [folder / BEST / "model.safetensors" for folder in (mirror.folder, twin.folder)]
    assert weights[0].read_bytes() == weights[1].read_bytes()
