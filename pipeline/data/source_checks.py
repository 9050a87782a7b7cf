"""Checks of the raw data: no file is used for two data sets, however its path is spelled, and every file can be read."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.config.data_params import DataParams, HubSpec
from pipeline.config.params import PARAMS_FILE
from pipeline.config.types import Section
from pipeline.utils.errors import UserError


@dataclass(frozen=True, slots=True)
class _Use:
    """One entry of the data section."""

    key: str
    """Dotted key below `data.`."""
    role: str
    """Key of the source's section that it is in."""
    shown: str
    identity: tuple[object, ...]
    """Equal for entries that read the same file or the same split."""
    where: Mapping[str, Any]
    """Column → value of the selected rows; empty for all rows."""
    is_share: bool
    """True if it takes a share of the file's rows, which are then left out of training."""

    def clashes(self, other: _Use) -> bool:
        """True if both entries may read the same row and must not. Graded pairs are scored in another way than test sets."""
        apart = any(column in other.where and other.where[column] != value for column, value in self.where.items())
        is_cut = self.is_share and other.role == "operations"
        is_graded = self.role == "sts" and other.role != "train"
        return self.identity == other.identity and not apart and not is_cut and not is_graded


def check_sources(data: DataParams) -> None:
    """Check that the raw input exists and that no two data sets share rows.

    Graded pairs (sts) may come from the file of the development set or a test set, because they are scored in another way.

    Raises:
        UserError: an input is missing or two data sets share rows; the message names the key.
    """
    root = Path(data.root)
    if not _exists(root):
        raise UserError(
            f"{PARAMS_FILE}: data.root: got {data.root!r}: no file or folder that can be read; correct the path, or fetch "
            "the data (`gausscse corpora` says how)"
        )
    uses: list[_Use] = []
    for use in _uses(data, root):
        for other in uses:
            if use.clashes(other):
                raise UserError(f"{PARAMS_FILE}: data.{use.key}: {use.shown} is used for data.{other.key}, too; remove one")
        uses.append(use)


def _uses(data: DataParams, root: Path) -> Iterator[_Use]:
    """The entries of the selected source."""
    for role, entries in getattr(data, data.source):
        specs: Any = {"": entries} if isinstance(entries, Section) else entries
        named = enumerate(specs) if isinstance(specs, tuple) else specs.items() if isinstance(specs, Mapping) else ()
        for name, spec in named:
            yield _use(".".join(str(part) for part in (data.source, role, name) if part != ""), role, spec, root)


def _use(key: str, role: str, spec: Any, root: Path) -> _Use:
    where = getattr(spec, "where", {})
    if isinstance(spec, HubSpec):
        folder = root / spec.dataset
        dataset = _file_identity(folder) if _exists(folder) else spec.dataset
        return _Use(key, role, repr(spec.name), (dataset, spec.config, spec.split), where, False)
    file, shown = root / spec.path, repr(spec.path)
    if not file.exists():
        raise UserError(f"{PARAMS_FILE}: data.{key}.path: got {shown}: no such file under data.root ({root}); correct it")
    return _Use(key, role, shown, _file_identity(file), where, getattr(spec, "share", 1.0) < 1)


def _file_identity(file: Path) -> tuple[object, ...]:
    """Equal for all spellings of a path, and for links."""
    status = file.stat()
    return (status.st_dev, status.st_ino)


def _exists(path: Path) -> bool:
    # Path.exists raises an error for a folder without permission.
    return os.path.exists(path)  # noqa: PTH110
