"""Progress of a training run: one line per report, for people (progress.log) and for programs (progress.jsonl).

The first worker writes both files into the trial's folder; any process that watches the run reads them there, on any machine.
"""

from __future__ import annotations

import datetime
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.data.token_store import DOCUMENTS
from pipeline.trials.trial import score_label

if TYPE_CHECKING:
    from pipeline.training.trainer import Progress

LOG = "progress.log"
RECORDS = "progress.jsonl"


class ProgressLog:
    """Callback of the training loop. It appends, so a resumed run continues the same files."""

    def __init__(self, name: str, folder: Path) -> None:
        self._name, self._folder = name, folder

    def __call__(self, progress: Progress) -> None:
        record = asdict(progress)
        now = datetime.datetime.now().isoformat(timespec="seconds")
        _append(self._folder / LOG, f"{now}  {self._name}  {describe(record)}")
        _append(self._folder / RECORDS, json.dumps(record))

    def note(self, text: str) -> None:
        """Record an event between two reports."""
        now = datetime.datetime.now().isoformat(timespec="seconds")
        _append(self._folder / LOG, f"{now}  {self._name}  {text}")
        _append(self._folder / RECORDS, json.dumps({"note": text}))


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


def describe(record: dict[str, Any]) -> str:
    """Steps, loss, learning rate, development score, speed, memory, exchanged bytes and time left, in one line."""
    total = record["total_steps"]
    parts = [f"step {record['step']:>{len(str(total))}}/{total}"]
    if record["loss"] is not None:
        parts.append(f"loss {record['loss']:.4f}")
    parts.append(f"lr {record['learning_rate']:.2e}")
    if record["score"] is not None:
        parts.append(f"{score_label(record['score_name'])} {record['score']:.2f}")
    if record["best_score"] is not None:
        parts.append(f"best {record['best_score']:.2f}")
    if record["rows_per_second"] is not None:
        # The rows of running text are sentences.
        unit = "sentences" if record["row_kind"] == DOCUMENTS else record["row_kind"]
        parts.append(f"{record['rows_per_second']:.1f} {unit}/s")
    if record.get("mfu") is not None:
        parts.append(f"MFU {record['mfu']:.0f} %")
    if record.get("peak_memory_mb") is not None:
        parts.append(f"peak {record['peak_memory_mb']:,.0f} MB")
    if record.get("gathered_mb") is not None:
        parts.append(f"gathers {record['gathered_mb']:.1f} MB/step")
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


def _append(file: Path, line: str) -> None:
    with file.open("a", encoding="utf-8") as out:
        out.write(line + "\n")
