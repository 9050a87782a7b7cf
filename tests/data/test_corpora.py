"""What `gausscse corpora` and docs/data.md say of the corpora can be used unchanged, and is equal in both places."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml

from pipeline.cli.corpora import main
from pipeline.config.data_params import DataParams
from tests.copies import ROOT

DOCS = (ROOT / "docs/data.md").read_text(encoding="utf-8")


def validated(keys: dict[str, Any]) -> DataParams:
    committed = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))["data"]
    return DataParams.model_validate_json(json.dumps(committed | keys))


def test_every_snippet_of_the_command_is_valid_and_in_the_docs(capsys: pytest.CaptureFixture[str]) -> None:
    main([])
    text = capsys.readouterr().out
    snippets = [re.sub("^  ", "", part, flags=re.M) for part in re.findall(r"section data:\n(.*?\n)\n", text, re.S)]
    assert len(snippets) == 4
    for snippet in snippets:
        assert validated(yaml.safe_load("data:\n" + snippet)["data"]).source in ("files", "hub")
        assert snippet in DOCS
