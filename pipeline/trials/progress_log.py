"""Progress of a training run: one line per report, for people (progress.log) and for programs (progress.jsonl).

The first worker writes both files into the trial's folder; any process that watches the run reads them there, on any machine.
"""

from __future__ import annotations

import datetime
import json
import threading
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.data.token_store import DOCUMENTS
from pipeline.storage.sync import Mirror
from pipeline.trials.trial import PAUSE, STOPPED, score_label
from pipeline.utils.errors import TransientStorageError

if TYPE_CHECKING:
    from pipeline.training.trainer import Progress

LOG = "progress.log"
RECORDS = "progress.jsonl"
# Seconds between two rounds of downloads and uploads.
_EVERY = 2.0


class ProgressLog:
    """Callback of the training loop. It appends, so a resumed run continues the same files."""

    def __init__(self, name: str, folder: Path) -> None:
        self._name, self._folder = name, folder

    def __call__(self, progress: Progress) -> None:
        record = asdict(progress)
        self._write(describe(record), record)

    def note(self, text: str) -> None:
        """Record an event between two reports."""
        self._write(text, {"note": text})

    def _write(self, text: str, record: dict[str, Any]) -> None:
        now = datetime.datetime.now().isoformat(timespec="seconds")
        for name, line in ((LOG, f"{now}  {self._name}  {text}"), (RECORDS, json.dumps(record))):
            with (self._folder / name).open("a", encoding="utf-8") as out:
                out.write(line + "\n")


class RecordReader:
    """Reads new records from progress.jsonl, each once. Steps that a restarted run repeats are skipped.

    Attributes:
        notes: notes found so far; the caller removes those it has shown.
    """

    def __init__(self, folder: Path) -> None:
        self.notes: list[str] = []
        self._file = folder / RECORDS
        self._position = 0
        self._last_step = -1

    def read(self) -> list[dict[str, Any]]:
        """Records since the last call, as dictionaries of `Progress`. An incomplete last line is left for the next call."""
        if not self._file.exists():
            return []
        with self._file.open("rb") as stream:
            stream.seek(self._position)
            whole, newline, _ = stream.read().rpartition(b"\n")
        self._position += len(whole) + len(newline)
        records: list[dict[str, Any]] = []
        for line in whole.splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                # Cut off by a kill during the write; the trial's outcome has the step.
                continue
            if "note" in record:
                self.notes.append(record["note"])
            elif record["step"] > self._last_step:
                self._last_step = record["step"]
                records.append(record)
        return records


class BackgroundSync:
    """A thread that downloads notes for a trial and uploads its records every two seconds while its block runs.

    It runs only if the storage is remote (s3://…). The training thread reads only the worker's local folder, so it never waits
    for the storage between two checkpoints. A temporary storage error is noted once and retried in the next round; `check`
    raises any other error.

    Args:
        log: gets a line for people, in the thread.
        sending: held while records are uploaded.
    """

    def __init__(self, mirror: Mirror, log: ProgressLog, sending: threading.Lock) -> None:
        self._mirror, self._log, self._sending = mirror.for_another_thread(), log, sending
        self._over = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> BackgroundSync:
        if self._mirror.storage is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._mirror.storage is not None:
            # For a round in progress.
            self._thread.join(5.0)

    def check(self) -> None:
        """Raise the error that ended the thread, if any.

        Raises:
            StorageError: the storage fails for good.
        """
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        warned = False
        while not self._over.wait(_EVERY):
            try:
                self._mirror.pull_files(STOPPED, PAUSE)
                with self._sending:
                    # Once the run has ended, its folder may be gone, and `push` would delete the records in the storage too.
                    if self._over.is_set():
                        return
                    self._mirror.push(RECORDS, LOG)
                warned = False
            except TransientStorageError as error:
                if not warned:
                    self._log.note(f"{error}; training goes on")
                warned = True
            except Exception as error:
                self._error = error
                return


def describe(record: dict[str, Any]) -> str:
    """Steps, loss, learning rate, development score, speed, memory, exchanged bytes and time left, in one line."""
    total = record["total_steps"]
    # The rows of running text are sentences.
    unit = "sentences" if record["row_kind"] == DOCUMENTS else record["row_kind"]
    shown = {
        "loss": "loss {:.4f}",
        "learning_rate": "lr {:.2e}",
        "score": f"{score_label(record['score_name'])} {{:.2f}}",
        "best_score": "best {:.2f}",
        "rows_per_second": f"{{:.1f}} {unit}/s",
        "mfu": "MFU {:.0f} %",
        "peak_memory_mb": "peak {:,.0f} MB",
        "gathered_mb": "gathers {:.1f} MB/step",
    }
    parts = [f"step {record['step']:>{len(str(total))}}/{total}"]
    parts += [text.format(record[key]) for key, text in shown.items() if record.get(key) is not None]
    if record["seconds_left"] is not None:
        parts.append(f"{duration(record['seconds_left'])} left")
    return "  ".join(parts)


def duration(seconds: float) -> str:
    """1h02m, 3m05s or 12s."""
    whole = round(seconds)
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    if hours:
        return f"{hours}h{minutes:02d}m"
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"
