"""params.yaml (result keys) and execution.yaml (execution keys) → frozen, typed, validated objects.

The two files are kept apart because DVC must see every key that changes what comes out and no key that only changes where or
how fast it is computed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from pipeline.errors import UserError
from pipeline.execution import EXECUTION_FILE, Execution
from pipeline.key_errors import explain
from pipeline.params import PARAMS_FILE, Params, Section
from pipeline.strict_yaml import parse_yaml, read_yaml_text

S = TypeVar("S", bound=Section)


def load_params(path: str | Path = PARAMS_FILE) -> Params:
    """Read and validate the result keys; `UserError` names the first wrong key."""
    return parse_params(read_yaml_text(Path(path)), str(path))


def parse_params(text: str, where: str) -> Params:
    """`load_params` from a text; `where` names it in messages."""
    return _parse(text, where, Params, {EXECUTION_FILE: Execution})


def load_execution(path: str | Path = EXECUTION_FILE) -> Execution:
    """Read and validate the execution keys; `UserError` names the first wrong key."""
    return _parse(read_yaml_text(Path(path)), str(path), Execution, {PARAMS_FILE: Params})


def _parse(text: str, where: str, kind: type[S], others: dict[str, type[BaseModel]]) -> S:
    raw: dict[str, Any] = parse_yaml(text, where)
    try:
        # Through JSON because that is where pydantic's strict mode takes a list for a tuple.
        return kind.model_validate_json(json.dumps(raw))
    except ValidationError as error:
        raise UserError(f"{where}: {explain(error, kind, others)}") from None
