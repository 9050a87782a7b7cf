"""Follows the champion of a registered model: for `gausscse serve`, and for `gausscse registry follow`, which runs a command."""

from __future__ import annotations

import math
import subprocess
import time
from collections.abc import Sequence
from typing import NoReturn

from mlflow.entities.model_registry import ModelVersion

from pipeline.registry.alias_log import CHAMPION
from pipeline.registry.fetching import version_of
from pipeline.tracking.server import impatient
from pipeline.utils.errors import UserError
from pipeline.utils.logs import log

VERSION = "{version}"
"""Stands for the champion's number in the words of a command."""
POLL = 2.0
"""Seconds between two looks at the registry, at most, while it does not answer or the champion has failed."""
# Seconds after a failure, doubled with each further one up to the longest.
_RETRY, _LONGEST_RETRY = 5.0, 300.0


class ChampionWatch:
    """Looks which version is champion, and says when one that failed is tried again."""

    def __init__(self, name: str, uri: str, every: float) -> None:
        """Args:
        name: the registered model.
        uri: the MLflow server.
        every: seconds between two looks at the registry while all is well.
        """
        self.name, self.uri, self.every = name, uri, every
        self.error: str | None = None
        """Why the registry gave no champion at the last look; None if it did."""
        self._failed: int | None = None
        self._failures = 0
        self._retry_at = 0.0

    def now(self) -> ModelVersion:
        """The champion.

        Raises:
            NoSuchVersion: there is none.
            UserError: the registry does not answer.
        """
        with impatient():
            return version_of(f"models:/{self.name}@{CHAMPION}", self.uri)

    def look(self) -> ModelVersion | None:
        """The champion; None if the registry gives none, of which the first in a row is logged."""
        try:
            version = self.now()
        except UserError as error:
            if self.error is None:
                log.warning(f"{error}; looking again")
            self.error = str(error)
            return None
        self.error = None
        if int(version.version) != self._failed:
            self.succeeded()
        return version

    def due(self, number: int) -> bool:
        """True if a version may be tried: it has not failed, or its pause is over."""
        return number != self._failed or time.monotonic() >= self._retry_at

    def failed(self, number: int, *, for_good: bool = False) -> float:
        """Note that a version failed; returns the seconds until it is tried again, which is never if it failed `for_good`."""
        self._failed, self._failures = number, self._failures + 1
        # The power has a limit of its own: a model that fails for days would reach numbers that no float has.
        pause = math.inf if for_good else min(_RETRY * 2 ** min(self._failures - 1, 10), _LONGEST_RETRY)
        self._retry_at = time.monotonic() + pause
        return pause

    def succeeded(self) -> None:
        """Forget all failures."""
        self._failed, self._failures = None, 0

    @property
    def pause(self) -> float:
        """Seconds until the next look."""
        return self.every if self.error is None and self._failed is None else min(self.every, POLL)


def follow(name: str, uri: str, command: Sequence[str], every: float) -> NoReturn:
    """Run a command for the champion and for each later one, one run at a time, without end.

    A command that fails is run again, unless there is a newer champion by then; champions that came and went during a run are
    passed over. After a restart the command runs for the present champion again, so running it twice must do no harm.

    Args:
        uri: the MLflow server.
        command: its words; `{version}` in them becomes the champion's number.
        every: seconds between two looks at the registry.

    Raises:
        UserError: the command cannot be started.
    """
    watch = ChampionWatch(name, uri, every)
    done: int | None = None
    while True:
        version = watch.look()
        number = int(version.version) if version is not None else done
        if number is None or number == done or not watch.due(number):
            time.sleep(watch.pause)
        else:
            # A run that fails may have undone the one before.
            done = number if _succeeds(number, command, watch) else None


def _succeeds(number: int, command: Sequence[str], watch: ChampionWatch) -> bool:
    """Run the command for a version; a failure is noted."""
    start = time.monotonic()
    words = [word.replace(VERSION, str(number)) for word in command]
    log.info(f"follow: {watch.name} version {number} is champion; running {words[0]}")
    try:
        process = subprocess.Popen(words)
    except OSError as error:
        raise UserError(f"{words[0]}: cannot be started ({error.strerror or error})") from None
    try:
        status = process.wait()
    except BaseException:
        # Ctrl-C or SIGTERM: it ends with us.
        process.terminate()
        process.wait()
        raise
    took = f"after {time.monotonic() - start:.1f} s"
    if status == 0:
        watch.succeeded()
        log.info(f"follow: {words[0]} is done for version {number} {took}")
        return True
    pause = watch.failed(number)
    log.error(f"follow: {words[0]} failed for version {number} with exit code {status} {took}; again in {pause:g} s")
    return False
