"""`python -m pipeline.reference` writes docs/parameters.md and the JSON schemas; `--check` exits 1 where they are out of step.

Meanings come from the comments of params.yaml and execution.yaml, types and bounds from the classes of `params`, readers from
dvc.yaml and, for the execution keys, which DVC does not know, from the stages' source.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from pipeline.check import DVC_FILE
from pipeline.errors import UserError, run_stage
from pipeline.execution import EXECUTION_FILE, Execution
from pipeline.files import write_text
from pipeline.params import PARAMS_FILE, Params, Section
from pipeline.strict_yaml import parse_yaml, read_yaml_text

PAGE = Path("docs/parameters.md")
SCHEMAS = {PARAMS_FILE: Path("schemas/params.schema.json"), EXECUTION_FILE: Path("schemas/execution.schema.json")}
_ROOTS: dict[str, type[Section]] = {PARAMS_FILE: Params, EXECUTION_FILE: Execution}
_TITLES = {
    PARAMS_FILE: "Result keys (params.yaml): they change what comes out; DVC follows each",
    EXECUTION_FILE: "Execution keys (execution.yaml): they change where and how fast it runs; DVC does not see them",
}
_HEAD = """# Parameters

Written by `python -m pipeline.reference`; edit the comments in params.yaml and execution.yaml instead of this page. "Default" is
the committed value. `python -m pipeline.check` says what is wrong with the two files, in one line; the schemas beside it
(`schemas/`) let editors say it while you type.
"""
_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def generate(root: Path) -> dict[Path, str]:
    """Path below `root` → text of every generated file."""
    texts = {name: read_yaml_text(root / name) for name in _ROOTS}
    comments = {name: comments_of(text) for name, text in texts.items()}
    values = {name: parse_yaml(text, name) for name, text in texts.items()}
    schemas = {name: _schema(name, comments[name]) for name in _ROOTS}
    pages = [_HEAD]
    for name, title in _TITLES.items():
        readers = _params_readers(root) if name == PARAMS_FILE else _execution_readers(root)
        pages += [
            f"## {title}\n",
            *_section_tables(schemas[name], values[name], comments[name], readers),
            *_entries(schemas[name]),
        ]
    made = {SCHEMAS[name]: json.dumps(schema, indent=2, ensure_ascii=False) + "\n" for name, schema in schemas.items()}
    return {PAGE: "\n".join(pages), **made}


def comments_of(text: str) -> dict[str, str]:
    """Dotted key → the comment above it, as one paragraph; a key without one is left out. Block style only, as committed."""
    found: dict[str, str] = {}
    above: list[str] = []
    at: list[tuple[int, str]] = []
    for line in text.splitlines():
        comment = re.fullmatch(r"\s*# ?(.*)", line)
        key = re.match(r"( *)([A-Za-z_]+):", line)
        if comment:
            above.append(comment[1])
            continue
        if key:
            at = [*(part for part in at if part[0] < len(key[1])), (len(key[1]), key[2])]
            if above:
                found[".".join(name for _, name in at)] = " ".join(above)
        above = []
    return found


def _schema(name: str, comments: Mapping[str, str]) -> dict[str, Any]:
    """The JSON schema of a file: pydantic's, without its titles, with the file's comments as descriptions."""
    schema = _without_titles(_ROOTS[name].model_json_schema(by_alias=True))
    for path, properties, key in _keys(schema):
        if path in comments:
            properties[key]["description"] = comments[path]
    return {"$schema": _DIALECT, "title": name, **schema}


def _without_titles(value: Any) -> Any:
    if isinstance(value, dict):
        # "title" may also be the name of a key; then it holds a schema.
        return {k: _without_titles(v) for k, v in value.items() if not (k == "title" and isinstance(v, str))}
    return [_without_titles(item) for item in value] if isinstance(value, list) else value


def _keys(schema: dict[str, Any], at: dict[str, Any] | None = None, path: str = "") -> Iterator[tuple[str, dict[str, Any], str]]:
    """(dotted key, the properties it stands in, its name) of every section and key, in the order of the classes."""
    properties = (at or schema)["properties"]
    for key, inner in properties.items():
        yield path + key, properties, key
        if "$ref" in inner:
            yield from _keys(schema, _followed(schema, inner), f"{path}{key}.")


def _followed(schema: dict[str, Any], inner: dict[str, Any]) -> dict[str, Any]:
    return schema["$defs"][inner["$ref"].rpartition("/")[2]]


def _section_tables(
    schema: dict[str, Any], values: Mapping[str, Any], comments: Mapping[str, str], readers: Mapping[str, list[str]]
) -> Iterator[str]:
    """One table a section; a key of a section within uses the comment of that section where it has none."""
    gap = ""
    told: dict[str, str] = {}
    for path, properties, key in _keys(schema):
        if "." not in path:
            about = _followed(schema, properties[key])["description"]
            yield f"{gap}### {path}\n\n{about}\n\n| key | values | default | read by | meaning |\n|---|---|---|---|---|"
            gap = "\n"
        elif "$ref" not in properties[key]:
            above = path.rpartition(".")[0]
            meaning = comments.get(path) or (f"see `{told[above]}`" if above in told else comments.get(above, ""))
            told.setdefault(above, path)
            stages = ", ".join(stage for stage, read in readers.items() if any(_covers(one, path) for one in read))
            cells = (f"`{path}`", _values(properties[key]), f"`{_shown(_at(values, path))}`", stages or "none", meaning)
            yield "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"
    yield ""


def _entries(schema: dict[str, Any]) -> Iterator[str]:
    """Tables of the classes that stand in lists and mappings, whose keys no committed file shows."""
    direct = {id(_followed(schema, properties[key])) for _, properties, key in _keys(schema) if "$ref" in properties[key]}
    for name, definition in schema.get("$defs", {}).items():
        if id(definition) in direct or "properties" not in definition:
            continue
        about = definition.get("description", "")
        yield f"### An entry `{name}`\n\n{about}\n\n| key | values | default | meaning |\n|---|---|---|---|"
        for key, inner in definition["properties"].items():
            default = f"`{_shown(inner['default'])}`" if "default" in inner else "required"
            cells = (f"`{key}`", _values(inner), default, inner.get("description", ""))
            yield "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"
        yield ""


def _values(schema: Mapping[str, Any]) -> str:
    """What a key may hold, in words."""
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
        # Names of a form stand as a pattern; values of any kind as a plain true.
        held = next(iter(schema.get("patternProperties", {}).values()), schema.get("additionalProperties"))
        return f"mapping of names to ({_values(held if isinstance(held, Mapping) else {})})"
    words = {"integer": "whole number", "number": "number", "string": "text", "boolean": "`true` or `false`", "null": "`null`"}
    bounds = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    # 2³¹ is where machine integers end, not a choice.
    limits = [f"{sign} {schema[bound]:g}" for bound, sign in bounds.items() if schema.get(bound, 2**31) != 2**31]
    said = " ".join([words.get(str(kind), "anything"), ", ".join(limits)]).strip()
    if "examples" in schema:
        return f"{said} such as " + ", ".join(f"`{example}`" for example in schema["examples"])
    return f"{said} of the form `{schema['pattern']}`" if schema.get("pattern", r"\S") != r"\S" else said


def _covers(read: str, path: str) -> bool:
    return path == read or path.startswith(f"{read}.")


def _at(values: Mapping[str, Any], path: str) -> Any:
    for part in path.split("."):
        values = values[part]
    return values


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _params_readers(root: Path) -> dict[str, list[str]]:
    """Stage → the keys and sections dvc.yaml says it reads."""
    stages = yaml.safe_load((root / DVC_FILE).read_text(encoding="utf-8"))["stages"]
    return {name: stage.get("params", []) for name, stage in stages.items()}


def _execution_readers(root: Path) -> dict[str, list[str]]:
    """Stage → the sections of execution.yaml that its source uses, and keys of those of which it uses no more."""
    stages = yaml.safe_load((root / DVC_FILE).read_text(encoding="utf-8"))["stages"]
    sources = {name: (root / f"stages/{name}.py").read_text(encoding="utf-8") for name in stages}
    return {name: sorted(set(re.findall(r"\bexecution\.([a-z]+(?:\.[a-z_]+)?)", source))) for name, source in sources.items()}


def main() -> None:
    """Write the generated files, or with --check say which is out of step."""
    arguments = sys.argv[1:]
    if arguments not in ([], ["--check"]):
        raise UserError("usage: python -m pipeline.reference [--check]")
    stale = 0
    for file, text in generate(Path()).items():
        if file.is_file() and file.read_text(encoding="utf-8") == text:
            continue
        if arguments:
            print(f"{file} is out of step: run python -m pipeline.reference", file=sys.stderr)
            stale += 1
        else:
            file.parent.mkdir(parents=True, exist_ok=True)
            write_text(file, text)
    if stale:
        raise SystemExit(1)


if __name__ == "__main__":
    run_stage(main)
