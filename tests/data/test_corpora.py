"""What `gausscse corpora` and docs/data.md say of the corpora is equal in both places, and names presets that exist."""

from __future__ import annotations

import re

import pytest

from pipeline.cli.corpora import main
from tests.copies import ROOT

DOCS = (ROOT / "docs/data.md").read_text(encoding="utf-8")


def test_every_command_is_in_the_docs_and_every_preset_exists(capsys: pytest.CaptureFixture[str]) -> None:
    main([])
    text = capsys.readouterr().out
    commands = re.findall(r"^    (\S.*)$", text, re.M)
    fetching = [line for line in commands if not line.startswith("gausscse")]
    assert len(fetching) == 19
    assert all(line in DOCS for line in fetching)
    # What is fetched lies where the preset looks for it.
    presets = [line.split()[-1] for line in commands if line.startswith("gausscse preset recommended")]
    assert presets == ["snli-mnli", "hub", "jsnli"]
    files = re.findall(r"path: ([^,}]+)", (ROOT / "presets/snli-mnli.yaml").read_text(encoding="utf-8"))
    unpacked = [re.search(r"unzip \S+ (?:'(\S+)/\S+'|\S+ -d (\S+))", line) for line in fetching]
    folders = {one[1] or one[2] for one in unpacked if one}
    # Each archive is compared with a sum, except the one for which none is known.
    archives = {line.split("/")[-1].split()[-1] for line in fetching if line.startswith("curl")}
    compared = {line.split("'")[1].split()[-1] for line in fetching if line.endswith("sha256sum -c")}
    assert archives - compared == {"jsnli_1.1.zip"}
    assert {file.partition("/")[0] for file in files} == folders == {"snli_1.0", "multinli_1.0", "SICK"}
