"""Options of `gausscse search` that search what an operator makes of sentences."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace


def add(parser: ArgumentParser) -> None:
    """Add the options."""
    operator = parser.add_mutually_exclusive_group()
    operator.add_argument("--fuse", metavar="OTHER", help="search what the sentence and OTHER say together, by cosine")
    operator.add_argument("--without", metavar="OTHER", help="search what the sentence says and OTHER does not, by cosine")
    operator.add_argument("--compress", action="store_true", help="search the main point of the sentence, by cosine")


def asked(options: Namespace) -> tuple[str, *tuple[list[str], ...]] | None:
    """The operation that the options ask for, and its inputs; None if they ask for none."""
    if options.fuse is not None:
        return "fuse", [options.sentence], [options.fuse]
    if options.without is not None:
        return "difference", [options.sentence], [options.without]
    return ("compress", [options.sentence]) if options.compress else None
