"""The user who runs this process."""

from __future__ import annotations

import getpass
import platform


def user_name() -> str:
    """The user's name; "unknown" in a container whose user has none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


def user_at_host() -> str:
    """The user's name and this machine's."""
    return f"{user_name()}@{platform.node()}"
