"""Stage prepare: each family reads its sources, and writes its sets, what it counted and a profile.

Part `prepare` of a family has `prepare`, `profile`, `contents`, `lines` and `warnings`, and may have `check_trainable`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from pipeline.config.data_params import DataParams
from pipeline.data.schema import DEV, HARD_FOLDER, PROMOTION
from pipeline.data.table_io import all_or_nothing, sha256_tree
from pipeline.families.family import families, part
from pipeline.storage.exchange import Spread
from pipeline.utils.atomic_io import write_json

if TYPE_CHECKING:
    from pipeline.config.params import EvaluateParams, Params

_FOLDERS = ("train", DEV, PROMOTION, "tests", HARD_FOLDER)
OUTPUTS = (*_FOLDERS, "profile.json", "prepare.json")
"""The outputs in the stage's folder; prepare.json comes last and marks the others as complete."""
Report = dict[str, Any]
"""Counts for prepare.json."""


def prepare(data: DataParams, out: Path, evaluate: EvaluateParams | None = None, spread: Spread | None = None) -> Report:
    """Read, clean and write everything into `out` (see `OUTPUTS`). The same input and parameters give the same bytes.

    Args:
        evaluate: how the baselines are measured and transfer tasks are checked; None: they are not.
        spread: a cluster that does what a family can do there; None: this process does everything.

    Returns:
        The content of prepare.json.

    Raises:
        UserError: an input is wrong, or too few rows are left to train or score on; `out` then stays unchanged.
    """
    with all_or_nothing(out, OUTPUTS) as work:
        for name in _FOLDERS:
            (work / name).mkdir()
        parts = [part(family, "prepare") for family in families() if family.reads(data)]
        counts = [one.prepare(data, work, evaluate, spread) for one in parts]
        sums = sha256_tree(work, "*.parquet")
        profile: dict[str, Any] = {"source": data.source, "files": {name: _file(work / name, of) for name, of in sums.items()}}
        for one, counted in zip(parts, counts, strict=True):
            profile |= one.profile(work, counted)
        report: Report = {key: value for counted in counts for key, value in counted.items()}
        report |= {"source": data.source, "sha256": sums}
        write_json(work / "profile.json", profile)
        write_json(work / "prepare.json", report)
    return report


def check_trainable(report: Report, params: Params) -> None:
    """Check that the objective can train on what was prepared, which otherwise only a later stage would notice.

    Raises:
        UserError: it cannot.
    """
    check = getattr(part(params.objective.family, "prepare"), "check_trainable", None)
    if check is not None:
        check(report, params)


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
