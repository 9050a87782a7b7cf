"""A trial's folder: locks, progress, checkpoints, outcome, failure, and its copy in a remote storage. Only this module opens it.

    trial.json       the outcome of a finished run (`Outcome`, `Timing`)
    best/            the encoder with the highest development score, once the trial is finished
    latest/          the checkpoint to resume from until then, including the best encoder so far
    previous/        the checkpoint before it, used if the latest is damaged
    progress.log     one line per report for people; progress.jsonl has the same for programs
    failure.json     why the trial cannot be trained
    stopped.json     why early stopping ended it
    pause            asks the workers to write a checkpoint and exit
    driver.lock, writer.lock, writer

If the storage is a folder, all processes share this one. If it is remote (s3://…), each process has its own local copy: methods
that write also upload, and methods that read download first only if they say so (see `pipeline.storage.sync`).

A search is one run over a set of trials; its random name distinguishes it from other pipelines on the same storage.
"""

from __future__ import annotations

import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

from pipeline.models.model_dir import content_digest
from pipeline.storage.sync import Mirror
from pipeline.trials.locks import DRIVER_LOCK, WRITER_LOCK, held, tidy
from pipeline.trials.progress_log import LOG, RECORDS, BackgroundSync, ProgressLog, RecordReader
from pipeline.trials.trial import FAILURE, LATEST, OUTCOME, PAUSE, PREVIOUS, STOPPED, EarlyStopping, Outcome, Timing, Trial
from pipeline.utils.atomic_io import flush, json_text, read_json, write_directory, write_json
from pipeline.utils.errors import StorageError, UserError

# The encoder with the highest development score. Until the trial is finished, each checkpoint holds its best encoder so far.
BEST = "best"
# Names the search of the worker that writes, for storages without locks.
WRITER = "writer"


