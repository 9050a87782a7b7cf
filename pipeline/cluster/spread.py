"""Stages prepare and tokenize on a cluster: whether they go there, and what they need of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyarrow import ArrowException

from pipeline.config.data_params import DataParams
from pipeline.config.execution import ClusterParams
from pipeline.config.job_inputs import in_job, installed, owner, standing
from pipeline.config.paths import PREPARED, WORK, home
from pipeline.identity.digests import digest_of_sums, stage_sums
from pipeline.storage.exchange import Exchange, Spread
from pipeline.storage.inventory import Item, remove
from pipeline.storage.object_store import Storage, at_once, stamp_of
from pipeline.utils.atomic_io import sha256_file, sha256_json

# Bytes of text below which a stage runs here: starting the tasks takes longer than some hundred thousand pairs.
_LARGE = 2**24
# Of a row of a prepared table, about.
_ROW_BYTES = 100


def raw_files(data: DataParams) -> dict[Path, int]:
    """The training files that stage prepare can read on a cluster, with about the bytes of their text."""
    files = [Path(data.root) / spec.path for spec in data.files.train] if data.source == "files" else []
    return {file: file.stat().st_size for file in files if file.is_file()}


def held_out_files(data: DataParams) -> list[Path]:
    """The development and test files, which decide what leaks."""
    files = data.files
    found = [Path(data.root) / spec.path for spec in (files.dev, *files.tests.values(), *files.sts.values()) if spec is not None]
    # The stage says which one is missing.
    return [file for file in found if file.is_file()]


def prepared_files() -> dict[Path, int]:
    """The training tables that stage tokenize can read on a cluster, with about the bytes of their text."""
    files: dict[Path, int] = {}
    for file in sorted((PREPARED / "train").glob("*.parquet")):
        # The stage says what is wrong with a damaged one.
        with suppress(ArrowException, OSError):
            files[file] = _ROW_BYTES * pq.read_metadata(file).num_rows
    return files


def is_large(files: Mapping[Path, int]) -> bool:
    """Whether files are worth the tasks of a cluster."""
    return sum(files.values()) >= _LARGE


@contextmanager
def spread_for(
    stage: str, cluster: ClusterParams, files: Mapping[Path, int], given: Mapping[str, Any], also: Sequence[Path] = ()
) -> Iterator[Spread | None]:
    """The cluster at `cluster.address` for a stage; None without one, or if `is_large` is false.

    What its tasks have finished is in the storage under a key of the project, the code, the files and what is given. A stage that
    was killed goes on there; one that ends removes it. None, too, for a stage that is not a job where others are.

    Args:
        files: what the tasks read, with about the bytes of their text.
        given: all else that decides what they make.
        also: other files that do.

    Raises:
        UserError: the cluster or its storage cannot be reached.
    """
    if not standing(cluster) or (cluster.by_jobs and not in_job()) or not is_large(files):
        yield None
        return
    # Importing Ray takes seconds.
    from pipeline.cluster.session import session
    from pipeline.cluster.tasks import NodesSpread, parts_for

    storage = Storage.open(cluster.storage, home(Path.cwd()))
    sums = dict(zip(map(str, (*files, *also)), at_once(sha256_file, (*files, *also)), strict=True))
    parts = parts_for(sum(files.values()), cluster.workers)
    code, versions = digest_of_sums(stage_sums(stage)), installed()
    # Two people with the same work do it twice, so that neither removes what the other needs.
    key = {**given, "owner": owner(Path.cwd()), "code": code, "files": sums, "parts": parts, "versions": versions}
    folder = f"{WORK}/{sha256_json(key)}"
    storage.use(folder)
    name = cluster.storage if storage.folder is None else str(storage.folder)
    with session(cluster.model_copy(update={"device": "cpu"})) as on:
        yield NodesSpread(on, Exchange(name, folder), parts, stage)
    left = storage.entries(folder)
    # The records first: none may speak of a file that is gone.
    remove(storage, Item(WORK, folder, left), [file.removeprefix(f"{folder}/") for file in left if file.endswith(".json")])
    storage.remove(stamp_of(folder))
