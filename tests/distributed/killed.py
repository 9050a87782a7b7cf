"""A process that trains a trial, and is killed when it is about to change a certain file (test_killed_writes.py)."""

from __future__ import annotations

import importlib
import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from pipeline.distributed import collectives
from pipeline.training.trainer import train
from pipeline.trials import locks
from pipeline.trials.trial import Trial
from tests.trial_of import folder_at

# Renames, new and removed folders, removed files, and files that are opened for writing.
_CHANGES = ("os.rename", "os.mkdir", "os.rmdir", "os.remove", "open")


def _train(trial: str, stores: tuple[Path, Path], folder: Path, pause: Callable[[], bool] = lambda: False) -> None:
    torch.set_num_threads(1)
    train(*stores, folder_at(Trial.model_validate_json(trial), folder), lambda _: None, torch.device("cpu"), pause)


def train_until(change: int, log: Path, trial: str, stores: tuple[Path, Path], folder: Path) -> None:
    """Train, and be killed before the change with this number (from 0) in the folder; -1: live, and log the changes."""
    seen: list[str] = []

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event not in _CHANGES or not isinstance(args[0], str | Path):
            return
        # Files in a folder that is removed are removed by their names alone.
        inside = event in ("os.remove", "os.rmdir") and not Path(args[0]).is_absolute()
        if not (inside or str(args[0]).startswith(str(folder))) or (event == "open" and not args[2] & os.O_WRONLY):
            return
        if len(seen) == change:
            os.kill(os.getpid(), signal.SIGKILL)
        seen.append(f"{event} {args[0] if inside else Path(args[0]).relative_to(folder)}")

    sys.addaudithook(hook)
    _train(trial, stores, folder)
    if change < 0:
        log.write_text("\n".join(seen), encoding="utf-8")


def train_past(steps: int, trial: str, stores: tuple[Path, Path], folder: Path) -> None:
    """Train, and be killed in the middle of the second checkpoint's write, once so many steps are taken."""
    reached, written = threading.Event(), itertools.count(1)
    taken = itertools.count()

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event == "open" and str(args[0]).endswith("tmp/state.json") and args[2] & os.O_WRONLY and next(written) == 2:
            if not reached.wait(60):
                os._exit(3)
            os.kill(os.getpid(), signal.SIGKILL)

    def pause() -> bool:
        if next(taken) == steps:
            reached.set()
        return False

    sys.addaudithook(hook)
    _train(trial, stores, folder, pause)


def resume(rank: int, workers: int, rendezvous: Path, rate: float | None, *run: Any) -> None:
    """Tidy the folder and train to the end, as one of several workers; `rate` changes the numbers."""
    if workers > 1:
        dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=workers)
    if rank == 0:
        locks.tidy(run[2])
    if workers > 1:
        dist.barrier()
    if rate is not None:
        import pipeline.training.trainer

        pipeline.training.trainer.learning_rate_at = lambda *_: rate  # type: ignore[assignment]
    _train(*run)
    if workers > 1:
        dist.destroy_process_group()


def slow(rank: int, rendezvous: Path, module: str, function: str, *run: Any) -> None:
    """Train as one of two workers who give up after three seconds; the first takes six for its first call of a function."""
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2)
    collectives.give_up_after(3.0, "gloo")
    real, calls = getattr(importlib.import_module(module), function), itertools.count()

    def slow(*args: Any) -> Any:
        if next(calls) == 0:
            time.sleep(6)
        return real(*args)

    setattr(importlib.import_module(module), function, slow)
    _train(*run)
    assert next(calls) >= int(rank == 0)
