from __future__ import annotations

import io
import os
import re
from pathlib import Path

import pytest
import yaml
from conftest import ROOT
from ruamel.yaml import YAML

from pipeline.config.yaml_io import MAX_BYTES, BrokenYaml, parse_yaml, read_yaml


def refusal(text: str) -> str:
    with pytest.raises(BrokenYaml) as caught:
        parse_yaml(text, "f.yaml")
    said = str(caught.value)
    assert said.startswith("f.yaml: ")
    assert "\n" not in said
    return said.removeprefix("f.yaml: ")


BOMB = "a: &a [x, x]\n" + "".join(f"{chr(98 + i)}: &{chr(98 + i)} [*{chr(97 + i)}, *{chr(97 + i)}]\n" for i in range(20))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\nb: {c: 1, d: 2, c: 3}\n", r"line 2: b\.c is given again \(first on line 2\); remove one"),
        ("a: 1\nb: 2\na: 3\n", r"line 3: a is given again \(first on line 1\); remove one"),
        ("a: 1\n'a': 3\n", r"line 2: a is given again"),
        ("a:\n\tb: 1\n", r"line 2: a tab; indent with spaces"),
        ("a:\t1\n", r"line 1: a tab; indent with spaces"),
        ("", r"expected sections of keys, found nothing"),
        ("# only a comment\n", r"expected sections of keys, found nothing"),
        ("---\n...\n", r"expected sections of keys, found nothing"),
        ("- 1\n", r"expected sections of keys, found a list"),
        ("text\n", r"expected sections of keys, found a single value"),
        ("a: 1\n---\nb: 1\n", r"line 2: not valid YAML: expected a single document in the stream, but found another document"),
        ("a: [1\nb: 2\n", r"line \d: not valid YAML: "),
        ("a: b: c\n", r"line 1: not valid YAML: mapping values are not allowed here"),
        ("a: 'x\n", r"line 2: not valid YAML: while scanning a quoted scalar, found unexpected end of stream"),
        ("a: 1\n b: 2\n", r"line 2: not valid YAML"),
        ("a: x\0y\n", r"not valid YAML: unacceptable character #x0000"),
        ('a: "x\\0y"\n', r"line 1: a: holds the unprintable character U\+0000; remove it"),
        ('a: "\\ud800"\n', r"line 1: a: holds the unprintable character U\+D800; remove it"),
        (BOMB, r"line 1: &a is an anchor; remove it"),
        ("a: 1\nb: *x\n", r"line 2: not valid YAML: found undefined alias 'x'"),
        ("a: 1\n*x : 2\n", r"line 2: not valid YAML: found undefined alias 'x'"),
        ("a: {<<: {b: 1}}\n", r"line 1: << merges another mapping; write its keys out"),
        ("a: !!python/object/apply:os.system [ls]\n", r"line 1: !!python/object/apply:os\.system is a tag; remove it"),
        ("a: !custom x\n", r"line 1: !custom is a tag; remove it"),
        ("a: !!str 1\n", r"line 1: !!str is a tag; remove it"),
        ("1: x\n", r"line 1: the key 1 is not text to YAML; put it in quotes"),
        ("on: x\n", r"line 1: the key on is not text to YAML; put it in quotes"),
        ("? [a]\n: x\n", r"line 1: a key must be plain text"),
        ("a: " + "[" * 5000, r"line 1: more than 20 levels deep"),
        ("a: 1e-5\n", r"a: got 1e-5 \(line 1\): YAML reads this as text; write it with a point, as 1\.0e-5, or put"),
        ("a: 1.25e5\n", r"a: got 1\.25e5 .* as 1\.25e\+5, or put"),
        ("a: 2E6\n", r"a: got 2E6 .* as 2\.0e\+6, or put"),
        (
            "a: {b: [1, yes]}\n",
            r"a\.b\.1: got yes \(line 1\): YAML versions disagree whether this is text; write true or false, or",
        ),
        ("a: No\n", r"a: got No"),
        ("a: ON\n", r"a: got ON"),
        ("a: .nan\n", r"a: got \.nan \(line 1\): not a finite number; write one"),
        ("a: -.INF\n", r"a: got -\.INF \(line 1\): not a finite number; write one"),
        ("a: 1.0e+999\n", r"a: got 1\.0e\+999 \(line 1\): too large for a number"),
        ("a: 99999999999999999999\n", r"a: got 9+ \(line 1\): too large for a number"),
        ("a: 010\n", r"a: got 010 \(line 1\): YAML versions disagree about this spelling; write plain decimal digits"),
        ("a: 1:30\n", r"a: got 1:30 \(line 1\): YAML versions disagree"),
        ("a: 1_000\n", r"a: got 1_000 \(line 1\): YAML versions disagree"),
        ("a: 0o10\n", r"a: got 0o10 \(line 1\): YAML versions disagree"),
        ("a: 08\n", r"a: got 08 \(line 1\): YAML versions disagree"),
        ("a: -.5\n", r"a: got -\.5 \(line 1\): YAML versions disagree"),
        ("a: 2026-01-31\n", r"a: got 2026-01-31 \(line 1\): YAML does not read this as text; put it in quotes"),
    ],
    ids=lambda value: ascii(value)[:40],
)
def test_what_can_be_misread_is_refused_in_one_line(text: str, said: str) -> None:
    assert re.match(said, refusal(text))


