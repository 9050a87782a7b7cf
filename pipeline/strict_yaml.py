"""YAML files people edit, read so that nothing is guessed: what cannot mean one thing only is an error with its line.

DVC reads params.yaml by YAML 1.2, PyYAML by YAML 1.1, and they disagree about plain words such as `yes`, `1e-5`, `010` or `1:30`.
Those are refused, so both always see the same values; `1e-05`, which is how DVC itself writes a number, is that number. Refused
too is what a parameter file has no use for and can only be a mistake or an attack: a key given twice, aliases, tags, several
documents, NaN.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from yaml import events
from yaml.resolver import Resolver

from pipeline.errors import UserError

MAX_BYTES = 1_000_000
MAX_DEPTH = 20

_TAG = "tag:yaml.org,2002:"
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]{0,18})")
_FLOAT = re.compile(r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+)([eE][-+][0-9]+)?")
_EXPONENT = re.compile(r"([-+]?)([0-9]+)(?:\.([0-9]*))?[eE]([-+]?)([0-9]+)")
# What YAML 1.2 reads as a number and YAML 1.1 does not.
_OCTAL = re.compile(r"0o[0-7]+")
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x80-\x9f\ud800-\udfff]")


class BrokenYaml(UserError):
    """The file is no YAML mapping that can be read in one way only; nothing can be said of its keys."""


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping that a YAML file holds.

    Raises:
        BrokenYaml: there is no such file, it cannot be read, or see `parse_yaml`.
    """
    return parse_yaml(read_yaml_text(path), str(path))


def read_yaml_text(path: Path) -> str:
    """The text of a file; `BrokenYaml` if there is none, or it is no UTF-8."""
    try:
        status = path.stat()
        # A pipe would be waited for without end.
        if not stat.S_ISREG(status.st_mode):
            kind = "a directory" if stat.S_ISDIR(status.st_mode) else "not a regular file"
            raise BrokenYaml(f"{path}: this is {kind}; put the YAML file there")
        if status.st_size > MAX_BYTES:
            raise BrokenYaml(
                f"{path}: {status.st_size:,} bytes are more than the {MAX_BYTES:,} allowed here; is it the right file?"
            )
        raw = path.read_bytes()
    except FileNotFoundError:
        raise BrokenYaml(f"{path}: no such file; run from the project root") from None
    except OSError as error:
        raise BrokenYaml(f"{path}: cannot be read ({error.strerror}); put a readable YAML file there") from None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise BrokenYaml(f"{path}: line {line}: not UTF-8 (byte 0x{raw[error.start]:02x}); save the file as UTF-8") from None


def parse_yaml(text: str, where: str) -> dict[str, Any]:
    """The mapping that a text holds: text keys; values are null, booleans, finite numbers, text, lists and mappings.

    Args:
        text: of one YAML document.
        where: name of the file, for messages.

    Raises:
        BrokenYaml: the text is empty, no YAML, no mapping, or holds something that is refused (see the module).
    """
    for number, line in enumerate(text.splitlines(), start=1):
        if "\t" in line[: len(line) - len(line.lstrip())] and line.strip():
            raise BrokenYaml(f"{where}: line {number}: a tab; indent with spaces")
    try:
        value = _Reader(yaml.parse(text, Loader=yaml.SafeLoader), where).document()
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        problem = error.problem or error.context or "not valid YAML"
        if "'\\t'" in problem:
            raise BrokenYaml(f"{where}: line {line}: a tab; use spaces") from None
        raise BrokenYaml(f"{where}: line {line}: not valid YAML: {problem}; correct the line or the one before it") from None
    except yaml.YAMLError as error:
        reason = str(error).partition("\n")[0]
        raise BrokenYaml(f"{where}: not valid YAML: {reason}; remove it") from None
    if not isinstance(value, dict):
        found = "nothing" if value is None else "a list" if isinstance(value, list) else "a single value"
        raise BrokenYaml(f"{where}: expected sections of keys, found {found}; compare the committed file")
    return value


