"""Reads the result files. A file that is missing, or not as its stage writes it, gives an error of one line."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.utils.errors import UserError


@contextmanager
def contents_of(path: Path) -> Iterator[None]:
    """Turn a missing key or a wrong value into an error that names the file.

    Raises:
        UserError: the block found something that the file's stage does not write.
    """
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(
            f"{path}: not what its stage writes ({type(error).__name__}: {error}); run `dvc repro` to make it"
        ) from None


def read_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file with a header.

    Raises:
        UserError: the file is missing, or not such a file.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; run `dvc repro` to make it") from None
    except (OSError, ValueError, csv.Error) as error:
        raise UserError(f"{path}: cannot be read as CSV: {error}") from None


def read_table(path: Path, columns: Sequence[str] | None = None) -> Any:
    """A Parquet file, or only some of its columns.

    Raises:
        UserError: the file is missing, or not such a file.
    """
    try:
        return pq.read_table(path, columns=None if columns is None else list(columns))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; run `dvc repro` to make it") from None
    except (OSError, pa.ArrowException) as error:
        raise UserError(f"{path}: cannot be read as Parquet: {error}") from None


def number(text: str) -> float | None:
    """A number from a CSV file; None if the cell is empty."""
    return float(text) if text else None
