"""Runs a command for each new champion: at a poll of the registry, or as soon as MLflow's webhook says so."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NoReturn

from pipeline.registry.alias_log import CHAMPION
from pipeline.registry.loading import version_of
from pipeline.registry.versions import quiet
from pipeline.registry.webhooks import WebhookError, says_champion_moved
from pipeline.tracking.server import impatient
from pipeline.utils.errors import UserError
from pipeline.utils.logs import log

VERSION = "{version}"
"""Stands for the champion's number in the words of a command."""
# Seconds after a failure, doubled with each further one up to the longest.
_RETRY, _LONGEST_RETRY = 5.0, 300.0
_MOST_BYTES = 65_536
# A client that sends nothing for so many seconds is given up.
_PATIENCE = 10


def retry_pause(failures: int) -> float:
    """Seconds to wait after so many failures in a row."""
    # The power has a limit of its own: a model that fails for days would reach numbers that no float has.
    return 0.0 if failures < 1 else min(_RETRY * 2 ** min(failures - 1, 10), _LONGEST_RETRY)


@dataclass(frozen=True, slots=True)
class Listening:
    """Where the webhook's messages arrive, and how they are signed."""

    host: str
    port: int
    secret: str


def follow(name: str, uri: str, command: Sequence[str], every: float, listening: Listening | None = None) -> NoReturn:
    """Run a command for the champion and for each later one, one run at a time, without end.

    A command that fails is run again, unless there is a newer champion by then; champions that came and went during a run are
    passed over. After a restart the command runs for the present champion again, so running it twice must do no harm.

    Args:
        uri: the MLflow server.
        command: its words; `{version}` in them becomes the champion's number.
        every: seconds between two looks at the registry.

    Raises:
        UserError: the command cannot be started, or the port is taken.
    """
    moved = threading.Event()
    done: int | None = None
    failed: int | None = None
    failures, retry_at, reachable = 0, 0.0, True
    with _listener(listening, name, moved.set):
        while True:
            moved.clear()
            try:
                # Quiet, because MLflow logs each retry.
                with impatient(), quiet():
                    number = int(version_of(f"models:/{name}@{CHAMPION}", uri).version)
            except UserError as error:
                if reachable:
                    log.warning(f"follow: {error}; looking again")
                reachable = False
                moved.wait(min(every, _RETRY))
                continue
            reachable = True
            if number != failed:
                failed, failures, retry_at = None, 0, 0.0
            if number != done and time.monotonic() >= retry_at:
                # A run that fails may have undone the one before.
                done = None
                if (pause := _run_for(name, number, command, failures)) is None:
                    done = number
                    # The alias may have moved during the run.
                    continue
                failed, failures, retry_at = number, failures + 1, time.monotonic() + pause
            moved.wait(every if failed is None else min(every, max(0.0, retry_at - time.monotonic())))


def _run_for(name: str, number: int, command: Sequence[str], failures: int) -> float | None:
    """Run the command for a version; None if it succeeded, else the seconds until it is tried again."""
    start = time.monotonic()
    words = [word.replace(VERSION, str(number)) for word in command]
    log.info(f"follow: {name} version {number} is champion; running {words[0]}")
    status = _run(words)
    took = f"after {time.monotonic() - start:.1f} s"
    if status == 0:
        log.info(f"follow: {words[0]} is done for version {number} {took}")
        return None
    pause = retry_pause(failures + 1)
    log.error(f"follow: {words[0]} failed for version {number} with exit code {status} {took}; again in {pause:g} s")
    return pause


def _run(words: Sequence[str]) -> int:
    try:
        process = subprocess.Popen(words)
    except OSError as error:
        raise UserError(f"{words[0]}: cannot be started ({error.strerror or error})") from None
    try:
        return process.wait()
    except BaseException:
        # Ctrl-C or SIGTERM: it ends with us.
        process.terminate()
        process.wait()
        raise


@contextmanager
def _listener(listening: Listening | None, name: str, moved: Callable[[], None]) -> Iterator[None]:
    if listening is None:
        yield
        return

    class Handler(BaseHTTPRequestHandler):
        timeout = _PATIENCE

        def do_POST(self) -> None:
            length = self.headers.get("content-length", "")
            if not length.isdecimal() or len(length) > 18 or int(length) > _MOST_BYTES:
                self.send_error(413)
                return
            headers = {key.lower(): value for key, value in self.headers.items()}
            try:
                if says_champion_moved(headers, self.rfile.read(int(length)), name, listening.secret):
                    moved()
            except WebhookError as error:
                log.warning(f"follow: from {self.client_address[0]}: {error}")
                self.send_error(401)
                return
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Requests are not logged."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """The default prints a traceback when a client hangs up."""
            error = sys.exception()
            log.warning(f"follow: a call of the webhook failed: {type(error).__name__}: {error}")

    try:
        server = Server((listening.host, listening.port), Handler)
    except OSError as error:
        raise UserError(
            f"--listen {listening.host}:{listening.port}: cannot be opened ({error.strerror or error}); is it taken?"
        ) from None
    with server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        log.info(f"follow: MLflow's webhook may call http://{listening.host}:{server.server_address[1]}")
        try:
            yield
        finally:
            server.shutdown()
