"""MLflow's webhooks: signed messages of the server that an alias was moved. The receiver looks at the registry itself.

MLflow signs by HMAC-SHA256 over `ID.TIMESTAMP.BODY` (https://mlflow.org/docs/latest/ml/webhooks/).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import time
from collections.abc import Mapping

from pipeline.registry.alias_log import CHAMPION
from pipeline.utils.errors import UserError

SECRET = "GAUSSCSE_WEBHOOK_SECRET"
"""Environment variable with the secret that the webhook has in MLflow."""
_SHORTEST = 16
# Seconds that a message may be old or early, as Standard Webhooks has it. MLflow repeats a message with its first time.
_TOLERANCE = 300


class WebhookError(Exception):
    """A message that is not signed as it should be; the text says what is wrong."""


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
