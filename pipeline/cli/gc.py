"""`gausscse gc`: lists what nothing refers to in cluster.storage, and removes it if asked to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.cluster.preflight import load_project
from pipeline.utils.errors import escaped
from pipeline.utils.parser import Parser, whole

if TYPE_CHECKING:
    from pipeline.cluster.garbage import Verdict

_DAYS = 30


def main(arguments: Sequence[str]) -> None:
    """List everything in the storage by kind; with --delete, remove what is not kept."""
    parser = Parser(
        prog="gausscse gc",
        description="List what is in cluster.storage, by kind, with sizes and why each item is kept or would go. An item is "
        "kept if a version in the registry or this project refers to it, or if it was written or used in the last days.",
    )
    parser.add_argument("--delete", action="store_true", help="remove what would go")
    days = f"keep what was written or used in the last N days; default: {_DAYS}"
    parser.add_argument("--keep-days", type=whole(1), default=_DAYS, metavar="N", help=days)
    options = parser.parse_args(arguments)
    params, execution = load_project()
    # Imported only after the checks: Ray and MLflow take seconds.
    from pipeline.cluster.garbage import collect

    _show(collect(params, execution, Path.cwd(), options.keep_days, delete=options.delete), delete=options.delete)


def _show(verdicts: Iterable[Verdict], *, delete: bool) -> None:
    kept, gone = 0, 0
    what = "removed" if delete else "would go"
    for kind, items in groupby(verdicts, key=lambda verdict: verdict.item.kind):
        print(f"{kind}:")
        for verdict in items:
            kept += verdict.item.bytes * verdict.kept
            gone += verdict.item.bytes * (not verdict.kept)
            shown = escaped(f"{verdict.item.name}  {verdict.why}")
            print(f"  {'kept' if verdict.kept else what:<8} {_size(verdict.item.bytes):>9}  {shown}")
    print(f"{_size(kept)} kept, {_size(gone)} {what}" + ("" if delete or not gone else "; `gausscse gc --delete` removes it"))


def _size(number: int) -> str:
    return f"{number / 1e6:,.1f} MB"
