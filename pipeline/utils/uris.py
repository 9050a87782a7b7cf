"""MLflow's address and checks of it, without importing mlflow, which takes seconds."""

# pyright: strict

from __future__ import annotations

import os
import re
from urllib.parse import unquote, urlsplit

URI_VARIABLE = "MLFLOW_TRACKING_URI"

_SECRET = re.compile("pass|pwd|secret|token|credential|signature|^sig$|(api|access|account|shared)_?key", re.IGNORECASE)
_EXAMPLES = "write http://host:port, sqlite:////absolute/path/mlflow.db or the URI of another database"


def uri_fault(uri: str) -> str | None:
    """Why `uri` cannot be an MLflow tracking URI, and what to write instead; None if it looks right. Contains no password."""
    scheme, mark, rest = uri.partition(":")
    base = scheme.partition("+")[0]
    if uri == "databricks":
        return None
    if uri.split() != [uri] or not mark or not rest.startswith("/"):
        return f"not a URI; {_EXAMPLES}"
    if base == "file":
        return f"MLflow's file store takes no new runs; {_EXAMPLES}"
    if base in ("http", "https"):
        return None if _host(uri) else f"names no host or a wrong port; {_EXAMPLES}"
    if base in ("sqlite", "postgresql", "mysql", "mssql", "databricks"):
        return None
    return f"MLflow knows no scheme {base!r}; {_EXAMPLES}"


def without_password(uri: str) -> str:
    """The URI without user:password@, and with *** in place of a password in its query."""
    scheme, mark, rest = uri.partition("://")
    if not mark:
        return uri
    place, asked, query = rest.partition("?")
    if "@" in query:
        # Which part a ? or @ of a password belongs to is not clear.
        return f"{scheme}://***"
    fields = [
        f"{name}{equals}***" if any(map(_SECRET.search, (unquote(name), unquote(value)))) and equals else f"{name}{equals}{value}"
        for name, equals, value in (field.partition("=") for field in re.split("([&;])", query))
    ]
    return f"{scheme}{mark}{place.rpartition('@')[2]}{asked}{''.join(fields)}"


def uri_of_environment() -> str | None:
    """The environment's MLFLOW_TRACKING_URI, which overrides tracking.uri; None if unset or empty."""
    return os.environ.get(URI_VARIABLE) or None


def _host(uri: str) -> str | None:
    try:
        parts = urlsplit(uri)
        # Reading the port validates it.
        return parts.hostname if parts.port != 0 else None
    except ValueError:
        return None
