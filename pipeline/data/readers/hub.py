"""Data sets of the Hugging Face hub, and folders that contain one, read with the `datasets` library.

The library is imported only when a data set is opened, because the import takes seconds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from pipeline.config.data_params import HubSpec
from pipeline.data.readers.convert import Pairs
from pipeline.data.readers.labels import LabelNames
from pipeline.data.readers.layouts import more_columns, pair_columns
from pipeline.data.readers.opening import resolve
from pipeline.data.readers.parquet import ParquetTable
from pipeline.data.readers.row_blocks import Block, listed, reading
from pipeline.data.rows import BATCH_ROWS, Rows
from pipeline.utils.errors import UserError, first_line

_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
_TIMEOUT_S = 10


class Part(Protocol):
    """Some rows of a split."""

    def blocks(self, wanted: Sequence[str]) -> Iterator[Block]:
        """Like `Table.blocks`; rows are counted from the first row of the part."""
        ...


class HubTable:
    """A split: its columns, the names of its ClassLabel columns, and its rows."""

    def __init__(self, columns: Sequence[str], class_names: Mapping[str, Sequence[str]], parts: Sequence[Part]) -> None:
        self.columns = columns
        self.class_names = class_names
        self._parts = parts

    def blocks(self, wanted: Sequence[str]) -> Iterator[Block]:
        before = 0
        for block in chain.from_iterable(part.blocks(wanted) for part in self._parts):
            yield Block(columns=block.columns, rows=block.rows, before=before)
            before += block.rows

    def labels(self, column: str | None, own: Mapping[str, str]) -> LabelNames:
        """The label names of a column. A number of a ClassLabel column means the same as its name; -1 means no label."""
        names = () if column is None else self.class_names.get(column, ())
        if not names:
            return LabelNames(own)
        own_names = LabelNames(own)
        meanings = {str(i): meaning for i, name in enumerate(names) if (meaning := own_names.meaning(name)) is not None}
        return LabelNames({"-1": "none", **meanings, **own})


def read_hub_pairs(root: Path, spec: HubSpec) -> Rows:
    """Pairs from one split of the data set `spec.dataset`, which is a folder under `root` or a hub id at `spec.revision`.

    `source` of a row is the name of the data set, followed by `:value` if it has a text column `source`.

    Raises:
        UserError: the data set, its revision, configuration or split does not exist or cannot be reached; and as in `read_pairs`.
    """
    name = spec.name
    with reading(name), _opened(root, spec) as table:
        both_ways = pair_columns(name, spec, table.columns).reverse_label is not None
        more_columns(name, spec.where, table.columns)

    def batches() -> Iterator[pa.RecordBatch]:
        with reading(name), _opened(root, spec) as table:
            columns, more = pair_columns(name, spec, table.columns), more_columns(name, spec.where, table.columns)
            labels, reverse = (table.labels(column, spec.labels) for column in (columns.label, columns.reverse_label))
            pairs = Pairs(name, Path(spec.dataset).name, columns, more, labels, reverse, spec.where)
            yield from pairs.batches(table.blocks(more.with_columns(columns)))

    return Rows(name=name, batches=batches, both_ways=both_ways)


@contextmanager
def _opened(root: Path, spec: HubSpec) -> Iterator[HubTable]:
    with ExitStack() as stack:
        folder = _folder(root, spec)
        if folder is None:
            yield _dataset_table(_from_hub(spec))
        elif (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file():
            yield _dataset_table(_from_disk(folder, spec))
        else:
            yield _parquet_table(folder, spec, stack)


def _folder(root: Path, spec: HubSpec) -> Path | None:
    """The folder of the data set under `root`; None for a hub id."""
    if root.is_dir() and (root / spec.dataset).is_dir():
        if spec.revision is not None:
            raise UserError(f"{spec.name}: is a folder under data.root ({root}), which has no revision; set revision to null")
        return resolve(root, spec.dataset)
    if _ID.fullmatch(spec.dataset) is None:
        raise UserError(
            f"{spec.name}: no such folder under data.root ({root}), and no id of a data set on the hub; correct dataset"
        )
    if spec.revision is None:
        raise UserError(
            f"{spec.name}: no such folder under data.root ({root}), and for a data set of the hub revision is missing; set it "
            f"to a commit (git ls-remote https://huggingface.co/datasets/{spec.dataset} HEAD)"
        )
    if Path(spec.dataset).exists():
        # `datasets` would read this folder instead of the data set of the hub, whatever the revision.
        raise UserError(f"{spec.name}: a folder of this name is in the working directory; move it under data.root, or rename it")
    return None


def _from_hub(spec: HubSpec) -> Any:
    """The split, downloaded once and then mapped from the cache."""
    _reach(spec)
    from datasets import load_dataset
    from huggingface_hub import constants

    try:
        return load_dataset(spec.dataset, spec.config, split=spec.split, revision=spec.revision)
    except Exception as error:
        reason = first_line(error)
        if constants.HF_HUB_OFFLINE:
            fault = "HF_HUB_OFFLINE is set and the local cache does not have it; unset it, or bring the folder and name that"
            raise UserError(f"{spec.name}: {fault} ({reason})") from error
        raise UserError(f"{spec.name}: cannot be loaded ({reason}); correct dataset, config, split or revision") from error


def _reach(spec: HubSpec) -> None:
    """Send the hub one request, so that being offline is reported in seconds; `datasets` itself would retry many times."""
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    if constants.HF_HUB_OFFLINE:
        return
    try:
        HfApi().dataset_info(spec.dataset, revision=spec.revision, timeout=_TIMEOUT_S)
    except GatedRepoError:
        raise UserError(f"{spec.name}: is gated; accept its terms on the hub and log in (hf auth login)") from None
    except RevisionNotFoundError:
        raise UserError(f"{spec.name}: has no revision {spec.revision} on the hub; correct it") from None
    except RepositoryNotFoundError:
        raise UserError(f"{spec.name}: is not on the hub, or is private; correct dataset, or log in (hf auth login)") from None
    except Exception as error:
        raise UserError(
            f"{spec.name}: {constants.ENDPOINT} cannot be reached ({first_line(error)}); connect, set HF_HUB_OFFLINE=1 "
            "if the data set is in the local cache, or bring its folder and name that"
        ) from error


def _from_disk(folder: Path, spec: HubSpec) -> Any:
    from datasets import DatasetDict, load_from_disk

    splits = load_from_disk(str(folder))
    if not isinstance(splits, DatasetDict):
        splits = {str(splits.split or spec.split): splits}
    if spec.split not in splits:
        raise UserError(f"{spec.name}: no split {spec.split!r}; the folder has {listed([str(name) for name in splits])}")
    return splits[spec.split]


def _dataset_table(dataset: Any) -> HubTable:
    from datasets import ClassLabel

    names = {column: tuple(kind.names) for column, kind in dataset.features.items() if isinstance(kind, ClassLabel)}
    return HubTable(dataset.column_names, names, [_DatasetPart(dataset)])


class _DatasetPart:
    """The rows of a `datasets.Dataset`, which is mapped from Arrow files."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def blocks(self, wanted: Sequence[str]) -> Iterator[Block]:
        before = 0
        for table in self._dataset.select_columns(list(wanted)).with_format("arrow").iter(BATCH_ROWS):
            columns = {column: _checked(table.column(column).combine_chunks()) for column in wanted}
            yield Block(columns=columns, rows=table.num_rows, before=before)
            before += table.num_rows


