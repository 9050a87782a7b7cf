"""Reads params.yaml (result keys) and execution.yaml (execution keys) into frozen, typed, validated objects.

There are two files because DVC must track every key that affects the results, and no key that affects only where or how fast they
are computed. Both are read as DVC reads them: with ruamel.yaml, as YAML 1.2. So the pipeline and DVC always see the same values:
`yes` is text, 1e-5 a number, 010 the number 10. Duplicate keys, and values that JSON cannot express, are refused in one line.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from pipeline.config.execution import EXECUTION_FILE, Execution
from pipeline.config.messages import explain
from pipeline.config.objectives import BROKEN
from pipeline.config.params import MODEL_NAME, PARAMS_FILE, Params
from pipeline.config.types import Section
from pipeline.utils.errors import UserError, first_line

DVC_FILE = "dvc.yaml"
S = TypeVar("S", bound=Section)


def load_params(path: str | Path = PARAMS_FILE) -> Params:
    """Read and validate the result keys; `UserError` names the first wrong key."""
    return parse_params(read_yaml_text(Path(path)), str(path))


def parse_params(text: str, where: str) -> Params:
    """Like `load_params`, but from a text; messages call it `where`."""
    return _parse(text, where, Params, {EXECUTION_FILE: Execution})


def load_name(path: str | Path = PARAMS_FILE) -> str:
    """`register.name`; other keys may be wrong, as a failed `dvc exp run --set-param` leaves them. Errors as of `load_params`."""
    section = read_yaml(Path(path)).get("register")
    name = section.get("name") if isinstance(section, dict) else None
    return name if isinstance(name, str) and re.fullmatch(MODEL_NAME, name) else load_params(path).register_.name


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


def dvc_stages(root: Path) -> dict[str, dict[str, Any]]:
    """The description of each stage of the project in `root`, by name.

    Raises:
        UserError: the file cannot be read (`read_yaml`), or does not describe stages.
    """
    stages = read_yaml(root / DVC_FILE).get("stages")
    if not isinstance(stages, dict) or not all(isinstance(stage, dict) for stage in stages.values()):
        raise UserError(f"{DVC_FILE}: not a file of stages; compare the committed file")
    return stages


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file.

    Raises:
        UserError: the file does not exist, cannot be read, or is refused by `parse_yaml`.
    """
    return parse_yaml(read_yaml_text(path), str(path))


def read_yaml_text(path: Path) -> str:
    """The text of a file; raises `UserError` if the file does not exist, cannot be read or is not UTF-8."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; run from the project root") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); put a readable YAML file there") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}: line {line}: not UTF-8; save the file as UTF-8") from None


def parse_yaml(text: str, where: str) -> dict[str, Any]:
    """The mapping in a YAML text; values are null, booleans, finite numbers, text, lists and mappings.

    Args:
        text: one YAML document.
        where: name of the file, for messages.

    Raises:
        UserError: the text is empty, is not YAML or not a mapping, or has values that JSON cannot express.
    """
    reader = YAML(typ="safe", pure=True)
    reader.max_depth = 20
    reader.composer.warn_double_anchors = False
    try:
        value = reader.load(text)
    except MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        # The values of a key that is given twice may be whole sections.
        problem = ", ".join(part for part in (error.context, error.problem) if part).partition(" with value")[0]
        raise UserError(f"{where}: line {line}: not valid YAML: {problem}; correct the line or the one before it") from None
    except (YAMLError, ValueError) as error:
        raise UserError(f"{where}: not valid YAML: {first_line(error)}; remove it") from None
    if not isinstance(value, dict):
        raise UserError(f"{where}: expected sections of keys, found {value!r:.40}; compare the committed file")
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise UserError(f"{where}: {first_line(error)}; put dates in quotes, and write finite numbers") from None
    return value
