"""Entry points of the pipeline: `python -m stages.NAME`, run from the project root. Thin: read params, call pipeline, write outs.

This package is what a stage process imports first, so the environment that libraries read while *they* are imported is set here
and nowhere else; the library `pipeline` has no such effects.
"""

import os

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_AUTH_MODE", "token")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
