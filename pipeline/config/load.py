"""Reads params.yaml (result keys) and execution.yaml (execution keys) into frozen, typed, validated objects.

There are two files because DVC must track every key that affects the results, and no key that affects only where or how fast they
are computed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from pipeline.config.execution import EXECUTION_FILE, Execution
from pipeline.config.messages import explain
from pipeline.config.objectives import BROKEN
from pipeline.config.params import PARAMS_FILE, Params
from pipeline.config.types import Section
from pipeline.config.yaml_io import parse_yaml, read_yaml_text
from pipeline.utils.errors import UserError

S = TypeVar("S", bound=Section)


def load_params(path: str | Path = PARAMS_FILE) -> Params:
    """Read and validate the result keys; `UserError` names the first wrong key."""
    return parse_params(read_yaml_text(Path(path)), str(path))


def parse_params(text: str, where: str) -> Params:
    """Like `load_params`, but from a text; messages call it `where`."""
    return _parse(text, where, Params, {EXECUTION_FILE: Execution})


def load_execution(path: str | Path = EXECUTION_FILE) -> Execution:
    """Read and validate the execution keys; `UserError` names the first wrong key."""
    return _parse(read_yaml_text(Path(path)), str(path), Execution, {PARAMS_FILE: Params})


def _parse(text: str, where: str, kind: type[S], others: dict[str, type[BaseModel]]) -> S:
    raw: dict[str, Any] = parse_yaml(text, where)
    if BROKEN:
        raise UserError(BROKEN[0])
    try:
        # Pydantic's strict mode accepts a list for a tuple only in JSON.
        return kind.model_validate_json(json.dumps(raw))
    except ValidationError as error:
        raise UserError(f"{where}: {explain(error, kind, others)}") from None
