"""Data sets of the Hugging Face hub, and folders that contain one, read with the `datasets` library.

The library is imported only when a data set is opened, because the import takes seconds.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.config.data_params import HubSpec
from pipeline.data.readers.formats import Opened
from pipeline.data.readers.opening import head, resolve
from pipeline.data.readers.parquet import ParquetTable
from pipeline.data.readers.quotes import warn_once
from pipeline.data.readers.row_blocks import Block, listed, shown
from pipeline.data.rows import BATCH_ROWS
from pipeline.utils.errors import UserError, first_line

_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
_TIMEOUT_S = 10
# Files that the library reads and this project does not.
_OF_THE_LIBRARY = (".arrow", ".zip", ".bz2", ".xz")


class HubTable:
    """A split: its columns, the names of its ClassLabel columns, and its rows.

    Args:
        name: its name, for messages.
        dataset: a `Dataset` or `IterableDataset` of the library.
        difference: the first difference between the files of the split; '' if there is none.
    """

    def __init__(self, name: str, dataset: Any, difference: str = "") -> None:
        from datasets import ClassLabel, Features

        features = dataset.features
        if features is None:
            # Of csv and json, the library knows the columns only from the first rows.
            first = next(iter(dataset.with_format("arrow").iter(BATCH_ROWS)), None)
            if first is None or not first.schema.names:
                raise UserError(f"{name}: has no rows; get or write it again")
            features = Features.from_arrow_schema(first.schema)
        self.columns: list[str] = list(features)
        self.class_names = {column: tuple(kind.names) for column, kind in features.items() if isinstance(kind, ClassLabel)}
        self._name, self._dataset, self._difference = name, dataset, difference

    def blocks(self, wanted: Sequence[str]) -> Iterator[Block]:
        """Like `Table.blocks`."""
        before = 0
        try:
            for table in self._dataset.select_columns(list(wanted)).with_format("arrow").iter(BATCH_ROWS):
                columns = {column: _checked(table.column(column).combine_chunks()) for column in wanted}
                yield Block(columns=columns, rows=table.num_rows, before=before)
                before += table.num_rows
        except (pa.ArrowException, ValueError) as error:
            if not self._difference:
                raise
            raise UserError(f"{self._name}: {self._difference}, which datasets cannot read as one; write them alike") from error
        if self._difference:
            warn_once(f"{self._name}: {self._difference}; all rows are read as the first file has them")


@contextmanager
def opened_split(root: Path, spec: HubSpec) -> Iterator[Opened]:
    """The split that `spec` names, like `pipeline.data.readers.formats.opened`."""
    folder = _folder(root, spec)
    import datasets

    # Its messages have several lines; the errors say the same.
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    if folder is None:
        table = HubTable(spec.name, _from_hub(spec))
    elif (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file():
        table = HubTable(spec.name, _from_disk(folder, spec))
    else:
        table = _from_folder(root, folder, spec)
    yield Opened(table, Path(spec.dataset).name, class_names=table.class_names)


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

    remedy = "correct dataset, config, split or revision"
    if constants.HF_HUB_OFFLINE:
        remedy = "HF_HUB_OFFLINE is set and the local cache does not have it: unset it, or bring the folder and name that"
    with _loading(spec, remedy):
        return load_dataset(spec.dataset, spec.config, split=spec.split, revision=spec.revision)


def _reach(spec: HubSpec) -> None:
    """Send the hub one request, so that being offline is reported in seconds; `datasets` itself would retry many times."""
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    if constants.HF_HUB_OFFLINE:
        return
    try:
        HfApi().dataset_info(spec.dataset, revision=spec.revision, timeout=_TIMEOUT_S)
    except RevisionNotFoundError:
        raise UserError(f"{spec.name}: has no revision {spec.revision} on the hub; correct it") from None
    except RepositoryNotFoundError:
        raise UserError(
            f"{spec.name}: is not on the hub, or is private or gated; correct dataset, or accept its terms there and log in "
            "(hf auth login)"
        ) from None
    except Exception as error:
        raise UserError(
            f"{spec.name}: {constants.ENDPOINT} cannot be reached ({first_line(error)}); connect, set HF_HUB_OFFLINE=1 "
            "if the data set is in the local cache, or bring its folder and name that"
        ) from error


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


def _from_folder(root: Path, folder: Path, spec: HubSpec) -> HubTable:
    """The split as `datasets.load_dataset` reads the folder, without a copy in the library's cache.

    Without README.md the library knows no configurations. `config` then names a folder in the folder.
    """
    from datasets import load_dataset_builder

    config = spec.config
    if config is not None and not (folder / "README.md").is_file() and (folder / config).is_dir():
        folder, config = resolve(root, f"{spec.dataset}/{config}"), None
    with _loading(spec):
        builder = load_dataset_builder(str(folder), config)
    splits = {str(split): [Path(file) for file in files] for split, files in (builder.config.data_files or {}).items()}
    files, base = _chosen(splits, spec), folder.resolve()
    schemas: dict[str, pa.Schema] = {}
    for file in files:
        if not Path(os.path.normpath(file)).is_relative_to(base):
            raise UserError(f"{spec.name}: README.md names {file}, which is outside the folder; move it there")
        name = f"{spec.name} ({file.relative_to(base)})"
        if file.suffix == ".parquet":
            with closing(ParquetTable(name, file)) as table:
                schemas[name] = table.schema
        elif file.suffix not in _OF_THE_LIBRARY:
            head(file, name)
    folders = sorted({file.parent.name for file in files})
    if len(folders) > 1 and builder.config.name == "default":
        warn_once(f"{spec.name}: is read from the folders {listed(folders)} together; if they are configurations, set config")
    with _loading(spec):
        dataset = builder.as_streaming_dataset(spec.split)
    return HubTable(spec.name, dataset, _difference(schemas))


@contextmanager
def _loading(spec: HubSpec, remedy: str = "correct dataset or config") -> Iterator[None]:
    try:
        yield
    except Exception as error:
        reason = shown(" ".join(str(error).split()), 300)
        raise UserError(f"{spec.name}: datasets cannot load it ({reason}); {remedy}") from error


def _difference(schemas: Mapping[str, pa.Schema]) -> str:
    """The first column that differs between files, with its types; '' if there is none."""
    first = next(iter(schemas), "")
    for name, schema in schemas.items():
        expected = schemas[first]
        for column in dict.fromkeys((*expected.names, *schema.names)):
            kinds = [str(each.field(column).type) if column in each.names else "missing" for each in (expected, schema)]
            if kinds[0] != kinds[1]:
                return f"column {column!r} is {kinds[0]} in {first} and {kinds[1]} in {name}"
    return ""
