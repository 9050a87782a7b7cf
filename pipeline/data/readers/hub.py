"""Data sets of the Hugging Face hub, and folders that contain one, read with the `datasets` library.

The library is imported only when a data set is opened, because the import takes seconds.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.config.data_params import HubSpec
from pipeline.data.readers.formats import open_parquet_source, open_table
from pipeline.data.readers.opening import head, resolve
from pipeline.data.readers.row_blocks import Block, Table, listed, shown, warn_once
from pipeline.data.schema import BATCH_ROWS
from pipeline.utils.errors import UserError, first_line

_TIMEOUT_S = 10
# Files that the library reads and this project does not.
_OF_THE_LIBRARY = (".arrow", ".zip", ".bz2", ".xz")


def open_split(root: Path, spec: HubSpec) -> Table:
    """The split that `spec` names, like `pipeline.data.readers.formats.open_table`."""
    folder = _folder(root, spec)
    import datasets

    # Its messages have several lines; the errors say the same.
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    if folder is None:
        table = _table(spec.name, _from_hub(spec))
    elif (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file():
        table = _table(spec.name, _from_disk(folder, spec))
    else:
        table = _from_folder(folder, spec)
    return replace(table, stem=Path(spec.dataset).name)


def _table(name: str, dataset: Any, difference: str = "") -> Table:
    """The table of a split.

    Args:
        name: its name, for messages.
        dataset: a `Dataset` or `IterableDataset` of the library.
        difference: the first difference between the files of the split; '' if there is none.
    """
    from datasets import ClassLabel, Features

    features = dataset.features
    if features is None:
        # Of csv and json, the library knows the columns only from the first rows.
        with _as_one(name, difference):
            first = next(iter(dataset.with_format("arrow").iter(BATCH_ROWS)), None)
        if first is None or not first.schema.names:
            raise UserError(f"{name}: has no rows; get or write it again")
        features = Features.from_arrow_schema(first.schema)

    def blocks(wanted: Sequence[str]) -> Iterator[Block]:
        before = 0
        with _as_one(name, difference):
            for table in dataset.select_columns(list(wanted)).with_format("arrow").iter(BATCH_ROWS):
                columns = {column: _checked(table.column(column).combine_chunks()) for column in wanted}
                yield Block(columns=columns, rows=table.num_rows, before=before)
                before += table.num_rows
        if difference:
            warn_once(f"{name}: {difference}; all rows are read as the first file has them")

    classes = {column: tuple(kind.names) for column, kind in features.items() if isinstance(kind, ClassLabel)}
    return Table(columns=list(features), blocks=blocks, class_names=classes)


@contextmanager
def _as_one(name: str, difference: str) -> Iterator[None]:
    """Name the first difference between the files of a split, if there is one, where the library fails."""
    try:
        yield
    except (pa.ArrowException, ValueError) as error:
        if not difference:
            raise
        raise UserError(f"{name}: {difference}, which datasets cannot read as one; write them alike") from error


def _folder(root: Path, spec: HubSpec) -> Path | None:
    """The folder of the data set under `root`; None for a hub id."""
    if root.is_dir() and (root / spec.dataset).is_dir():
        if spec.revision is not None:
            raise UserError(f"{spec.name}: is a folder under data.root ({root}), which has no revision; set revision to null")
        return resolve(root, spec.dataset)
    if spec.revision is None:
        command = f"git ls-remote https://huggingface.co/datasets/{spec.dataset} HEAD"
        raise UserError(
            f"{spec.name}: no such folder under data.root ({root}), and revision is missing; set it to a commit ({command})"
        )
    if Path(spec.dataset).exists():
        # `datasets` would read this folder instead of the data set of the hub, whatever the revision.
        raise UserError(f"{spec.name}: a folder of this name is in the working directory; move it under data.root, or rename it")
    return None


def _from_hub(spec: HubSpec) -> Any:
    """The split, downloaded once and then mapped from the cache."""
    from datasets import load_dataset
    from huggingface_hub import HfApi, constants

    if constants.HF_HUB_OFFLINE:
        remedy = "HF_HUB_OFFLINE is set and the local cache does not have it: unset it, or bring the folder and name that"
    else:
        remedy = "correct dataset, config, split or revision"
        try:
            # One request, so that being offline is reported in seconds; `load_dataset` would retry many times.
            HfApi().dataset_info(spec.dataset, revision=spec.revision, timeout=_TIMEOUT_S)
        except Exception as error:
            fault = f"{constants.ENDPOINT} does not have or show revision {spec.revision} of it, or cannot be reached"
            remedy = "correct dataset or revision, log in (hf auth login), or set HF_HUB_OFFLINE=1 to use the local cache"
            raise UserError(f"{spec.name}: {fault} ({first_line(error)}); {remedy}") from error
    with _loading(spec, remedy):
        return load_dataset(spec.dataset, spec.config, split=spec.split, revision=spec.revision)


def _from_disk(folder: Path, spec: HubSpec) -> Any:
    from datasets import DatasetDict, load_from_disk

    if spec.config is not None:
        raise UserError(f"{spec.name}: is a folder of save_to_disk, which has no configurations; set config to null")
    splits = load_from_disk(str(folder))
    if not isinstance(splits, DatasetDict):
        splits = {str(splits.split or spec.split): splits}
    return _chosen(splits, spec)


def _chosen(splits: Mapping[Any, Any], spec: HubSpec) -> Any:
    if spec.split not in splits:
        raise UserError(f"{spec.name}: no split {spec.split!r}; the folder has {listed([str(name) for name in splits])}")
    return splits[spec.split]


def _checked(array: pa.Array) -> pa.Array:
    """The array, validated because offsets of a damaged file could point anywhere. The reader reports bad UTF-8 with its row."""
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        if "UTF8" not in str(error):
            raise
    return array


def _from_folder(folder: Path, spec: HubSpec) -> Table:
    """The split as `datasets.load_dataset` reads the folder, without a copy in the library's cache."""
    from datasets import load_dataset_builder

    with _loading(spec):
        builder = load_dataset_builder(str(folder), spec.config)
    splits = {str(split): [Path(file) for file in files] for split, files in (builder.config.data_files or {}).items()}
    files, base = _chosen(splits, spec), folder.resolve()
    schemas: dict[str, pa.Schema] = {}
    for file in files:
        if not Path(os.path.normpath(file)).is_relative_to(base):
            raise UserError(f"{spec.name}: README.md names {file}, which is outside the folder; move it there")
        name = f"{spec.name} ({file.relative_to(base)})"
        if file.suffix == ".parquet":
            schemas[name] = open_parquet_source(name, file).metadata.schema.to_arrow_schema()
        elif {".csv", ".tsv", ".jsonl"} & {*file.suffixes}:
            # Their values have no types yet.
            columns = open_table(folder, str(file.relative_to(base))).columns
            schemas[name] = pa.schema([(column, pa.string()) for column in columns])
        elif file.suffix not in _OF_THE_LIBRARY:
            head(file, name)
    folders = sorted({file.parent.name for file in files})
    if len(folders) > 1 and builder.config.name == "default":
        warn_once(f"{spec.name}: is read from the folders {listed(folders)} together; if each is one, name it as dataset")
    with _loading(spec):
        dataset = builder.as_streaming_dataset(spec.split)
    return _table(spec.name, dataset, _difference(schemas))


@contextmanager
def _loading(spec: HubSpec, remedy: str = "correct dataset or config") -> Iterator[None]:
    try:
        yield
    except Exception as error:
        reason = shown(" ".join(str(error).split()), 300)
        raise UserError(f"{spec.name}: datasets cannot load it ({reason}); {remedy}") from error


def _difference(schemas: Mapping[str, pa.Schema]) -> str:
    """The first column that differs between files, with its types and the names of its classes; '' if there is none."""
    from datasets import ClassLabel, Features

    kinds: dict[str, dict[str, str]] = {}
    for name, schema in schemas.items():
        features = Features.from_arrow_schema(schema)
        classes = {column: f" of {', '.join(kind.names)}" for column, kind in features.items() if isinstance(kind, ClassLabel)}
        kinds[name] = {field.name: f"{field.type}{classes.get(field.name, '')}" for field in schema}
    first = next(iter(kinds), "")
    for name, other in kinds.items():
        for column in {**kinds[first], **other}:
            here, there = (each.get(column, "missing") for each in (kinds[first], other))
            if here != there:
                return f"column {column!r} is {here} in {first} and {there} in {name}"
    return ""
