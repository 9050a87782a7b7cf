"""`python -m pipeline.encode SOURCE OUT`: a Parquet corpus as Gaussians, on this machine or on all nodes of the cluster.

Where it is computed is execution.yaml's choice, as of the stages. With the address of a cluster's dashboard it is sent there as a
job: SOURCE and OUT are then places that every node sees.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from pathlib import Path

from pipeline.check import load_project
from pipeline.errors import UserError, run_stage
from pipeline.job import in_job
from pipeline.progress import duration
from pipeline.storage import everywhere
from pipeline.submit import submit
from pipeline.uris import without_password

# Seconds between two lines of progress.
_EVERY = 5.0
_NOTES = (
    ("missing", "rows have no text and no Gaussian"),
    ("empty", "are empty"),
    ("cut", "were longer than the model reads and were cut"),
)


def main() -> None:
    """Encode what the command line names."""
    asked = _asked()
    params, execution = load_project()
    uri = asked.model or f"models:/{params.register_.name}@champion"
    for place in (asked.source, asked.out):
        # It would stand in the job's command, for all to see.
        if re.search(r"://[^@]*:[^@]*@", place):
            shown = without_password(place)
            raise UserError(f"{shown}: names a key; leave it out, and give it to the environment (AWS_ACCESS_KEY_ID, …)")
    if execution.cluster.by_jobs and not in_job():
        for place in (asked.source, asked.out, uri):
            if not everywhere(place) and not place.startswith("models:/"):
                raise UserError(f"{place}: the work is sent to a cluster; write an absolute path or a URI, which every node sees")
        submit(execution, "pipeline.encode", *sys.argv[1:])
    if _place(asked.out).startswith(_place(asked.source)):
        raise UserError(f"{asked.out}: is in the corpus itself, which would then be another; name a folder beside it")
    # Workers may stand elsewhere.
    source, out = (place if "://" in place else str(Path(place).absolute()) for place in (asked.source, asked.out))
    # These take seconds to import: not before what is asked for is known to make sense.
    from pipeline import cluster
    from pipeline.bulk import MANIFEST, begin, finish, planned
    from pipeline.model_folder import content_digest, dimensions
    from pipeline.registry import encoder_folder

    with encoder_folder(uri) as model:
        plan = planned(source, asked.column, asked.keep, content_digest(model), dimensions(model))
        done = begin(plan, out)
        if done:
            print(f"encode: {len(done)} of {len(plan.parts)} parts were encoded before", flush=True)
        finished = {one.number for one in done}
        pending = [part for part in plan.parts if part.number not in finished]
        if pending:
            with cluster.session(execution.cluster) as on:
                progress = _Progress(plan.rows, sum(one.rows for one in done))
                for one in cluster.encode_parts(model, source, plan, pending, out, on):
                    done.append(one)
                    progress.tell(one.rows)
        manifest = finish(plan, out, done)
    notes = "".join(f"; {manifest[name]} {words}" for name, words in _NOTES if manifest[name])
    print(f"encode: {manifest['rows']} rows in {len(plan.parts)} parts, {asked.out}/{MANIFEST}{notes}")


def _place(name: str) -> str:
    """Where it is, with a slash at its end."""
    where = name.partition("?")[0] if "://" in name else str(Path(name).resolve())
    return f"{where.rstrip('/')}/"


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m pipeline.encode", description="A Parquet corpus as Gaussians.")
    parser.add_argument("source", help="a Parquet file or a folder of them, also s3://…")
    parser.add_argument("out", help="a new folder, or one of an earlier run of the same, which goes on")
    parser.add_argument("--model", help="models:/NAME@ALIAS, models:/NAME/VERSION or a model's folder; default the champion")
    parser.add_argument("--column", default="sentence", help="that has the text; default sentence")
    parser.add_argument("--keep", default=[], type=lambda names: names.split(","), metavar="A,B", help="columns to keep beside")
    return parser.parse_args()


class _Progress:
    """A line now and then: rows done, rows a second of this run, time left."""

    def __init__(self, rows: int, before: int) -> None:
        self._rows, self._done, self._new = rows, before, 0
        self._began = self._told = time.monotonic()

    def tell(self, rows: int) -> None:
        self._done, self._new = self._done + rows, self._new + rows
        now = time.monotonic()
        if now - self._told < _EVERY and self._done < self._rows:
            return
        self._told = now
        rate = self._new / max(now - self._began, 1e-9)
        left = duration((self._rows - self._done) / rate)
        print(f"encode: {self._done}/{self._rows} rows  {rate:.0f} rows/s  {left} left", flush=True)


if __name__ == "__main__":
    run_stage(main)