def _checked(values: Any) -> pa.Array:
    """The array, validated because offsets of a damaged file could point anywhere. The reader reports bad UTF-8 with its row."""
    array = pa.concat_arrays(values.chunks) if isinstance(values, pa.ChunkedArray) else values
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        if "UTF8" not in str(error):
            raise
    return array


def _parquet_table(folder: Path, spec: HubSpec, stack: ExitStack) -> HubTable:
    """A folder of Parquet files with names as on the hub: train-00000-of-00001.parquet or train/0000.parquet."""
    base = folder if spec.config is None else folder / spec.config
    all_files = sorted(base.rglob("*.parquet"))
    files = [file for file in all_files if re.split(r"[-.]", file.name)[0] == spec.split or file.parent.name == spec.split]
    if not files:
        raise UserError(
            f"{spec.name}: no Parquet file of split {spec.split!r} (such as {spec.split}-00000-of-00001.parquet) in {base}; "
            f"it has {listed([file.name for file in all_files]) or 'none at all'}"
        )
    tables = [ParquetTable(f"{spec.name} ({file.relative_to(folder)})", file) for file in files]
    for table in tables:
        stack.callback(table.close)
        if table.schema.types != tables[0].schema.types or list(table.columns) != list(tables[0].columns):
            raise UserError(
                f"{spec.name}: {files[0].name} and {files[tables.index(table)].name} have different columns; write them alike"
            )
    return HubTable(tables[0].columns, _class_names(tables[0].schema), tables)


def _class_names(schema: pa.Schema) -> dict[str, tuple[str, ...]]:
    """Column → names of the ClassLabel columns, from the metadata that `datasets` writes into a Parquet file."""
    note = (schema.metadata or {}).get(b"huggingface")
    features = {} if note is None else json.loads(note).get("info", {}).get("features", {})
    return {
        column: tuple(kind["names"])
        for column, kind in features.items()
        if isinstance(kind, dict) and kind.get("_type") == "ClassLabel" and kind.get("names")
    }
