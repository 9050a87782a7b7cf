"""Checks of the raw data: no file is used for two data sets, however its path is spelled, and every file can be read."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.config.data_params import DataParams
from pipeline.config.params import PARAMS_FILE
from pipeline.config.types import Section
from pipeline.utils.errors import UserError

# A data set in three files in one folder; any of the three names identifies it.
_TRIPLE = re.compile(r"(?:s1|s2|labels)\.(.+)")

# Keys of a source's section → what their entries are.
_ROLES = {
    "train": "a training file",
    "dev": "the development set",
    "tests": "a test set",
    "sts": "a set of graded pairs",
    "text": "training text",
    "text_dev": "the development text",
    "text_tests": "a test set of running text",
    "tasks": "a transfer task",
    "operations": "training rows of operations",
    "operations_dev": "the development set of operations",
    "operations_tests": "a test set of operations",
}


@dataclass(frozen=True, slots=True)
class _Use:
    """One entry of the data section."""

    key: str
    """Dotted key below `data.`."""
    role: str
    """A key of `_ROLES`."""
    shown: str
    identity: tuple[object, ...]
    """Equal for entries that read the same file or the same split."""
    where: Mapping[str, Any]
    """Column → value of the selected rows; empty for all rows."""
    is_share: bool
    """Whether it takes a share of the file's rows, which are then left out of training."""

    def shares_rows(self, other: _Use) -> bool:
        """Whether both entries can read the same row."""
        apart = any(column in other.where and other.where[column] != value for column, value in self.where.items())
        is_cut = self.is_share and other.role == "operations"
        return self.identity == other.identity and not apart and not is_cut


def check_sources(data: DataParams) -> None:
    """Check that the raw input exists and that no two data sets share rows.

    Graded pairs (sts) may come from the file of the development set or a test set, because they are scored in another way.

    Raises:
        UserError: an input is missing or two data sets share rows; the message names the key.
    """
    root = Path(data.root)
    if not _exists(root):
        raise UserError(f"{PARAMS_FILE}: data.root: got {data.root!r}: no file or folder that can be read; correct the path")
    uses: list[_Use] = []
    for use in _uses(data, root):
        for other in uses:
            if use.shares_rows(other) and not (use.role == "sts" and other.role != "train"):
                raise UserError(f"{PARAMS_FILE}: data.{use.key}: {_clash(use, other)}")
        uses.append(use)


def _clash(use: _Use, other: _Use) -> str:
    if use.role == other.role:
        return f"{use.shown} is given twice (also as data.{other.key}); remove one"
    return f"{use.shown} is both {_ROLES[other.role]} (data.{other.key}) and {_ROLES[use.role]}; remove one"


def _uses(data: DataParams, root: Path) -> Iterator[_Use]:
    """The entries of the selected source."""
    section: Section | None = getattr(data, data.source, None)
    for role in _ROLES:
        entries = getattr(section, role, None)
        if isinstance(entries, tuple):
            specs = {str(number): spec for number, spec in enumerate(entries)}
        elif isinstance(entries, Mapping):
            specs = dict(entries)
        else:
            specs = {"": entries} if isinstance(entries, Section) else {}
        for name, spec in specs.items():
            key = ".".join(part for part in (data.source, role, name) if part)
            yield _use(key, role, spec, root)


def _use(key: str, role: str, spec: Section, root: Path) -> _Use:
    values = spec.model_dump()
    where = values.get("where") or {}
    if "path" in values:
        file = root / values["path"]
        if not file.exists():
            shown = f"data.{key}.path: got {values['path']!r}"
            raise UserError(
                f"{PARAMS_FILE}: {shown}: no such file under data.root ({root}); correct the path or put the file there"
            )
        return _Use(key, role, repr(values["path"]), _file_identity(file), where, values.get("share", 1.0) < 1)
    shown = ", ".join(repr(values[part]) for part in ("dataset", "config", "split") if values.get(part))
    folder = root / values["dataset"]
    dataset = _file_identity(folder) if _exists(folder) else values["dataset"]
    return _Use(key, role, shown, (dataset, values.get("config"), values.get("split")), where, False)


def _file_identity(file: Path) -> tuple[object, ...]:
    """Equal for all spellings of a path, for links, and for the three files of one data set."""
    triple = _TRIPLE.fullmatch(file.name)
    first = file.with_name(f"s1.{triple[1]}") if triple else file
    status = (first if _exists(first) else file).stat()
    return (status.st_dev, status.st_ino)


def _exists(path: Path) -> bool:
    # Path.exists raises an error for a folder without permission.
    return os.path.exists(path)  # noqa: PTH110
