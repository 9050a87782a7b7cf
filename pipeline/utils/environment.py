"""Environment variables that libraries read while they are imported. Only entry points set them, never library modules."""

from __future__ import annotations

import os

_DEFAULTS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",
    # By default, Ray repeats a task that it killed for lack of memory without limit. `pipeline.cluster.memory` waits for memory.
    "RAY_task_oom_retries": "0",
    "TOKENIZERS_PARALLELISM": "true",
}


def set_defaults() -> None:
    """Set the variables that are not set yet."""
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
