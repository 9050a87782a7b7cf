"""A thread that downloads notes for a trial from a remote storage and uploads the trial's progress records.

Used only if the storage is not a folder (s3://…). The training thread reads only the worker's local folder, so it never waits for
the storage between two checkpoints.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import TracebackType

from pipeline.storage.sync import Mirror
from pipeline.utils.errors import TransientStorageError

# Seconds between two rounds of downloads and uploads.
_EVERY = 2.0
# Seconds that the end of a run waits for a round in progress.
_PATIENCE = 5.0


class BackgroundSync:
    """Downloads notes and uploads records every two seconds while its block runs.

    A temporary storage error is noted once and retried in the next round. `check` raises any other error.

    Args:
        notes: names of files that others write.
        records: names of files that this worker writes.
        note: called in the thread with a line for people.
    """

    def __init__(self, mirror: Mirror, notes: Sequence[str], records: Sequence[str], note: Callable[[str], None]) -> None:
        self._mirror = mirror.for_another_thread()
        self._notes, self._records, self._note = notes, records, note
        self._over = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.sending = threading.Lock()
        """Held while records are uploaded. Hold it to upload them elsewhere, so that older ones never replace newer ones."""

    def __enter__(self) -> BackgroundSync:
        if self._mirror.storage is not None:
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._over.set()
        if self._mirror.storage is not None:
            self._thread.join(_PATIENCE)

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
                self._mirror.pull(*self._notes)
                with self.sending:
                    # Once the run has ended, its folder may be gone, and `push` would delete the records in the storage too.
                    if self._over.is_set():
                        return
                    self._mirror.push(*self._records)
                warned = False
            except TransientStorageError as error:
                if not warned:
                    self._note(f"{error}; training goes on")
                warned = True
            except Exception as error:
                self._error = error
                return
