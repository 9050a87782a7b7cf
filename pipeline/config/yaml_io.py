"""Reads YAML files that people edit, as DVC reads them: with ruamel.yaml, as YAML 1.2.

So the pipeline and DVC always see the same values: `yes` is text, 1e-5 a number, 010 the number 10. Refused in one line is what a
parameter file does not need, because it is a mistake: duplicate keys, aliases of lists and mappings, dates and other types, NaN.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from pipeline.utils.errors import UserError, first_line

MAX_DEPTH = 20

_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")


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
    """The mapping in a YAML text: keys are text; values are null, booleans, finite numbers, text, lists and mappings.

    Args:
        text: one YAML document.
        where: name of the file, for messages.

    Raises:
        UserError: the text is empty, is not YAML or not a mapping, or contains something refused (see the module docstring).
    """
    reader = YAML(typ="safe", pure=True)
    reader.max_depth = MAX_DEPTH
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
    fault = _fault(value, "", set())
    if fault is not None:
        raise UserError(f"{where}: {fault}")
    return value


def _fault(value: object, key: str, seen: set[int]) -> str | None:
    """The first part of a value that is refused, and the remedy; `seen` has the lists and mappings before it."""
    if isinstance(value, dict | list):
        # Nested aliases stand for more items than memory has.
        if id(value) in seen:
            return f"{key}: an alias of another key; write its values out"
        seen.add(id(value))
        for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
            path = f"{key}.{name}".removeprefix(".")
            if isinstance(value, dict) and not isinstance(name, str):
                return f"{path}: the key {name} is not text; put it in quotes"
            if (fault := _fault(inner, path, seen)) is not None:
                return fault
    elif isinstance(value, float) and not math.isfinite(value):
        return f"{key}: got {value}: not a finite number; write one"
    elif value is not None and not isinstance(value, str | int | float):
        return f"{key}: got {value}: YAML reads this as a {type(value).__name__}; put it in quotes"
    elif bad := _UNPRINTABLE.search(f"{key}{value}"):
        return f"{ascii(key)[1:-1]}: holds the unprintable character U+{ord(bad[0]):04X}; remove it"
    return None
