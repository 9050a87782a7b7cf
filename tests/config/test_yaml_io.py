"""The YAML that people edit means the same to us and to DVC; anything else is refused in one line."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from dvc.utils.serialize import parse_yaml as dvc_reads
from ruamel.yaml import YAML

from pipeline.config.yaml_io import parse_yaml, read_yaml
from pipeline.utils.errors import UserError
from tests.conftest import ROOT

BOMB = "a: &a [x, x]\n" + "".join(f"{chr(98 + i)}: &{chr(98 + i)} [*{chr(97 + i)}, *{chr(97 + i)}]\n" for i in range(20))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\nb: {c: 1, d: 2, c: 3}\n", r'line 2: not valid YAML: .*found duplicate key "c"; correct'),
        ("a: 1\n'a': 3\n", r'line 2: .*found duplicate key "a"'),
        ("a:\n\tb: 1\n", r"line 2: .*'\\t'"),
        ("", r"expected sections of keys, found None; compare the committed file"),
        ("- 1\n", r"expected sections of keys, found \[1\]"),
        ("a: 1\n---\nb: 1\n", r"line 2: not valid YAML: expected a single document"),
        ("a: [1\nb: 2\n", r"line \d: not valid YAML: "),
        ("a: x\0y\n", r"not valid YAML: unacceptable character #x0000"),
        ('a: "x\\0y"\n', r"a: holds the unprintable character U\+0000; remove it"),
        ('a: ["\\ud800"]\n', r"a\.0: holds the unprintable character U\+D800; remove it"),
        (BOMB, r"b\.0: an alias of another key; write its values out"),
        ("a: &a [*a]\n", r"a\.0: an alias of another key"),
        ("a: !!python/object/apply:os.system [ls]\n", r"line 1: not valid YAML: could not determine a constructor"),
        ("a: {1: x}\n", r"a\.1: the key 1 is not text; put it in quotes"),
        ("a: " + "[" * 1_000_000, r"line 1: not valid YAML: .*depth"),
        ("a: .nan\n", r"a: got nan: not a finite number; write one"),
        ("a: {b: [1.0e+999]}\n", r"a\.b\.0: got inf: not a finite number; write one"),
        ("a: " + "9" * 5000, r"not valid YAML: Exceeds the limit"),
        ("a: 2026-01-31\n", r"a: got 2026-01-31: YAML reads this as a date; put it in quotes"),
    ],
    ids=lambda value: ascii(value)[:40],
)
def test_what_is_no_parameter_file_is_refused_in_one_line(text: str, said: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_yaml(text, "f.yaml")
    assert re.match(f"f.yaml: {said}", str(caught.value))
    assert "\n" not in str(caught.value)


WORDS = "a: [yes, No, on, 010, 0o10, 1_000, 1:30, 1e-5, 2E6, 1.25e5, -.5, 0x1f, !!str 1, ~, y, True]\nb: &x 1\nc: *x\n"
FILES = {name: (ROOT / name).read_text("utf-8") for name in ("params.yaml", "execution.yaml", "presets/paper.yaml")}


@pytest.mark.parametrize("text", [WORDS, *FILES.values()], ids=["words", *FILES])
def test_every_word_is_read_as_dvc_reads_it(text: str) -> None:
    assert parse_yaml(text, "f.yaml") == dvc_reads(text, "f.yaml")


def test_numbers_that_dvc_writes_are_numbers() -> None:
    values = {"a": [1e-05, 3e-05, 1.5e-07, 0.0001, 1e16], "b": -2e-09}
    written = io.StringIO()
    YAML().dump(values, written)
    assert "1e-05" in written.getvalue()
    assert parse_yaml(written.getvalue(), "f.yaml") == values


def test_a_byte_order_mark_and_windows_line_ends_are_accepted(tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_bytes(b"\xef\xbb\xbfa: 1\r\nb: x\r\n")
    assert read_yaml(tmp_path / "f.yaml") == {"a": 1, "b": "x"}


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    def said(name: str) -> str:
        with pytest.raises(UserError) as caught:
            read_yaml(tmp_path / name)
        assert "\n" not in str(caught.value)
        return str(caught.value).removeprefix(f"{tmp_path / name}: ")

    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "latin").write_bytes("a: 1\nb: caf\xe9\n".encode("latin-1"))
    assert said("absent") == "no such file; run from the project root"
    assert said("folder").startswith("cannot be read (Is a directory)")
    assert said("loop").startswith("cannot be read (Too many levels of symbolic links)")
    assert said("latin") == "line 2: not UTF-8; save the file as UTF-8"
