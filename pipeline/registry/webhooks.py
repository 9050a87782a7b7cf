"""MLflow's webhooks: signed messages of the server that an alias was moved. Whoever gets one looks at the registry itself.

MLflow signs by HMAC-SHA256 over `ID.TIMESTAMP.BODY` (https://mlflow.org/docs/latest/ml/webhooks/).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from pipeline.registry.alias_log import CHAMPION
from pipeline.utils.errors import UserError
from pipeline.utils.logs import log

SECRET = "GAUSSCSE_WEBHOOK_SECRET"
"""Environment variable with the secret that the webhook has in MLflow."""
_SHORTEST = 16
# Seconds that a message may be old or early, as Standard Webhooks has it. MLflow repeats a message with its first time.
_TOLERANCE = 300
_MOST_BYTES = 65_536
# A client that sends nothing for so many seconds is given up.
_PATIENCE = 10


class WebhookError(Exception):
    """A message that is not signed as it should be; the text says what is wrong."""


@dataclass(frozen=True, slots=True)
class Listening:
    """Where the webhook's messages arrive, and how they are signed."""

    host: str
    port: int
    secret: str


def secret_of_environment() -> str | None:
    """The secret, taken out of the environment, which child processes inherit; None if there is none.

    Raises:
        UserError: it is short.
    """
    secret = os.environ.pop(SECRET, "")
    if 0 < len(secret) < _SHORTEST:
        raise UserError(f"{SECRET}: a secret needs at least {_SHORTEST} characters, such as openssl rand -hex 16 gives")
    return secret or None


def says_champion_moved(headers: Mapping[str, str], body: bytes, name: str, secret: str, now: float | None = None) -> bool:
    """True if a message says that the champion of a model may be another one now.

    Args:
        headers: by names in lower case.
        now: seconds since 1970; default: the clock.

    Raises:
        WebhookError: it is not signed with the secret, or too old.
    """
    delivery, sent, signature = (headers.get(f"x-mlflow-{part}", "") for part in ("delivery-id", "timestamp", "signature"))
    signed = f"{delivery}.{sent}.".encode() + body
    expected = b"v1," + base64.b64encode(hmac.new(secret.encode(), signed, hashlib.sha256).digest())
    if not hmac.compare_digest(signature.encode(), expected):
        raise WebhookError(f"the message is not signed with the secret of {SECRET}")
    if not sent.isdecimal() or abs((time.time() if now is None else now) - int(sent)) > _TOLERANCE:
        raise WebhookError(f"the message is more than {_TOLERANCE} s old, or a clock is wrong")
    try:
        message = json.loads(body)
        data = message["data"]
        return (message["entity"], data["name"], data["alias"]) == ("model_version_alias", name, CHAMPION)
    except (ValueError, KeyError, TypeError):
        # Signed, so from MLflow, but about something else.
        return False


@contextmanager
def webhook_listener(listening: Listening, name: str, moved: Callable[[], None]) -> Iterator[None]:
    """Take the webhook's messages while the block runs, and call `moved` for each that says so of a model's champion."""

    class Handler(BaseHTTPRequestHandler):
        timeout = _PATIENCE

        def do_POST(self) -> None:
            length = self.headers.get("content-length", "")
            if not length.isdecimal() or len(length) > 9 or int(length) > _MOST_BYTES:
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
