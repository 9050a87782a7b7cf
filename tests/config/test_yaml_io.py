"""The YAML that people edit means the same to us and to DVC; anything else is refused in one line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from dvc.utils.serialize import parse_yaml as dvc_reads

from pipeline.config.load import parse_yaml, read_yaml
from pipeline.utils.errors import UserError
from tests.conftest import ROOT


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\nb: {c: 1, d: 2, c: 3}\n", r'line 2: not valid YAML: .*found duplicate key "c"; correct'),
        ("", r"expected sections of keys, found None; compare the committed file"),
        ("a: [1\nb: 2\n", r"line \d: not valid YAML: "),
        ("a: x\0y\n", r"not valid YAML: unacceptable character #x0000"),
        ("a: !!python/object/apply:os.system [ls]\n", r"line 1: not valid YAML: could not determine a constructor"),
        ("a: " + "[" * 1_000_000, r"line 1: not valid YAML: .*depth"),
        ("a: {b: [1.0e+999]}\n", r"Out of range float values are not JSON compliant"),
        ("a: 2026-01-31\n", r"Object of type date is not JSON serializable; put dates in quotes"),
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
