"""Turns pydantic's errors about a parameter file into one line that names the key, the value and the remedy."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from pipeline.utils.uris import without_password

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


def explain(error: ValidationError, kind: type[BaseModel], others: Mapping[str, type[BaseModel]]) -> str:
    """The first error in one line, and the number of further errors.

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
    loc, member = _without_tag(first["loc"], kind)
    if first["type"] == "extra_forbidden":
        return _unknown(loc, member, kind, others) + more
    return _wrong_value(first, loc) + more


def key_paths(kind: type[BaseModel], path: str = "") -> Iterator[str]:
    """Dotted names of all sections and keys, in the order of the classes; for a union, the keys of all its members."""
    for name, field in kind.model_fields.items():
        key_path = path + (field.alias or name)
        yield key_path
        yield from dict.fromkeys(key for section in _sections(field.annotation) for key in key_paths(section, f"{key_path}."))


def _sections(annotation: object) -> list[type[BaseModel]]:
    """The sections in a field's type: the type itself, the members of a union, or the items of a list or mapping."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [section for part in get_args(annotation) for section in _sections(part)]


def _without_tag(loc: tuple[int | str, ...], kind: type[BaseModel]) -> tuple[tuple[int | str, ...], int | str | None]:
    """The key's location in the file, and the name of the union's member, which pydantic puts behind the union's key."""
    if len(loc) < 2:
        return loc, None
    first, second, *rest = loc
    field = kind.model_fields.get(str(first))
    return (loc, None) if field is None or field.discriminator is None else ((first, *rest), second)


def _unknown(
    loc: tuple[int | str, ...], member: int | str | None, kind: type[BaseModel], others: Mapping[str, type[BaseModel]]
) -> str:
    path, name = ".".join(map(str, loc)), str(loc[-1])
    section = ".".join(part for part in loc[:-1] if isinstance(part, str))
    known = [*key_paths(kind)]
    if member is not None and path in known:
        return f"{path}: not a key of {section} {member}; remove it"
    # A key with a similar name in this section, or one with the same name elsewhere.
    here = {leaf: key for key in known for home, _, leaf in [key.rpartition(".")] if home == section}
    near = [here[leaf] for leaf in get_close_matches(name.lower(), here, n=1, cutoff=0.75)]
    near += [key for key in known if key.rpartition(".")[2] == name]
    near += [f"{key} ({file})" for file, other in others.items() for key in key_paths(other) if key.rpartition(".")[2] == name]
    return f"{path}: unknown key; " + (f"did you mean {near[0]}?" if near else "remove it")


def _wrong_value(error: ErrorDetails, loc: tuple[int | str, ...]) -> str:
    context: dict[str, Any] = error.get("ctx", {})
    value, cause, kind = error["input"], context.get("error"), error["type"]
    message = error["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    message = message.replace("an object", "a mapping").replace("a valid array", "a list")
    if isinstance(cause, WrongKey):
        loc, value = (*loc, cause.key), cause.value
    elif kind.startswith("union_tag"):
        name = context["discriminator"].strip("'")
        loc, value, kind = (*loc, name), value.get(name), kind if name in value else "missing"
        message = f"must be one of {context.get('expected_tags')}"
    elif kind == "string_pattern_mismatch":
        message = "must not be blank" if context["pattern"] == r"\S" else "has the wrong form for this key"
    key = ".".join(str(part)[:80] for part in loc)
    if kind == "missing":
        return f"{key}: this key is missing; add it (see the committed file)"
    hint = _HINTS.get(".".join(part for part in loc if isinstance(part, str)))
    message += f"; {hint}" if hint and cause is None and not kind.endswith("_type") else ""
    # A message about a whole section names what is wrong in it.
    return f"{key}: {message}" if isinstance(value, dict) else f"{key}: got {_shown(value)}: {message}"


def _shown(value: object) -> str:
    """The value as in YAML, shortened, without a URI's password."""
    text = repr(without_password(value)) if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else text[:77] + "..."
