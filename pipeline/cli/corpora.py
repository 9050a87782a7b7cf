"""`gausscse corpora`: how to get the official corpora. It downloads nothing, because you should read their terms first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipeline.utils.parser import Parser


def main(arguments: Sequence[str]) -> None:
    """Print how to get each corpus: what it holds, its licence, commands, and the section data of params.yaml."""
    Parser(prog="gausscse corpora", description="How to get the official corpora.").parse_args(arguments)
    print(Path(__file__).with_suffix(".txt").read_text(encoding="utf-8"), end="")
