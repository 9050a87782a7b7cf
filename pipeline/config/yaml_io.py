"""Reads YAML files that people edit; anything ambiguous is an error with its line.

ruamel.yaml reads the text as YAML 1.2, like DVC. PyYAML reads YAML 1.1, which treats plain words such as `yes`, `1e-5`, `010` or
`1:30` differently. Such words are refused, so that every tool sees the same values; but `1e-05`, which DVC itself writes, is
accepted as a number. Also refused is what a parameter file does not need, because it is a mistake or an attack: duplicate keys,
aliases, tags, several documents, NaN.
"""

from __future__ import annotations

import math
import re
import stat
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.composer import MaxDepthExceededError
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode

from pipeline.utils.errors import UserError, first_line

MAX_BYTES = 1_000_000
MAX_DEPTH = 20

_TAG = "tag:yaml.org,2002:"
# Both versions of YAML read these spellings, and no others, as the same value.
_NUMBER = re.compile(r"[-+]?(0|[1-9][0-9]{0,18})|([-+]?[0-9]+\.[0-9]*|\.[0-9]+)([eE][-+][0-9]+)?")
_EXPONENT = re.compile(r"([-+]?)([0-9]+)(?:\.([0-9]*))?[eE]([-+]?)([0-9]+)")
# Text in YAML 1.2, but not in YAML 1.1.
_WORD = re.compile(r"yes|no|on|off", re.IGNORECASE)
_CLOCK = re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?")
# A tag or an anchor at the beginning of a value.
_MARK = re.compile(r"[!&][^\s,\]}]*")
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x80-\x9f\ud800-\udfff]")


class BrokenYaml(UserError):
    """The file is not a YAML mapping that can be read in only one way; its keys are not examined."""


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file.

    Raises:
        BrokenYaml: the file does not exist, cannot be read, or is refused by `parse_yaml`.
    """
    return parse_yaml(read_yaml_text(path), str(path))


def read_yaml_text(path: Path) -> str:
    """The text of a file; raises `BrokenYaml` if the file does not exist or is not UTF-8."""
    try:
        status = path.stat()
        # Reading a pipe would block forever.
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
    """The mapping in a YAML text: keys are text; values are null, booleans, finite numbers, text, lists and mappings.

    Args:
        text: one YAML document.
        where: name of the file, for messages.

    Raises:
        BrokenYaml: the text is empty, is not YAML or not a mapping, or contains something refused (see the module docstring).
    """
    reader = YAML(typ="safe", pure=True)
    reader.max_depth = MAX_DEPTH
    # `_check` refuses anchors, with a message of one line.
    reader.composer.warn_double_anchors = False
    try:
        root = reader.compose(text)
        if isinstance(root, MappingNode):
            _check(root, "", text)
            return reader.constructor.construct_document(root)
    except MarkedYAMLError as error:
        raise BrokenYaml(f"{where}: {_in_one_line(error)}") from None
    except YAMLError as error:
        raise BrokenYaml(f"{where}: not valid YAML: {first_line(error)}; remove it") from None
    nothing = root is None or root.tag == f"{_TAG}null"
    content = "nothing" if nothing else "a single value" if isinstance(root, ScalarNode) else "a list"
    raise BrokenYaml(f"{where}: expected sections of keys, found {content}; compare the committed file")


def _in_one_line(error: MarkedYAMLError) -> str:
    line = error.problem_mark.line + 1 if error.problem_mark else 1
    problem = ", ".join(part for part in (error.context, error.problem) if part)
    if isinstance(error, _Refused):
        return problem
    if isinstance(error, MaxDepthExceededError):
        return f"line {line}: more than {MAX_DEPTH} levels deep; compare the committed file"
    if "'\\t'" in problem:
        return f"line {line}: a tab; indent with spaces"
    return f"line {line}: not valid YAML: {problem}; correct the line or the one before it"


class _Refused(MarkedYAMLError):
    """Valid YAML that this module refuses; `problem` is the whole message."""


def _check(node: Node, path: str, text: str) -> None:
    """Refuse what can be misread. `path` is the node's dotted key, `text` the whole document."""
    _check_mark(node, text)
    if isinstance(node, ScalarNode):
        _check_value(node, path)
    elif isinstance(node, MappingNode):
        _check_mapping(node, path, text)
    else:
        for position, item in enumerate(node.value):
            _check(item, f"{path}.{position}".removeprefix("."), text)


