"""A run killed by SIGKILL at changes to its folder, and resumed: outcome and weights belong together."""

from __future__ import annotations

import multiprocessing
import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.trials.trial import LATEST, OUTCOME
from pipeline.trials.trial_folder import BEST
from pipeline.utils.atomic_io import read_json
from tests.distributed import killed
from tests.outcomes import assert_together, finished, rising_trial, run
from tests.store import random_stores

pytestmark = pytest.mark.faults
# Importing torch and transformers takes longer than everything else here.
FORKS = multiprocessing.get_context("fork")


def ended(*targets: tuple[Callable[..., None], tuple[Any, ...]]) -> list[int | None]:
    """Exit codes of processes that run at once."""
    processes = [FORKS.Process(target=target, args=args) for target, args in targets]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    return [process.exitcode for process in processes]


def worth_a_kill(changes: list[str]) -> list[int]:
    """Numbers of changes: all renames of three of the five checkpoints and all of the end, and some of the others."""
    renames = [n for n, change in enumerate(changes) if change.startswith("os.rename ")]
    others = [n for n in range(len(changes)) if n not in renames]
    # A checkpoint has three: its best model's, the previous checkpoint's and its own. The first replaces none.
    return sorted({*renames[:5], *renames[-7:], *random.Random(5).sample(others, 10)})


def test_a_run_killed_at_any_write_ends_with_an_outcome_of_its_weights(tmp_path: Path, tiny_backbone: Path) -> None:
    # Threads do not survive a fork.
    torch.set_num_threads(1)
    stores = random_stores(tmp_path)
    trial = rising_trial(tiny_backbone, stores)
    whole, log = tmp_path / "whole", tmp_path / "changes"
    run(trial, stores, tmp_path / "here")
    whole.mkdir()
    assert ended((killed.train_until, (-1, log, trial.model_dump_json(), stores, whole))) == [0]
    undisturbed = assert_together(whole, trial, stores[1])
    changes = log.read_text(encoding="utf-8").splitlines()
    numbers = worth_a_kill(changes)
    for number in numbers:
        left = tmp_path / f"killed-{number}"
        left.mkdir()
        code = ended((killed.train_until, (number, log, trial.model_dump_json(), stores, left)))
        assert code == [-signal.SIGKILL], changes[number]
        done = finished(left, trial)
        assert done in (None, undisturbed)
        # With the same numbers it ends like the undisturbed run. With others, of one worker or two, it ends with its own.
        how = [(1, None), (2, None) if number % 3 else (1, 0.0)]
        for workers, rate in how if done is None else ():
            again = tmp_path / f"killed-{number}-{workers}-{rate}"
            shutil.copytree(left, again)
            rendezvous = again.with_suffix(".group")
            what = (trial.model_dump_json(), stores, again)
            codes = ended(*((killed.resume, (rank, workers, rendezvous, rate, *what)) for rank in range(workers)))
            assert codes == [0] * workers, changes[number]
            outcome = assert_together(again, trial, stores[1])
            if (workers, rate) == (1, None):
                assert outcome == undisturbed, changes[number]
            assert {file.name for file in again.iterdir()} == {"best", OUTCOME}
    kills = " ".join(changes[number] for number in numbers)
    assert all(f"os.rename {what}" in kills for what in (f"{LATEST} ", f".{LATEST}.", f".{BEST}.", f".{OUTCOME}."))


def test_a_run_killed_during_a_write_resumes_from_the_checkpoint_before(tmp_path: Path, tiny_backbone: Path) -> None:
    torch.set_num_threads(1)
    stores = random_stores(tmp_path)
    trial = rising_trial(tiny_backbone, stores)
    undisturbed = run(trial, stores, tmp_path / "whole")
    folder = tmp_path / "killed"
    folder.mkdir()
    # The second checkpoint is that of step 4; the next, which would wait for it, that of step 6.
    assert ended((killed.train_past, (5, trial.model_dump_json(), stores, folder))) == [-signal.SIGKILL]
    assert list(folder.glob(f".{LATEST}.*.tmp"))
    assert read_json(folder / LATEST / "state.json")["step"] == 2
    assert ended((killed.resume, (0, 1, tmp_path / "group", None, trial.model_dump_json(), stores, folder))) == [0]
    assert assert_together(folder, trial, stores[1]) == undisturbed


@pytest.mark.parametrize(
    "what",
    [("pipeline.trials.trial_folder", "content_digest"), ("pipeline.training.checkpoint", "write_sums")],
    ids=["copies the best model", "writes a checkpoint"],
)
def test_the_first_worker_may_take_its_time(tmp_path: Path, tiny_backbone: Path, what: tuple[str, str]) -> None:
    torch.set_num_threads(1)
    stores = random_stores(tmp_path)
    trial = rising_trial(tiny_backbone, stores)
    folder = tmp_path / "slow"
    folder.mkdir()
    args = (tmp_path / "group", *what, trial.model_dump_json(), stores, folder)
    assert ended(*((killed.slow, (rank, *args)) for rank in range(2))) == [0, 0]
    assert_together(folder, trial, stores[1])
