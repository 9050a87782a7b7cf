"""`gausscse corpora`: how to get the official corpora. It downloads nothing, because you should read their terms first."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.cli.parser import Parser
from pipeline.data.corpora import CORPORA, described


def main(arguments: Sequence[str]) -> None:
    """Print how to get each corpus."""
    Parser(prog="gausscse corpora", description="How to get the official corpora.").parse_args(arguments)
    print("\n".join(described(corpus) for corpus in CORPORA))
    print("All formats, and how to use files of your own: docs/data.md")
