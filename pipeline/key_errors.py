"""What pydantic found wrong with a parameter file → one line that names the key, the value and the remedy."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from pipeline.uris import without_password

# What a value should have been, by the type of pydantic's error.
_WANTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "string_type": "text",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "a mapping of names",
    "model_type": "a section of keys",
}
_NUMBERS = ("a number", "a whole number")
# Why a bound or a form is as it is, and what to write; list positions left out of the key.
_HINTS = {
    "tune.batch_sizes": "the negatives of a row are the other rows of its batch",
    "tune.learning_rates": "did you mean 1.0e-4?",
    "model.revision": "write the full commit (40 hexadecimal digits), since branches and tags move; "
    "`git ls-remote https://huggingface.co/NAME` shows it",
    "cluster.address": "write http://host:port (of the dashboard, 8265 by default), host:port (Ray's own, 6379), "
    '"auto", or null for a private cluster',
    "cluster.interface": "write the name that `ip link` shows, without spaces, the same on every node",
    "register.name": "use letters, digits, - _ and .",
}


class WrongKey(ValueError):
    """Raised by a validator that looks at several keys of a section, to say which one is wrong."""

    def __init__(self, key: str, value: object, message: str) -> None:
        super().__init__(message)
        self.key, self.value = key, value


class Needless(WrongKey):
    """The key asks for something that another key makes meaningless."""


def explain(error: ValidationError, kind: type[BaseModel], others: Mapping[str, type[BaseModel]]) -> str:
    """The first fault in words, and how many more there are.

    Args:
        error: of validating a file as `kind`.
        kind: root of the file's sections.
        others: file name → root of its sections, for keys that stand in the wrong file.
    """
    # A list whose items are all wrong is called too short as well.
    errors = [e for e in error.errors(include_url=False) if not (e["type"] == "too_short" and e["input"])]
    # A mistyped key is also a missing one: name the typing error.
    first = next((e for e in errors if e["type"] == "extra_forbidden"), errors[0])
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    if first["type"] == "extra_forbidden":
        return _unknown(tuple(first["loc"]), first["input"], kind, others) + more
    return _wrong_value(first) + more


def key_name(name: str, model: type[BaseModel]) -> str:
    """A field's name as it stands in the file."""
    return model.model_fields[name].alias or name


def section_of(annotation: object) -> type[BaseModel] | None:
    """The section that a field's type holds, itself or as the items of a list or mapping; None if there is none."""
    for part in (annotation, *get_args(annotation)):
        if isinstance(part, type) and issubclass(part, BaseModel):
            return part
        inner = section_of(part) if part is not annotation and get_args(part) else None
        if inner is not None:
            return inner
    return None


def key_paths(kind: type[BaseModel], path: str = "") -> Iterator[str]:
    """Dotted name of every section and key, in the order of the classes."""
    for name, field in kind.model_fields.items():
        here = path + key_name(name, kind)
        yield here
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from key_paths(field.annotation, f"{here}.")


def _unknown(loc: tuple[int | str, ...], value: object, kind: type[BaseModel], others: Mapping[str, type[BaseModel]]) -> str:
    name, path = str(loc[-1]), ".".join(str(part) for part in loc)
    for file, other in others.items():
        section = other.model_fields.get(name) if len(loc) == 1 else None
        if section is not None:
            inner = f".{next(iter(value))}" if isinstance(value, dict) and value else ""
            return f"{path}{inner}: belongs in {file}; move it there"
    siblings = [key_name(field, at) for at in [_section_at(kind, loc[:-1])] for field in at.model_fields]
    homes = {key: key.rpartition(".")[0] or "the top level" for key in key_paths(kind)}
    homes |= {
        key: f"{key.rpartition('.')[0]} ({file})" for file, other in others.items() for key in key_paths(other) if "." in key
    }
    near = _near(name, siblings, 0.85)
    if near is None:
        right = [home for key, home in homes.items() if key.rpartition(".")[2] == name]
        if right:
            return f"{path}: unknown key; it belongs to {' or '.join(right)}"
        near = _near(name, siblings, 0.6)
    if near is None:
        leaves = {key.rpartition(".")[2]: f"{key} ({file})" for file, other in others.items() for key in key_paths(other)}
        leaves |= {key.rpartition(".")[2]: key for key in key_paths(kind)}
        leaf = _near(name, list(leaves), 0.75)
        near = leaves[leaf] if leaf else None
    return f"{path}: unknown key; " + (f"did you mean {near}?" if near else f"remove it (known here: {', '.join(siblings)})")


