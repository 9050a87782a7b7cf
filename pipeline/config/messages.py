"""Turns pydantic's errors about a parameter file into one line that names the key, the value and the remedy."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from types import UnionType
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from pipeline.utils.uris import without_password

# What a value must be, by the type of pydantic's error.
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
# Why a key has its bound or form, or what to write instead; keys without list positions.
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
    """Raised by a validator that checks several keys of a section, to name the wrong one."""

    def __init__(self, key: str, value: object, message: str) -> None:
        super().__init__(message)
        self.key, self.value = key, value


class Needless(WrongKey):
    """The key has no effect because of the value of another key."""


def explain(error: ValidationError, kind: type[BaseModel], others: Mapping[str, type[BaseModel]]) -> str:
    """The first error in words, and the number of further errors.

    Args:
        error: the error from validating a file as `kind`.
        kind: root of the file's sections.
        others: file name → root of its sections, to detect keys in the wrong file.
    """
    # Ignore that a list is too short if it has items: that only means that all its items are wrong.
    errors = [e for e in error.errors(include_url=False) if not (e["type"] == "too_short" and e["input"])]
    # A mistyped key is reported twice, as unknown and as missing: prefer the unknown one.
    first = next((e for e in errors if e["type"] == "extra_forbidden"), errors[0])
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    first, section = _without_tag(first, kind)
    if first["type"] == "extra_forbidden":
        return (_of_another(first, section, kind) or _unknown(first["loc"], first["input"], section, kind, others)) + more
    return _wrong_value(first) + more


def key_name(name: str, model: type[BaseModel]) -> str:
    """A field's name in the file."""
    return model.model_fields[name].alias or name


def sections_of(annotation: object) -> list[type[BaseModel]]:
    """The sections that a field's type allows: one, several in the case of a union, or none if the field is a value."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [kind for part in get_args(annotation) for kind in sections_of(part)] if isinstance(annotation, UnionType) else []


def section_of(annotation: object) -> type[BaseModel] | None:
    """The section in a field's type: the type itself, or its list or mapping items; None if there is none."""
    for part in (annotation, *get_args(annotation)):
        if isinstance(part, type) and issubclass(part, BaseModel):
            return part
        inner = section_of(part) if part is not annotation and get_args(part) else None
        if inner is not None:
            return inner
    return None


def key_paths(kind: type[BaseModel], path: str = "") -> Iterator[str]:
    """Dotted names of all sections and keys, in the order of the classes; for a union, the keys of all its members."""
    for name, field in kind.model_fields.items():
        key_path = path + key_name(name, kind)
        yield key_path
        inner = [key for section in sections_of(field.annotation) for key in key_paths(section, f"{key_path}.")]
        yield from dict.fromkeys(inner)


def _without_tag(error: ErrorDetails, kind: type[BaseModel]) -> tuple[ErrorDetails, type[BaseModel]]:
    """The error with the key's location in the file, and the section that contains the key.

    In a union, pydantic inserts the name that selected the section after the union's key; here it moves to the context (`tag`).
    """
    loc = error["loc"]
    field = kind.model_fields.get(str(loc[0])) if loc else None
    if field is None or not isinstance(field.discriminator, str):
        return error, _section_at(kind, loc[:-1])
    if len(loc) == 1:
        return ({**error, "type": "model_type"} if error["type"] == "dict_type" else error), kind
    sections, tag = sections_of(field.annotation), loc[1]
    section = next(member for member in sections if tag in get_args(member.model_fields[field.discriminator].annotation))
    return {**error, "loc": (loc[0], *loc[2:]), "ctx": {**error.get("ctx", {}), "tag": tag}}, section


def _of_another(error: ErrorDetails, own: type[BaseModel], kind: type[BaseModel]) -> str | None:
    """The message if another member of the same union has this key, else None."""
    (section, key), tag = (error["loc"][0], error["loc"][-1]), error.get("ctx", {}).get("tag")
    if tag is None or f"{section}.{key}" not in key_paths(kind):
        return None
    return f"{section}.{key}: not a key of {section} {tag}; remove it (its keys: {', '.join(own.model_fields)})"