class TrialFolder:
    """The folder of one trial, for use by one thread of a process at a time.

    While a thread writes and sends a checkpoint, the training thread only writes reports and asks whether to pause or to stop.

    Attributes:
        trial: the trial that the folder belongs to.
        path: the folder on this machine.
    """

    def __init__(self, trial: Trial, mirror: Mirror) -> None:
        self.trial, self._mirror = trial, mirror
        self.path = mirror.folder
        self.log = ProgressLog(trial.name, mirror.folder)
        """Writes reports and notes locally. They are uploaded with the next checkpoint, or in seconds by `background_sync`."""
        self._pulled = float("-inf")
        self._sending = threading.Lock()
        """Held while reports are uploaded, so that `background_sync` never replaces newer ones by older ones."""

    def __reduce__(self) -> tuple[type[TrialFolder], tuple[Trial, Mirror]]:
        """Tune pickles the scheduler of a search, which has the folders; a copy has a lock of its own."""
        return TrialFolder, (self.trial, self._mirror)

    def for_another_thread(self) -> TrialFolder:
        """The same folder for another thread of this process."""
        return TrialFolder(self.trial, self._mirror.for_another_thread())

    # The trial's result.

    def refresh(self) -> None:
        """Download what others have written, but no model: of a grid of a thousand trials, few models are used (`model`)."""
        self._mirror.pull_files(OUTCOME, FAILURE, STOPPED, RECORDS)

    def outcome(self) -> Outcome | None:
        """The outcome; None unless the folder holds a finished, undamaged run of exactly this trial.

        A model in a remote storage only has to be there whole; `model` checks its content.
        """
        with suppress(UserError):
            return self._outcome()
        return None

    def fault(self) -> str | None:
        """What is wrong with the outcome in the folder; None if it is sound or missing."""
        try:
            self._outcome()
        except UserError as error:
            return str(error)
        return None

    def _outcome(self) -> Outcome | None:
        file, best = self.path / OUTCOME, self.path / BEST
        if not file.is_file():
            return None
        try:
            outcome = Outcome(**read_json(file)["outcome"])
        except (TypeError, KeyError, ValueError):
            raise UserError(f"{file}: another version of this program wrote it") from None
        if outcome.digest != self.trial.digest:
            raise UserError(f"{file}: it belongs to another trial ({outcome.digest})")
        if self._mirror.storage is not None:
            if (weights := self._weights()) is None or not self._mirror.whole(BEST, weights):
                raise UserError(f"{self._mirror.name}/{BEST}: the storage does not have the model that {OUTCOME} names")
        elif content_digest(best) != outcome.weights:
            raise UserError(f"{best}: its weights are not those that {OUTCOME} names; they belong to another run")
        return outcome

    def _weights(self) -> str | None:
        """The weights digest that the outcome names; None if it names none."""
        try:
            named = read_json(self.path / OUTCOME)["outcome"]["weights"]
        except (UserError, TypeError, KeyError):
            return None
        # The digest becomes part of a file name.
        return named if isinstance(named, str) and re.fullmatch("[0-9a-f]{64}", named) else None

    def failure(self) -> str | None:
        """Why the trial cannot be trained; None if no failure is recorded."""
        return str(read_json(self.path / FAILURE)["reason"]) if (self.path / FAILURE).is_file() else None

    def stop(self, rule: EarlyStopping | None) -> str | None:
        """Why the trial was stopped early; None unless it was stopped under exactly this rule."""
        if rule is None or not (self.path / STOPPED).is_file():
            return None
        try:
            note = read_json(self.path / STOPPED)
            return str(note["reason"]) if note["early_stopping"] == asdict(rule) else None
        except (UserError, TypeError, KeyError):
            # Written in another format: treat the trial as not stopped.
            return None

    def timing(self) -> Timing:
        """How long the finished trial took, and on what."""
        return Timing(**read_json(self.path / OUTCOME)["timing"])

    @property
    def model(self) -> Path:
        """The model folder of the finished trial; from a remote storage, the model is downloaded if it is not here yet.

        Raises:
            UserError: the model is missing or damaged there; its outcome then does not count any more.
        """
        best, weights = self.path / BEST, self._weights()
        if weights is not None and (faults := self._mirror.pull(BEST, version=weights)):
            # Without its pointer.
            self._mirror.push(BEST, version=weights)
            raise UserError(f"{self.trial.name}: {faults[0]}; run the command again to train this trial again")
        return best

    def note_failure(self, reason: str) -> None:
        """Record that the trial failed for good, unless another process has already recorded a reason."""
        self._mirror.pull_files(FAILURE)
        if self.failure() is None:
            self._mirror.write(FAILURE, json_text({"reason": reason}))

    def note_stop(self, reason: str, rule: EarlyStopping) -> None:
        """Record that early stopping under this rule ends the trial."""
        self._mirror.write(STOPPED, json_text({"reason": reason, "early_stopping": asdict(rule)}))

    def forget_stop(self) -> None:
        """Remove the note of a stop under another rule, so that the trial goes on."""
        (self.path / STOPPED).unlink(missing_ok=True)
        self._mirror.push(STOPPED)

    # Progress.

    def records(self) -> RecordReader:
        """A new reader of the progress reports."""
        return RecordReader(self.path)

    def pull_notes(self) -> None:
        """Download the reports and any note of a failure or stop, at most every two seconds."""
        # Callers poll many times a second.
        if time.monotonic() - self._pulled >= 2.0:
            self._pulled = time.monotonic()
            self._mirror.pull_files(RECORDS, FAILURE, STOPPED)

    def note(self, text: str) -> None:
        """Write a note between two reports and upload it at once."""
        self.log.note(text)
        self._mirror.push(RECORDS, LOG)

    # Locks and requests to the workers.

    def claim(self, rule: EarlyStopping | None, patience: float) -> bool:
        """Make the trial ready to run: remove notes of earlier failures, stops that do not count under this rule, and records of
        steps that were lost.

        Returns:
            False, with nothing changed, if another driver holds the trial for longer than `patience` seconds.
        """
        with held(self.path / DRIVER_LOCK, patience) as mine:
            if mine:
                # Without a checkpoint to resume from, the steps that an earlier attempt recorded will be repeated.
                lost = [] if self._mirror.has(LATEST, PREVIOUS) else [RECORDS]
                for note in (FAILURE, PAUSE, WRITER, *lost, *([] if self.stop(rule) else [STOPPED])):
                    (self.path / note).unlink(missing_ok=True)
                self._mirror.push(FAILURE, PAUSE, WRITER, RECORDS, STOPPED)
            return mine

    @contextmanager
    def driven(self, search: str) -> Iterator[None]:
        """Hold the driver's lock on behalf of a search."""
        with held(self.path / DRIVER_LOCK):
            # Writing to the file does not affect the lock; the content only names the holder.
            (self.path / DRIVER_LOCK).write_text(search, encoding="utf-8")
            yield

    @contextmanager
    def written(self, search: str, patience: float, waits: Callable[[], None] = lambda: None) -> Iterator[bool]:
        """Hold the writer's lock on behalf of a search; otherwise like `held`. A remote storage gets the name of the search."""
        remote = self._mirror.storage is not None
        with held(self.path / WRITER_LOCK, patience, waits) as mine:
            if remote:
                (self.path / WRITER).write_text(search, encoding="utf-8")
                self._mirror.push(WRITER)
            try:
                yield mine
            except StorageError:
                # Retrying for another minute would not help. The note stays, as it does after a kill.
                remote = False
                raise
            finally:
                if remote:
                    (self.path / WRITER).unlink()
                    self._mirror.push(WRITER)

    def ask_to_pause(self, search: str) -> None:
        """Ask the workers of a search to write a checkpoint and exit."""
        self._mirror.write(PAUSE, search)

    def asked_to_pause(self, search: str) -> bool:
        """Whether the local folder asks this of the workers of this search. (A note left by an earlier search does not count.)"""
        return _text(self.path / PAUSE) == search

    def trained_for(self, search: str) -> bool:
        """Whether workers of this search train the trial at the moment."""
        if self._mirror.storage is None:
            if _text(self.path / DRIVER_LOCK) != search:
                return False
            with held(self.path / WRITER_LOCK, 0.0) as free:
                return not free
        self._mirror.pull_files(WRITER)
        return _text(self.path / WRITER) == search

    def asked_to_stop(self) -> bool:
        """Whether the local folder says that early stopping ended the trial."""
        return (self.path / STOPPED).is_file()

    def background_sync(self) -> BackgroundSync:
        """While its block runs, a thread downloads notes and uploads reports every two seconds if the storage is remote."""
        return BackgroundSync(self._mirror, self.log, self._sending)

    # Checkpoints, written by the first worker.

    @property
    def checkpoint(self) -> Path | None:
        """The folder of this trial's latest checkpoint; None if there is none.

        Raises:
            UserError: its state cannot be read.
        """
        latest = self.path / LATEST
        return latest if latest.is_dir() and read_json(latest / "state.json").get("digest") == self.trial.digest else None

    def open_checkpoint(self) -> list[str]:
        """Download the checkpoints and clean up after a kill; returns what is wrong with the checkpoints that were discarded."""
        self._mirror.pull_files(LOG)
        faults = [f"{fault}; going on without it" for fault in self._mirror.pull(PREVIOUS, LATEST)]
        if (damage := tidy(self.path)) is not None:
            faults.append(f"{damage}; going on from the checkpoint before it")
        return faults

    def hand_on_checkpoint(self) -> str:
        """The latest checkpoint's digest, for `take_checkpoint` in the other workers; empty if all share this folder."""
        return self._mirror.hand_on(LATEST)

    def take_checkpoint(self, digest: str) -> None:
        """Download the checkpoint that the first worker has handed on."""
        self._mirror.take(LATEST, digest)

    @contextmanager
    def new_checkpoint(self) -> Iterator[Path]:
        """A folder to write a checkpoint into. If the block succeeds, it becomes the latest and the old latest the previous."""
        with write_directory(self.path / LATEST, keep=self.path / PREVIOUS) as new:
            yield new
            flush(*new.rglob("*"), new)
        flush(self.path)

    def best_for(self, new: Path) -> Path:
        """Where to write the best encoder so far inside a checkpoint."""
        return new / BEST

    def keep_best(self, new: Path) -> None:
        """Copy the best encoder of the latest checkpoint into a new one."""
        shutil.copytree(self.path / LATEST / BEST, new / BEST)

    def send_checkpoint(self) -> None:
        """Upload the checkpoints and the reports."""
        # The previous checkpoint goes first: the storage still has it as the latest. The background upload goes on meanwhile.
        self._mirror.push(PREVIOUS, LATEST)
        with self._sending:
            self._mirror.push(RECORDS, LOG)

    # Finishing.

    def publish_model(self) -> str:
        """Copy the latest checkpoint's best encoder to the finished model's place; returns the digest of its weights."""
        # Copied, not moved: a run killed before trial.json is written resumes from the checkpoint.
        with write_directory(self.path / BEST) as best:
            shutil.copytree(self.path / LATEST / BEST, best, dirs_exist_ok=True)
        return content_digest(self.path / BEST)

    def finish(self, outcome: Outcome, took: Timing) -> None:
        """Write the outcome and remove the checkpoints, here and in the storage."""
        write_json(self.path / OUTCOME, {"outcome": asdict(outcome), "timing": asdict(took)})
        for name in (LATEST, PREVIOUS):
            shutil.rmtree(self.path / name, ignore_errors=True)
        with self._sending:
            self.show()

    def show(self) -> None:
        """Upload the finished trial: first the model, then the outcome that names it; then remove the uploaded checkpoints."""
        if (weights := self._weights()) is not None:
            self._mirror.push(BEST, version=weights)
        self._mirror.push(RECORDS, LOG, OUTCOME, PREVIOUS, LATEST)


def _text(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