def _near(name: str, known: list[str], cutoff: float) -> str | None:
    by_lower = {key.lower(): key for key in known}
    found = difflib.get_close_matches(name.lower().replace("-", "_"), by_lower, n=1, cutoff=cutoff)
    return by_lower[found[0]] if found else None


def _section_at(kind: type[BaseModel], loc: tuple[int | str, ...]) -> type[BaseModel]:
    for part in loc:
        field = next((f for n, f in kind.model_fields.items() if key_name(n, kind) == part), None)
        # Other parts are positions in lists and names that the user chose.
        if field is not None:
            kind = section_of(field.annotation) or kind
    return kind


def _wrong_value(error: ErrorDetails) -> str:
    cause = error.get("ctx", {}).get("error")
    named = isinstance(cause, WrongKey)
    loc = (*error["loc"], *(cause.key.split(".") if named else ()))
    value: Any = cause.value if named else error["input"]
    key = ".".join(str(part) for part in loc)
    if error["type"] == "missing":
        return f"{key}: this key is missing; add it (see the committed file)"
    said = _said(error, value)
    hint = _HINTS.get(".".join(part for part in loc if isinstance(part, str)))
    said += f"; {hint}" if hint and error["type"] not in _WANTED and not named else ""
    # A validator of a whole section says itself what it looked at.
    got = "" if error["type"] == "value_error" and not named and isinstance(value, dict) else f"got {_shown(value)}: "
    return f"{key}: {got}{said}" if key else said


def _said(error: ErrorDetails, value: object) -> str:
    kind = error["type"]
    if kind in _WANTED:
        return _wanted(_WANTED[kind], value)
    if kind == "literal_error":
        expected = str(error.get("ctx", {}).get("expected", ""))
        if isinstance(value, str):
            near = _near(value, [word.strip("'") for word in expected.replace(" or ", ", ").split(", ")], 0.6)
            return f"must be {expected}" + (f"; did you mean {near}?" if near else "")
        return _wanted(f"one of {expected}", value)
    if kind == "string_pattern_mismatch":
        blank = isinstance(value, str) and not value.strip()
        return "text is wanted, not a blank" if blank else "not in the form this key has"
    if kind == "too_short":
        return "the list is empty; name at least one"
    return error["msg"].removeprefix("Value error, ").replace("Input should be", "must be")


def _wanted(wanted: str, value: object) -> str:
    if value is None:
        return f"a value is needed: {wanted}"
    if isinstance(value, list | dict) and wanted != "a section of keys":
        found = "a list" if isinstance(value, list) else "a mapping"
        return (
            f"one value is wanted, {wanted}, not {found}"
            if wanted not in ("a list", "a mapping of names")
            else f"must be {wanted}"
        )
    if wanted in _NUMBERS and isinstance(value, str) and _is_number(value):
        return f"must be {wanted}; write it without quotes"
    if wanted == "text" and isinstance(value, int | float):
        return "must be text; put it in quotes"
    if wanted == "a list":
        return f"must be a list; write [{_shown(value)}]"
    return f"must be {wanted}"


def _shown(value: object) -> str:
    """The value as YAML shows it, cut short, without a URI's password."""
    text = repr(without_password(value)) if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else text[:77] + "..."


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
