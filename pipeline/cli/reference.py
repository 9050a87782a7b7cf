"""`gausscse reference` writes docs/parameters.md and the JSON schemas.

Meanings, types and bounds come from the classes of `params` and `execution`, and the defaults from the two files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.config.execution import EXECUTION_FILE, Execution
from pipeline.config.load import read_yaml
from pipeline.config.params import PARAMS_FILE, Params
from pipeline.config.types import Section
from pipeline.utils.atomic_io import write_text
from pipeline.utils.parser import Parser

PAGE = Path("docs/parameters.md")
SCHEMAS = {PARAMS_FILE: Path("schemas/params.schema.json"), EXECUTION_FILE: Path("schemas/execution.schema.json")}
_ROOTS: dict[str, type[Section]] = {PARAMS_FILE: Params, EXECUTION_FILE: Execution}
_TITLES = {
    PARAMS_FILE: "Result keys (params.yaml): they change what comes out; DVC follows each",
    EXECUTION_FILE: "Execution keys (execution.yaml): they change where and how fast it runs; DVC does not see them",
}
_HEAD = """# Parameters

Written by `gausscse reference`; edit the docstrings in pipeline/config instead of this page. "Default" is
the committed value. `gausscse check` reports a mistake in one of the two files in one line. With the schemas in `schemas/`, an
editor reports it while you type.
"""


def generate(root: Path) -> dict[Path, str]:
    """Path below `root` → text, for each generated file."""
    values = {name: read_yaml(root / name) for name in _ROOTS}
    # Pydantic's schemas without titles, with each description on one line.
    held = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    schemas = {name: {**held, "title": name, **_tidy(root.model_json_schema(by_alias=True))} for name, root in _ROOTS.items()}
    pages = [_HEAD]
    for name, title in _TITLES.items():
        pages += [f"## {title}\n", *_section_tables(schemas[name], values[name]), *_entries(schemas[name])]
    schema_texts = {SCHEMAS[name]: json.dumps(schema, indent=2, ensure_ascii=False) + "\n" for name, schema in schemas.items()}
    return {PAGE: "\n".join(pages), **schema_texts}


def _tidy(value: Any) -> Any:
    if isinstance(value, list):
        return [_tidy(item) for item in value]
    if not isinstance(value, dict):
        return value
    # A key may itself be called "title" or "description"; its value is then a schema, not a text.
    entries = {k: v for k, v in value.items() if not (k == "title" and isinstance(v, str))}
    return {k: " ".join(v.split()) if k == "description" and isinstance(v, str) else _tidy(v) for k, v in entries.items()}


def _keys(schema: dict[str, Any], at: dict[str, Any] | None = None, path: str = "") -> Iterator[tuple[str, dict[str, Any], str]]:
    """(dotted key, the properties that hold it, its name) of every section and key, in the order of the classes."""
    properties = (at or schema)["properties"]
    for key, inner in properties.items():
        yield path + key, properties, key
        for section in _sections(schema, inner):
            yield from _keys(schema, section, f"{path}{key}.")


def _sections(schema: dict[str, Any], inner: dict[str, Any]) -> list[dict[str, Any]]:
    """The sections that a property may be: one, several for a union (`name` selects one), or none for a value."""
    return [schema["$defs"][option["$ref"].rpartition("/")[2]] for option in inner.get("oneOf", [inner]) if "$ref" in option]


def _section_tables(schema: dict[str, Any], values: Mapping[str, Any]) -> Iterator[str]:
    """A table for each section."""
    gap = ""
    # The sections of a union share keys. Such a key is listed once, with the values that any of the sections takes.
    of_path: dict[str, list[dict[str, Any]]] = {}
    for path, properties, key in _keys(schema):
        of_path.setdefault(path, []).append(properties[key])
    for path, (inner, *more) in of_path.items():
        sections = _sections(schema, inner)
        if "." not in path:
            about = inner.get("description") or sections[0]["description"]
            yield f"{gap}### {path}\n\n{about}\n\n| key | values | default | meaning |\n|---|---|---|---|"
            gap = "\n"
        elif not sections:
            meanings = dict.fromkeys(entry.get("description", "") for entry in (inner, *more))
            meaning = " For another objective: ".join(meanings)
            takes = " or ".join(dict.fromkeys(_values(entry) for entry in (inner, *more)))
            yield _row(f"`{path}`", takes, _default(values, path), meaning)
    yield ""


def _entries(schema: dict[str, Any]) -> Iterator[str]:
    """A table for each class that appears only in lists and mappings; no committed file shows its keys."""
    direct = {id(section) for _, properties, key in _keys(schema) for section in _sections(schema, properties[key])}
    for name, definition in schema.get("$defs", {}).items():
        if id(definition) in direct or "properties" not in definition:
            continue
        about = definition.get("description", "")
        yield f"### An entry `{name}`\n\n{about}\n\n| key | values | default | meaning |\n|---|---|---|---|"
        for key, inner in definition["properties"].items():
            default = f"`{_shown(inner['default'])}`" if "default" in inner else "required"
            yield _row(f"`{key}`", _values(inner), default, inner.get("description", ""))
        yield ""


def _values(schema: Mapping[str, Any]) -> str:
    """The values a key may have, in words."""
    if "$ref" in schema:
        return f"an entry `{schema['$ref'].rpartition('/')[2]}`"
    if "anyOf" in schema:
        return " or ".join(_values(part) for part in schema["anyOf"])
    if "enum" in schema:
        return " or ".join(f"`{_shown(value)}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{_shown(schema['const'])}`"
    kind = schema.get("type")
    if kind == "array":
        return f"list of ({_values(schema['items'])})" + (", at least one, all different" if schema.get("minItems") else "")
    if kind == "object":
        # If names must have a form, the schema gives a pattern. For values of any kind it gives a plain true.
        value_schema = next(iter(schema.get("patternProperties", {}).values()), schema.get("additionalProperties"))
        return f"mapping of names to ({_values(value_schema if isinstance(value_schema, Mapping) else {})})"
    words = {"integer": "whole number", "number": "number", "string": "text", "boolean": "`true` or `false`", "null": "`null`"}
    bounds = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    # The bound 2³¹ is the limit of machine integers and not worth a mention.
    limits = [f"{sign} {schema[bound]:g}" for bound, sign in bounds.items() if schema.get(bound, 2**31) != 2**31]
    phrase = " ".join([words.get(str(kind), "anything"), ", ".join(limits)]).strip()
    if "examples" in schema:
        return f"{phrase} such as " + ", ".join(f"`{example}`" for example in schema["examples"])
    return f"{phrase} of the form `{schema['pattern']}`" if schema.get("pattern", r"\S") != r"\S" else phrase


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def _default(values: Mapping[str, Any], path: str) -> str:
    """The committed value of a key; none if only an objective that is not the committed one has it."""
    for part in path.split("."):
        if part not in values:
            return "none"
        values = values[part]
    return f"`{_shown(values)}`"


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def main(arguments: Sequence[str]) -> None:
    """Write the generated files."""
    Parser(prog="gausscse reference", description=f"Write {PAGE} and the JSON schemas.").parse_args(arguments)
    for file, text in generate(Path()).items():
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, text)
