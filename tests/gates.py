"""Holds what must still run when a test acts on it, so that no test depends on who is faster."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


class Gate:
    """Holds Python processes before they write or rename a file of a certain path, as long as it is closed.

    Args:
        folder: is made; the gate's own.
        pattern: a regular expression, searched for in the path.
    """

    def __init__(self, folder: Path, pattern: str) -> None:
        self._folder, self._pattern = folder, pattern
        folder.mkdir(parents=True)

    def environment(self, python_path: str = "") -> dict[str, str]:
        """What the processes get; those that they start inherit it."""
        keeper = str(Path(__file__).with_name("gate"))
        path = os.pathsep.join(filter(None, (keeper, python_path)))
        return {"PYTHONPATH": path, "GAUSSCSE_GATE": f"{self._folder} {self._pattern}"}

    def close(self) -> None:
        (self._folder / "closed").touch()

    def open(self) -> None:
        (self._folder / "closed").unlink(missing_ok=True)

    def holds(self) -> bool:
        """Whether it holds a process, or held one."""
        return any(self._folder.glob("[0-9]*"))


@contextmanager
def stopped(processes: Iterable[int]) -> Iterator[None]:
    """Processes are stopped while the block runs."""
    held = list(processes)
    for process in held:
        os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        for process in held:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGCONT)


def holder(file: Path) -> int | None:
    """The process that holds the lock of a file."""
    if not file.exists():
        return None
    inode = f":{file.stat().st_ino} "
    held = [line.split() for line in Path("/proc/locks").read_text(encoding="utf-8").splitlines() if inode in line]
    return next((int(parts[4]) for parts in held if parts[1] == "FLOCK" and int(parts[4]) > 0), None)


def wait_for(what: Callable[[], bool], patience: float, why: str, every: float = 0.05) -> float:
    """Wait until something is so; returns the seconds that took."""
    began = time.monotonic()
    while not what():
        assert time.monotonic() - began < patience, f"{why}: not within {patience:g} seconds"
        time.sleep(every)
    return time.monotonic() - began
