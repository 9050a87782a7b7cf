"""argparse for the commands, with errors in one line as everywhere else."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import NoReturn

from pipeline.utils.errors import UserError

MODEL = "models:/NAME@ALIAS, models:/NAME/VERSION, a model's folder, or OWNER/NAME on the Hugging Face hub"
"""Help of an argument that names a model."""


class Parser(argparse.ArgumentParser):
    """An argument parser that raises a `UserError` instead of printing its usage and exiting."""

    def error(self, message: str) -> NoReturn:
        """Refuse the command line."""
        raise UserError(f"{self.prog}: {message} (`{self.prog} --help` says more)")


def above_zero(text: str) -> float:
    """An argument that is a number above 0, for `type=`."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return number


def whole(least: int, most: int = 2**32 - 1) -> Callable[[str], int]:
    """An argument that is a whole number from `least` to `most`, for `type=`."""

    def parsed(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least} to {most}")
        return int(text)

    return parsed
