"""`gausscse preset NAME ...`: writes the keys of presets into params.yaml, one after another."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.config.params import PARAMS_FILE
from pipeline.config.preset import apply_presets
from pipeline.utils.parser import Parser


def main(arguments: Sequence[str]) -> None:
    """Apply the presets that the command line names."""
    parser = Parser(
        prog="gausscse preset",
        description=f"Write the keys of presets into {PARAMS_FILE}, one after another, such as a recipe and then the data.",
    )
    parser.add_argument("names", nargs="+", metavar="name", help="name of a file in presets/, without .yaml")
    names = parser.parse_args(arguments).names
    changes = apply_presets(names)
    print("\n".join(changes) if changes else f"{PARAMS_FILE} already holds preset {' and '.join(names)}")
