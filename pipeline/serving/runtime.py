"""Where the models run that answer: in the process of the front (here), or as replicas of Ray Serve (`replica`)."""

from __future__ import annotations

import asyncio
import os
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


# Seconds; a call has a few sentences, or 256 short requests.
_HANGS = 60.0


class ReplicaDied(Exception):
    """A replica died with a batch or cannot be reached. The batch can be sent again, as answers depend on nothing else."""


class Runtime(Protocol):
    """Runs models, each under a name of its own."""

    @property
    def least(self) -> int:
        """Replicas of a model at its start."""
        ...

    @property
    def engine(self) -> Engine:
        """What computes them."""
        ...

    @property
    def patience(self) -> float:
        """Seconds in which a model must have started, and those in which it must have answered its canary pairs."""
        ...

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
    """Models in this process; one thread computes the batches of all of them."""

    least = 1

    def __init__(self, threads: int, patience: float, engine: Engine = "torch") -> None:
        """Args:
        threads: of torch and of the tokenizer.
        patience: as in `Runtime`; a start itself has no limit here.
        """
        self.patience = patience
        self.engine: Engine = engine
        os.environ.setdefault("RAYON_NUM_THREADS", str(threads))
        # torch keeps the number for each thread that computes, and for those that are started later.
        torch.set_num_threads(threads)
        self._worker = ThreadPoolExecutor(1, "model", torch.set_num_threads, (threads,))
        self._began: float | None = None

    def share(self, folder: Path) -> str:
        """The folder itself."""
        return str(folder)

    def start(self, name: str, folder: str, stopping: Callable[[], bool]) -> Send:
        """Read a model in the calling thread, while others answer."""
        model = Model(Path(folder), "cpu", self.engine)

        def answers(jobs: list[Job]) -> list[Answered]:
            self._began = time.monotonic()
            try:
                return model.answers(jobs)
            finally:
                self._began = None

        async def send(jobs: list[Job]) -> list[Answered]:
            return await asyncio.get_running_loop().run_in_executor(self._worker, answers, jobs)

        return send

    def running(self, name: str) -> int:
        """One, or none while a call takes so long that it seems to hang."""
        began = self._began
        return int(began is None or time.monotonic() - began < _HANGS)

    def end(self, name: str) -> None:
        """Nothing: the memory of a model is free once nobody has its `Send`."""