def _unknown(
    loc: tuple[int | str, ...],
    value: object,
    own: type[BaseModel],
    kind: type[BaseModel],
    others: Mapping[str, type[BaseModel]],
) -> str:
    """The message for a key that its section, `own`, does not have."""
    name, path = str(loc[-1]), ".".join(str(part) for part in loc)
    for file, other in others.items():
        section = other.model_fields.get(name) if len(loc) == 1 else None
        if section is not None:
            inner = f".{next(iter(value))}" if isinstance(value, dict) and value else ""
            return f"{path}{inner}: belongs in {file}; move it there"
    siblings = [key_name(field, own) for field in own.model_fields]
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
    matches = difflib.get_close_matches(name.lower().replace("-", "_"), by_lower, n=1, cutoff=cutoff)
    return by_lower[matches[0]] if matches else None


def _section_at(kind: type[BaseModel], loc: tuple[int | str, ...]) -> type[BaseModel]:
    for part in loc:
        field = next((f for n, f in kind.model_fields.items() if key_name(n, kind) == part), None)
        # Other parts are list positions and names that the user chose.
        if field is not None:
            kind = section_of(field.annotation) or kind
    return kind


def _wrong_value(error: ErrorDetails) -> str:
    cause = error.get("ctx", {}).get("error")
    named = isinstance(cause, WrongKey)
    loc = (*error["loc"], *(cause.key.split(".") if named else ()))
    value: Any = cause.value if named else error["input"]
    if error["type"] in ("union_tag_invalid", "union_tag_not_found"):
        error, loc, value = _wrong_tag(error)
    key = ".".join(str(part)[:80] for part in loc)
    if error["type"] == "missing":
        return f"{key}: this key is missing; add it (see the committed file)"
    message = _said(error, value)
    hint = _HINTS.get(".".join(part for part in loc if isinstance(part, str)))
    message += f"; {hint}" if hint and error["type"] not in _WANTED and not named else ""
    # A validator of a whole section shows the value in its own message.
    preamble = "" if error["type"] == "value_error" and not named and isinstance(value, dict) else f"got {_shown(value)}: "
    return f"{key}: {preamble}{message}" if key else message


def _wrong_tag(error: ErrorDetails) -> tuple[ErrorDetails, tuple[int | str, ...], Any]:
    """A wrong name in a union as an ordinary error about a key with allowed values: (error, location, value)."""
    context: dict[str, Any] = error.get("ctx", {})
    name = str(context["discriminator"]).strip("'")
    *most, last = str(context.get("expected_tags", "")).split(", ")
    context = {"expected": f"{', '.join(most)} or {last}"}
    kind = "literal_error" if name in error["input"] else "missing"
    return {**error, "type": kind, "ctx": context}, (*error["loc"], name), error["input"].get(name)


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
        return "must not be blank" if blank else "has the wrong form for this key"
    if kind == "too_short":
        return "the list is empty; name at least one"
    return error["msg"].removeprefix("Value error, ").replace("Input should be", "must be")


def _wanted(wanted: str, value: object) -> str:
    if value is None:
        return f"needs a value: {wanted}"
    if isinstance(value, list | dict) and wanted != "a section of keys":
        shape = "a list" if isinstance(value, list) else "a mapping"
        return (
            f"must be one value, {wanted}, not {shape}" if wanted not in ("a list", "a mapping of names") else f"must be {wanted}"
        )
    if wanted in _NUMBERS and isinstance(value, str) and _is_number(value):
        return f"must be {wanted}; write it without quotes"
    if wanted == "text" and isinstance(value, int | float):
        return "must be text; put it in quotes"
    if wanted == "a list":
        return f"must be a list; write [{_shown(value)}]"
    return f"must be {wanted}"


def _shown(value: object) -> str:
    """The value as in YAML, shortened, without a URI's password."""
    text = repr(without_password(value)) if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else text[:77] + "..."


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
