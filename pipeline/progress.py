"""Progress of a training run as one line a report, on the terminal and in a file."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipeline.training import Progress

# Seconds between two looks at the files that are followed.
_POLL = 0.5


class ProgressLog:
    """Callback of the training loop; appends to the file, so that a resumed run goes on in the same one."""

    def __init__(self, name: str, file: Path) -> None:
        self._name, self._file = name, file

    def __call__(self, progress: Progress) -> None:
        now = datetime.datetime.now().isoformat(timespec="seconds")
        with self._file.open("a", encoding="utf-8") as out:
            out.write(f"{now}  {self._name}  {describe(progress)}\n")


@contextmanager
def followed(files: Sequence[Path]) -> Iterator[None]:
    """Print what is appended to the files while the block runs, also by processes on other machines."""
    seen = {file: file.stat().st_size if file.exists() else 0 for file in files}
    stop = threading.Event()

    def print_new() -> None:
        for file, start in seen.items():
            if file.exists() and file.stat().st_size > start:
                with file.open("rb") as stream:
                    stream.seek(start)
                    whole, _, _ = stream.read().rpartition(b"\n")
                if whole:
                    seen[file] = start + len(whole) + 1
                    print(whole.decode("utf-8", "replace"), flush=True)

    def loop() -> None:
        while not stop.wait(_POLL):
            print_new()

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        print_new()


def describe(progress: Progress) -> str:
    """Steps, loss, learning rate, PR-AUC, speed and time left, in one line."""
    parts = [f"step {progress.step:>{len(str(progress.total_steps))}}/{progress.total_steps}"]
    if progress.loss is not None:
        parts.append(f"loss {progress.loss:.4f}")
    parts.append(f"lr {progress.learning_rate:.2e}")
    if progress.dev_pr_auc is not None:
        parts.append(f"dev PR-AUC {progress.dev_pr_auc:.2f}")
    if progress.best_dev_pr_auc is not None:
        parts.append(f"best {progress.best_dev_pr_auc:.2f}")
    if progress.triplets_per_second is not None:
        parts.append(f"{progress.triplets_per_second:.1f} triplets/s")
    if progress.seconds_left is not None:
        parts.append(f"{duration(progress.seconds_left)} left")
    return "  ".join(parts)


def duration(seconds: float) -> str:
    """1h02m, 3m05s or 12s."""
    whole = round(seconds)
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    if hours:
        return f"{hours}h{minutes:02d}m"
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"
