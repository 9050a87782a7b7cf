"""What is said about the corpora can be used as it stands, and is said alike in both places."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml
from conftest import ROOT

from pipeline.config.data_params import DataParams
from pipeline.data.corpora import CORPORA, Corpus, described
from pipeline.data.readers.layouts import PAIR_LAYOUTS

DOCS = (ROOT / "docs/data.md").read_text(encoding="utf-8")


def validated(keys: dict[str, Any]) -> DataParams:
    committed = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))["data"]
    return DataParams.model_validate_json(json.dumps(committed | keys))


@pytest.mark.parametrize("corpus", CORPORA, ids=lambda corpus: corpus.name)
def test_every_snippet_is_valid_and_stands_in_the_docs(corpus: Corpus) -> None:
    data = validated(yaml.safe_load("data:\n" + corpus.data)["data"])
    assert data.source in ("files", "hub")
    assert corpus.data in DOCS
    assert all(command in DOCS and command in described(corpus) for command in corpus.get)
    assert corpus.licence in DOCS


def test_every_specification_in_the_docs_is_valid() -> None:
    specs = [block for block in re.findall(r"```yaml\n(.*?)```", DOCS, re.S) if block.startswith("dev:")]
    assert len(specs) >= 4
    for block in specs:
        keys = yaml.safe_load(block)
        kind = "hub" if "dataset" in keys["dev"] else "files"
        validated(
            {"source": kind, kind: {"train": [{**keys["dev"], **({"path": "t"} if kind == "files" else {"split": "t"})}], **keys}}
        )


def test_the_docs_list_every_layout() -> None:
    for layout in PAIR_LAYOUTS.values():
        assert f"| `{layout.premise}` | `{layout.hypothesis}` | `{layout.label}` |" in DOCS
