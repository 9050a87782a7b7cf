"""`gausscse preset NAME`: writes the keys of a preset into params.yaml."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.config.params import PARAMS_FILE
from pipeline.config.preset import apply_preset
from pipeline.utils.parser import Parser


def main(arguments: Sequence[str]) -> None:
    """Apply the preset that the command line names."""
    parser = Parser(prog="gausscse preset", description=f"Write the keys of a preset into {PARAMS_FILE}.")
    parser.add_argument("name", help="name of a file in presets/, without .yaml")
    name = parser.parse_args(arguments).name
    changes = apply_preset(name)
    print("\n".join(changes) if changes else f"{PARAMS_FILE} already holds preset {name}")