class _Reader:
    """Builds plain values from parser events, refusing as it goes: an alias is never followed, a tag never looked at."""

    def __init__(self, parsed: Iterator[events.Event], where: str) -> None:
        self._events = parsed
        self._where = where
        self._resolver = Resolver()

    def document(self) -> Any:
        next(self._events)  # stream start
        if isinstance(next(self._events), events.StreamEndEvent):
            return None
        value = self._value(next(self._events), ())
        next(self._events)  # document end
        following = next(self._events)
        if not isinstance(following, events.StreamEndEvent):
            raise self._refused(following, "a second document begins here; keep one")
        return value

    def _value(self, event: events.Event, path: tuple[str, ...]) -> Any:
        if isinstance(event, events.AliasEvent):
            raise self._refused(event, f"*{event.anchor} is an alias; write the value out")
        if not isinstance(event, events.ScalarEvent | events.SequenceStartEvent | events.MappingStartEvent):
            raise self._refused(event, "not valid YAML")
        if event.anchor is not None:
            raise self._refused(event, f"&{event.anchor} is an anchor; remove it")
        if event.tag is not None:
            raise self._refused(event, f"{event.tag.replace(_TAG, '!!')} is a tag; remove it")
        if len(path) > MAX_DEPTH:
            raise self._refused(event, f"more than {MAX_DEPTH} levels deep; compare the committed file")
        if isinstance(event, events.ScalarEvent):
            return self._scalar(event, ".".join(path))
        if isinstance(event, events.SequenceStartEvent):
            return self._list(path)
        return self._mapping(path)

    def _list(self, path: tuple[str, ...]) -> list[Any]:
        items: list[Any] = []
        while not isinstance(event := next(self._events), events.SequenceEndEvent):
            items.append(self._value(event, (*path, str(len(items)))))
        return items

    def _mapping(self, path: tuple[str, ...]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        lines: dict[str, int] = {}
        while not isinstance(event := next(self._events), events.MappingEndEvent):
            key = self._key(event, path)
            if key in found:
                dotted = ".".join((*path, key))
                raise self._refused(event, f"{dotted} is given again (first on line {lines[key]}); remove one")
            lines[key] = _line(event)
            found[key] = self._value(next(self._events), (*path, key))
        return found

    def _key(self, event: events.Event, path: tuple[str, ...]) -> str:
        if isinstance(event, events.ScalarEvent) and event.tag is None and event.anchor is None:
            if not event.implicit[0] or self._kind(event.value) == "str":
                return self._text(event, event.value, ".".join((*path, event.value)))
            if event.value == "<<":
                raise self._refused(event, "<< merges another mapping; write its keys out")
            raise self._refused(event, f"the key {event.value or 'null'} is not text to YAML; put it in quotes")
        if isinstance(event, events.AliasEvent):
            raise self._refused(event, f"*{event.anchor} is an alias; write the key out")
        raise self._refused(event, "a key must be plain text")

    def _scalar(self, event: events.ScalarEvent, key: str) -> Any:
        text = event.value
        if not event.implicit[0]:
            return self._text(event, text, key)
        kind = self._kind(text)
        if kind == "null":
            return None
        if kind == "bool" and text.lower() in ("true", "false"):
            return text.lower() == "true"
        if kind == "int" and _INTEGER.fullmatch(text):
            return int(text)
        if kind == "float" and _FLOAT.fullmatch(text) and abs(value := float(text)) != float("inf"):
            return value
        # `dvc exp run -S` writes small numbers as Python shows them, 1e-05; nobody does so by hand.
        if kind == "str" and _EXPONENT.fullmatch(text) and repr(float(text)) == text:
            return float(text)
        if kind == "str" and not (_EXPONENT.fullmatch(text) or _OCTAL.fullmatch(text)):
            return self._text(event, text, key)
        prefix = f"{key}: " if key else ""
        raise BrokenYaml(f"{self._where}: {prefix}got {text} (line {_line(event)}): {_remedy(kind, text)}")

    def _text(self, event: events.Event, text: str, key: str) -> str:
        bad = _UNPRINTABLE.search(text)
        if bad:
            shown = ascii(key)[1:-1]
            raise self._refused(event, f"{shown}: holds the unprintable character U+{ord(bad[0]):04X}; remove it")
        return text

    def _kind(self, text: str) -> str:
        """What YAML 1.1 takes a plain word for: "str", "int", "float", "bool", "null", "timestamp", "merge", "value"."""
        tag: str = self._resolver.resolve(yaml.ScalarNode, text, (True, False))
        return tag.removeprefix(_TAG)

    def _refused(self, event: events.Event, message: str) -> BrokenYaml:
        return BrokenYaml(f"{self._where}: line {_line(event)}: {message}")


def _line(event: events.Event) -> int:
    return event.start_mark.line + 1


def _remedy(kind: str, text: str) -> str:
    exponent = _EXPONENT.fullmatch(text)
    if kind == "bool":
        return "YAML versions disagree whether this is text; write true or false, or put it in quotes if text is meant"
    if exponent and kind == "str":
        sign, whole, decimals, direction, power = exponent.groups()
        point = f"{sign}{whole}.{decimals or 0}e{direction or '+'}{power}"
        return f"YAML reads this as text; write it with a point, as {point}, or put it in quotes if text is meant"
    if kind == "float" and _FLOAT.fullmatch(text):
        return "too large for a number; write a smaller one"
    if kind == "float" and text.lower().lstrip("-+") in (".inf", ".nan"):
        return "not a finite number; write one"
    if kind == "int" and re.fullmatch(r"[-+]?[1-9][0-9]+", text):
        return "too large for a number; write a smaller one"
    if kind in ("int", "float") or _OCTAL.fullmatch(text):
        return "YAML versions disagree about this spelling; write plain decimal digits, or put it in quotes if text is meant"
    return "YAML does not read this as text; put it in quotes"
