"""Operation rows that section `data` names: set → rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pipeline.config.data_params import DataParams, OperationSpec, OperationTestSpec
from pipeline.data.generated.premises import Split
from pipeline.data.readers import GENERATED
from pipeline.data.readers.opening import resolve
from pipeline.families.operations.generated import OperationRow, generate_operations
from pipeline.families.operations.readers import read_operations
from pipeline.families.prepare import generated_sets, named_sets
from pipeline.utils.errors import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationSource:
    """A set of operation rows."""

    name: str
    """In messages."""
    rows: Callable[[], Iterable[tuple[str, tuple[OperationRow, ...]]]]
    """For each row of the input: its source, and the operation rows that it gives."""
    remedy: str
    """How to get more rows."""
    connected: bool
    """Whether rows that share a sentence must be in the same set; if not, only equal rows must."""
    share: float = 1.0
    """Share of the components that are taken."""


def operation_sources(data: DataParams) -> dict[str, OperationSource]:
    """The sets of operation rows that section `data` names, training first: set → rows; empty if it names none."""
    files = data.files
    if data.source == "generated":
        return generated_sets("operations", data.generated.operations, partial(_generated, data.seed))
    if data.source == "files":
        own = files.operations, files.operations_dev, files.operations_tests
        return named_sets("operations", *own, partial(_files, Path(data.root)))
    return {}


def _generated(seed: int, split: Split, number: int) -> OperationSource:
    def read() -> Iterator[tuple[str, tuple[OperationRow, ...]]]:
        try:
            for row in generate_operations(split, number, seed):
                yield GENERATED, (row,)
        except ValueError as error:
            raise UserError(f"data.generated.operations: {error}; ask for fewer") from None

    return OperationSource(name=GENERATED, rows=read, remedy="raise data.generated.operations", connected=False)


def _files(root: Path, specs: Sequence[OperationSpec]) -> OperationSource:
    def read() -> Iterator[tuple[str, tuple[OperationRow, ...]]]:
        for spec in specs:
            path = resolve(root, spec.path)
            for rows in read_operations(path, where=spec.where, form=spec):
                yield path.stem, rows

    share = specs[0].share if isinstance(specs[0], OperationTestSpec) else 1.0
    name = ", ".join(dict.fromkeys(spec.path for spec in specs))
    return OperationSource(name=name, rows=read, remedy="add rows", connected=True, share=share)