def _check_mapping(node: MappingNode, path: str, text: str) -> None:
    lines: dict[str, int] = {}
    for key, value in node.value:
        _check_mark(key, text)
        if not isinstance(key, ScalarNode):
            raise _refused(key, "a key must be plain text")
        name = key.value
        if not _is_text(key):
            merge = "<< merges another mapping; write its keys out"
            raise _refused(key, merge if name == "<<" else f"the key {name or 'null'} is not text to YAML; put it in quotes")
        inner = f"{path}.{name}".removeprefix(".")
        _check_printable(key, inner)
        if name in lines:
            raise _refused(key, f"{inner} is given again (first on line {lines[name]}); remove one")
        lines[name] = _line(key)
        _check(value, inner, text)


def _check_mark(node: Node, text: str) -> None:
    if mark := _MARK.match(text, node.start_mark.index):
        raise _refused(node, f"{mark[0]} is {'a tag' if mark[0].startswith('!') else 'an anchor'}; remove it")


def _check_value(node: ScalarNode, key: str) -> None:
    word, kind = node.value, node.tag.removeprefix(_TAG)
    if _is_text(node):
        _check_printable(node, key)
    elif kind in ("null", "bool") or (kind in ("int", "float") and _is_number(word)):
        return
    else:
        raise _Refused(problem=f"{key}: got {word} (line {_line(node)}): {_remedy(kind, word)}")


def _check_printable(node: ScalarNode, key: str) -> None:
    if bad := _UNPRINTABLE.search(node.value):
        raise _refused(node, f"{ascii(key)[1:-1]}: holds the unprintable character U+{ord(bad[0]):04X}; remove it")


def _is_text(node: ScalarNode) -> bool:
    """Whether both versions of YAML read a scalar as text."""
    quoted = node.style is not None
    return node.tag == f"{_TAG}str" and (quoted or not (_WORD.fullmatch(node.value) or _CLOCK.fullmatch(node.value)))


def _is_number(word: str) -> bool:
    # `dvc exp run -S` writes small numbers as Python does, 1e-05; people do not.
    plain = _NUMBER.fullmatch(word) or (_EXPONENT.fullmatch(word) and repr(float(word)) == word)
    return bool(plain) and math.isfinite(float(word))


def _remedy(kind: str, word: str) -> str:
    """What to write instead of a plain word that YAML resolves to `kind`."""
    if _WORD.fullmatch(word):
        return "YAML versions disagree whether this is text; write true or false, or put it in quotes if text is meant"
    if word.lower().lstrip("-+") in (".inf", ".nan"):
        return "not a finite number; write one"
    if _NUMBER.fullmatch(word) or re.fullmatch(r"[-+]?[1-9][0-9]+", word):
        return "too large for a number; write a smaller one"
    if exponent := _EXPONENT.fullmatch(word):
        sign, whole, decimals, direction, power = exponent.groups()
        point = f"{sign}{whole}.{decimals or 0}e{direction or '+'}{power}"
        return f"YAML reads this as text; write it with a point, as {point}, or put it in quotes if text is meant"
    if kind in ("timestamp", "value", "merge"):
        return "YAML does not read this as text; put it in quotes"
    return "YAML versions disagree about this spelling; write plain decimal digits, or put it in quotes if text is meant"


def _refused(node: Node, message: str) -> _Refused:
    return _Refused(problem=f"line {_line(node)}: {message}")


def _line(node: Node) -> int:
    return node.start_mark.line + 1
