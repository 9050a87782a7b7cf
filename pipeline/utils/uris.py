"""MLflow's address and checks of it, without importing mlflow, which takes seconds."""

# pyright: strict

from __future__ import annotations

import os
from urllib.parse import urlsplit

URI_VARIABLE = "MLFLOW_TRACKING_URI"

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
    """The URI without user:password@."""
    scheme, mark, rest = uri.partition("://")
    return f"{scheme}{mark}{rest.rpartition('@')[2]}" if mark else uri


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
