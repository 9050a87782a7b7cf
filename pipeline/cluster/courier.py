"""A thread that fetches the notes others leave in a trial's folder of the storage, and sends the records of its progress.

Only where the storage is not a folder (s3://…). The training thread looks at the worker's own folder and never waits for the
storage between two checkpoints.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import TracebackType

from pipeline.errors import TransientStorageError
from pipeline.mirror import Mirror

# Seconds between two looks.
_EVERY = 2.0
# Seconds that the end of a run waits for a look that has begun.
_PATIENCE = 5.0


class Courier:
    """Brings notes and sends records every two seconds while a block runs.

    A temporary storage error is noted once, and the next look tries again. `check` raises any other error.

    Args:
        notes: names of files that others write.
        records: names of files that this worker writes.
        note: called in the thread with a line for people.
    """

    def __init__(self, mirror: Mirror, notes: Sequence[str], records: Sequence[str], note: Callable[[str], None]) -> None:
        # Its own mirror: what a mirror remembers belongs to one thread.
        self._mirror = Mirror(mirror.folder, mirror.storage, mirror.name)
        self._notes, self._records, self._note = notes, records, note
        self._over = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.sending = threading.Lock()
        """Held while records are sent. Hold it to send them elsewhere, so that older ones never replace newer ones."""

    def __enter__(self) -> Courier:
        if self._mirror.storage is not None:
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._over.set()
        if self._mirror.storage is not None:
            self._thread.join(_PATIENCE)

    def check(self) -> None:
        """Raise what ended the thread.

        Raises:
            StorageError: the storage refuses for good.
        """
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        said = False
        while not self._over.wait(_EVERY):
            try:
                self._mirror.pull(*self._notes)
                with self.sending:
                    # The folder of a run that has ended is gone, and `push` would remove the records there too.
                    if self._over.is_set():
                        return
                    self._mirror.push(*self._records)
                said = False
            except TransientStorageError as error:
                if not said:
                    self._note(f"{error}; training goes on")
                said = True
            except Exception as error:
                self._error = error
                return
