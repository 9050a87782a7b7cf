"""Stage prepare: each family reads its sources, and writes its sets, what it counted and a profile.

Part `prepare` of a family has `prepare`, `profile`, `contents`, `lines` and `warnings`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow.parquet as pq

from pipeline.config.data_params import DataParams
from pipeline.data.generated.premises import Split
from pipeline.data.readers import GENERATED
from pipeline.data.schema import DEV, DEV_SETS, HARD_FOLDER, PROMOTION, PROMOTION_SETS
from pipeline.data.table_io import all_or_nothing, sha256_tree
from pipeline.families.family import families, part
from pipeline.utils.atomic_io import write_json

if TYPE_CHECKING:
    from pipeline.config.params import EvaluateParams

Spec = TypeVar("Spec")
Source = TypeVar("Source")
_FOLDERS = ("train", DEV, PROMOTION, "tests", HARD_FOLDER)
OUTPUTS = (*_FOLDERS, "profile.json", "prepare.json")
"""The outputs in the stage's folder; prepare.json comes last and marks the others as complete."""
TRAIN = "train"
"""The training set of a family, among its counts."""
DEV_SHARE = 0.1
"""Share of the training documents, or operation rows, that become the development set unless section `data` names one."""
Report = dict[str, Any]
"""Counts for prepare.json."""


def prepare(data: DataParams, out: Path, evaluate: EvaluateParams | None = None) -> Report:
    """Read, clean and write everything into `out` (see `OUTPUTS`). The same input and parameters give the same bytes.

    Args:
        evaluate: how the baselines are measured and transfer tasks are checked; None: they are not.

    Returns:
        The content of prepare.json.

    Raises:
        UserError: an input is wrong, or too few rows are left to train or score on; `out` then stays unchanged.
    """
    with all_or_nothing(out, OUTPUTS) as work:
        for name in _FOLDERS:
            (work / name).mkdir()
        parts = [part(family, "prepare") for family in families() if family.reads(data)]
        counts = [one.prepare(data, work, evaluate) for one in parts]
        sums = sha256_tree(work, "*.parquet")
        profile: dict[str, Any] = {"source": data.source, "files": {name: _file(work / name, of) for name, of in sums.items()}}
        for one, counted in zip(parts, counts, strict=True):
            profile |= one.profile(work, counted)
        report: Report = {key: value for counted in counts for key, value in counted.items()}
        report |= {"source": data.source, "sha256": sums}
        write_json(work / "profile.json", profile)
        write_json(work / "prepare.json", report)
    return report


def check_contents(data: DataParams) -> None:
    """Read the raw files as stage prepare will: all rows, but only the first document of running text.

    Data sets of the hub are not downloaded, so if one is not a folder, none is read.

    Raises:
        UserError: a file cannot be read, or a value is wrong; the message names the file and, if known, the row.
    """
    root, hub = Path(data.root), [*data.hub.train, *filter(None, [data.hub.dev]), *data.hub.tests.values()]
    if data.source == "generated" or (data.source == "hub" and not all((root / spec.dataset).is_dir() for spec in hub)):
        return
    for family in families():
        for rows in part(family, "prepare").contents(data) if family.reads(data) else ():
            for _ in rows:
                pass


def lines(report: Report, data: DataParams) -> list[str]:
    """What the stage prints of its counts."""
    return [line for family in families() if family.reads(data) for line in part(family, "prepare").lines(report)]


def warnings(profile: Mapping[str, Any]) -> list[str]:
    """Warnings about the data that users should read before an hour of training, the most serious first."""
    return [line for family in families() if family.profiled in profile for line in part(family, "prepare").warnings(profile)]


def generated_sets(kind: str, number: int, source: Callable[[Split, int], Source]) -> dict[str, Source]:
    """The generated sets of running text ("text") or operation rows ("operations"), training first; none if `number` is 0.

    Args:
        number: documents or rows to train on; the development and the test set have a tenth as many.
        source: gives the source of a set from its part of the grammar and its size.
    """
    held_out = -(-number // 10)
    wanted: dict[str, tuple[Split, int]] = {
        TRAIN: ("train", number),
        f"{DEV}_{kind}": ("dev", held_out),
        f"{GENERATED}_{kind}": ("test", held_out),
    }
    return {name: source(split, size) for name, (split, size) in wanted.items() if number}


def named_sets(
    kind: str, train: Sequence[Spec], dev: Spec | None, tests: Mapping[str, Spec], source: Callable[[Sequence[Spec]], Source]
) -> dict[str, Source]:
    """The sets that `data.files` names, as `generated_sets`; `source` gives the source of a set from its files."""
    sets = {TRAIN: train, f"{DEV}_{kind}": [] if dev is None else [dev]} | {name: [spec] for name, spec in sorted(tests.items())}
    return {name: source(specs) for name, specs in sets.items() if specs}


def set_file(work: Path, name: str, train: str, suffix: str = "") -> Path:
    """The file of a set in the stage's folder; `train` is the name of that of the training set."""
    if name == TRAIN:
        return work / "train" / f"{train}.parquet"
    folder = DEV if name in DEV_SETS else PROMOTION if name in PROMOTION_SETS else "tests"
    return work / folder / f"{name}{suffix}.parquet"


def counted(name: str, rows: Mapping[str, Any]) -> str:
    """A line of the counts of a set."""
    return f"{name}: {rows['rows_in']:,} rows in, {rows['rows_out']:,} kept; dropped: {dropped(rows['dropped'])}"


def dropped(reasons: Mapping[str, int], none: str = "none") -> str:
    """What was dropped of a set, by reason; `none` if nothing was."""
    return ", ".join(f"{reason} {number:,}" for reason, number in reasons.items() if number) or none


def _file(path: Path, digest: str) -> dict[str, Any]:
    with pq.ParquetFile(path) as file:
        columns = [[field.name, str(field.type)] for field in file.schema_arrow]
        return {"sha256": digest, "rows": file.metadata.num_rows, "columns": columns}