def test_a_bomb_is_refused_before_it_grows() -> None:
    assert "levels deep" in refusal("a: " + "[" * 1_000_000)


@pytest.mark.parametrize(
    "text",
    ["a: 1\nb: -2.5\nc: [1.0e-4, .5, 3.]\nd: {e: null, f: ~, g: }\nh: 'yes'\ni: \"1e-5\"\nj: True\nk: 0\nl: y\nm: 1.0e+5\n"],
)
def test_what_is_read_is_what_both_versions_of_yaml_read(text: str) -> None:
    ours = parse_yaml(text, "f.yaml")
    assert ours == yaml.safe_load(text) == YAML(typ="safe", pure=True).load(text)


@pytest.mark.parametrize(
    "file", ["params.yaml", "execution.yaml", *(f"presets/{name}.yaml" for name in ("quick", "files", "paper"))]
)
def test_the_committed_files_mean_the_same_to_dvc(file: str) -> None:
    text = (ROOT / file).read_text(encoding="utf-8").replace("${GAUSSCSE_DATA}", "folder")
    assert parse_yaml(text, file) == YAML(typ="safe", pure=True).load(text)


def test_numbers_that_dvc_writes_are_numbers() -> None:
    values = {"a": [1e-05, 3e-05, 1.5e-07, 0.0001, 1e16], "b": -2e-09}
    written = io.StringIO()
    YAML().dump(values, written)
    assert "1e-05" in written.getvalue()
    assert parse_yaml(written.getvalue(), "f.yaml") == values


def test_a_byte_order_mark_and_windows_line_ends_are_no_fault(tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_bytes(b"\xef\xbb\xbfa: 1\r\nb: x\r\n")
    assert read_yaml(tmp_path / "f.yaml") == {"a": 1, "b": "x"}


def test_files_that_are_none_are_refused_in_one_line(tmp_path: Path) -> None:
    def said(name: str) -> str:
        with pytest.raises(BrokenYaml) as caught:
            read_yaml(tmp_path / name)
        assert "\n" not in str(caught.value)
        return str(caught.value).removeprefix(f"{tmp_path / name}: ")

    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "latin").write_bytes("a: 1\nb: caf\xe9\n".encode("latin-1"))
    (tmp_path / "wide").write_text("a: 1\n", encoding="utf-16")
    (tmp_path / "large").write_bytes(b"#" * (MAX_BYTES + 1))
    os.mkfifo(tmp_path / "pipe")
    assert said("absent") == "no such file; run from the project root"
    assert said("folder").startswith("this is a directory")
    assert said("loop").startswith("cannot be read (Too many levels of symbolic links)")
    assert said("latin").startswith("line 2: not UTF-8 (byte 0xe9); save the file as UTF-8")
    assert said("wide").startswith("line 1: not UTF-8")
    assert said("large").startswith("1,000,001 bytes are more than")
    assert said("pipe").startswith("this is not a regular file")


def test_a_file_one_may_not_read_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_text("a: 1\n", encoding="utf-8")
    (tmp_path / "f.yaml").chmod(0)
    before = os.geteuid()
    try:
        if before == 0:
            # Root may read everything: be nobody for a moment.
            os.seteuid(65534)
        with pytest.raises(BrokenYaml, match=r"cannot be read \(Permission denied\)"):
            read_yaml(tmp_path / "f.yaml")
    finally:
        os.seteuid(before)
