"""Where the models run that answer: in the process of the front (here), or as replicas of Ray Serve (`replica`)."""

from __future__ import annotations

import asyncio
import math
import os
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import torch

from pipeline.models.model_dir import Engine
from pipeline.serving.model import Answered, Job, Model

Send = Callable[[list[Job]], Awaitable[list[Answered]]]
"""Sends a batch to a model."""


CALLS = 2
"""Calls that a model is sent at once. It computes both, or one while the other waits, so it is never idle in between."""
# Seconds; a call has a few sentences, or 256 short requests.
_HANGS = 60.0


class ReplicaDied(Exception):
    """A replica died with a batch or cannot be reached. The batch can be sent again, as answers depend on nothing else."""


class Runtime(Protocol):
    """Runs models, each under a name of its own."""

    least: int
    """Replicas of a model at its start."""
    engine: Engine
    """What computes them."""
    patience: float
    """Seconds in which a model must have started, and those in which it must have answered its canary pairs."""

    def share(self, folder: Path) -> str:
        """Put the folder of a model where each replica finds it; returns its name there."""
        ...

    def start(self, name: str, folder: str, stopping: Callable[[], bool]) -> Send:
        """Start a model and wait until it runs.

        Args:
            folder: as `share` names it.
            stopping: whether the server ends meanwhile.

        Raises:
            UserError: it does not start, or the server ends.
        """
        ...

    def running(self, name: str) -> int:
        """Replicas of a model that run now."""
        ...

    def end(self, name: str) -> None:
        """End a model, which answers no request any more."""
        ...


class InProcess:
    """Models in this process.

    By torch, two threads compute the batches of all models. A call that begins while the other thread computes takes half of the
    cores: halves need not wait for each other, nor for a core that the front has taken. OpenVINO needs no halves; it has one.
    """

    least = 1

    def __init__(self, threads: int, patience: float, engine: Engine = "torch") -> None:
        """Args:
        threads: of the model and of the tokenizer.
        patience: as in `Runtime`; a start itself has no limit here.
        """
        self.patience = patience
        self.engine: Engine = engine
        self._threads = threads
        os.environ.setdefault("RAYON_NUM_THREADS", str(threads))
        # Also of the threads that are started later.
        torch.set_num_threads(threads)
        self._workers = ThreadPoolExecutor(min(CALLS, threads) if engine == "torch" else 1, "model")
        # When each call that is computed now began.
        self._began: dict[int, float] = {}
        self._beginning = threading.Lock()

    def share(self, folder: Path) -> str:
        """The folder itself."""
        return str(folder)

    def start(self, name: str, folder: str, stopping: Callable[[], bool]) -> Send:
        """Read a model in the calling thread, while others answer."""
        model = Model(Path(folder), "cpu", self.engine)

        def answers(jobs: list[Job]) -> list[Answered]:
            with self._beginning:
                # torch keeps the number for each thread that computes.
                torch.set_num_threads(max(1, self._threads // (CALLS if self._began else 1)))
                self._began[threading.get_ident()] = time.monotonic()
            try:
                return model.answers(jobs)
            finally:
                del self._began[threading.get_ident()]

        async def send(jobs: list[Job]) -> list[Answered]:
            return await asyncio.get_running_loop().run_in_executor(self._workers, answers, jobs)

        return send

    def running(self, name: str) -> int:
        """One, or none while a call takes so long that it seems to hang."""
        return int(time.monotonic() - min(self._began.copy().values(), default=math.inf) < _HANGS)

    def end(self, name: str) -> None:
        """Nothing: the memory of a model is free once nobody has its `Send`."""
