"""Stage prepare: read the sources named in `data`, clean them, write data/prepared/."""

from __future__ import annotations

from typing import Any

from pipeline.data.prepare import prepare
from pipeline.errors import run_stage
from pipeline.params import load_params
from pipeline.project import PREPARED


def main() -> None:
    """Run the stage from the project root."""
    report = prepare(load_params().data, PREPARED)
    train = report["train"]
    print(_line("train", train))
    print(f"  {train['triplets']:,} triplets, {train['triplets_with_contradiction']:,} of them with a contradiction")
    for name, rows in {"dev": report["dev"], **report["tests"], **report["sts"]}.items():
        print(_line(name, rows))


def _line(name: str, rows: dict[str, Any]) -> str:
    dropped = ", ".join(f"{reason} {number:,}" for reason, number in rows["dropped"].items() if number)
    return f"{name}: {rows['rows_in']:,} rows in, {rows['rows_out']:,} kept; dropped: {dropped or 'none'}"


if __name__ == "__main__":
    run_stage(main)
