"""`gausscse encode SOURCE OUT`: encodes a Parquet corpus as Gaussians, on this machine or on all nodes of the cluster.

As for the stages, execution.yaml decides where it runs. If it names the dashboard of a cluster, the work is sent there as a job.
SOURCE and OUT must then be places that every node sees.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

from pipeline.cluster.preflight import load_place
from pipeline.config.job_inputs import in_job
from pipeline.models.model_dir import ENGINES, check_engine
from pipeline.storage.object_store import everywhere
from pipeline.trials.progress_log import duration
from pipeline.utils.atomic_io import refuse_taken, replacing
from pipeline.utils.errors import UserError, first_line
from pipeline.utils.logs import log
from pipeline.utils.parser import MODEL, Parser
from pipeline.utils.uris import without_password

_TEXT = (".csv", ".tsv")
_NOTES = (
    ("missing", "rows have no text and no Gaussian"),
    ("empty", "are empty and have no Gaussian"),
    ("cut", "were too long for the model and were cut"),
)


def main(arguments: Sequence[str]) -> None:
    """Encode the corpus that the command line names."""
    options = _asked(arguments)
    name, execution = load_place()
    uri = options.model or f"models:/{name}@champion"
    for place in (options.source, options.out):
        # A key would appear in the job's command, where everybody could read it.
        if re.search(r"://[^@]*:[^@]*@", place):
            shown = without_password(place)
            raise UserError(f"{shown}: contains a key; leave it out, and set it in the environment (AWS_ACCESS_KEY_ID, …)")
    elsewhere = execution.cluster.address is not None or "://" in options.source + options.out
    if elsewhere and (options.source.endswith(_TEXT) or options.csv):
        raise UserError("csv and tsv are read and written on this machine only; convert the file to Parquet, leave --csv out")
    if execution.cluster.by_jobs and not in_job():
        for place in (options.source, options.out, uri):
            if not everywhere(place) and not place.startswith("models:/"):
                raise UserError(f"{place}: the work runs on a cluster; write an absolute path or a URI that every node can read")
        from pipeline.cluster.submit import submit

        submit(execution, "pipeline.cli", "encode", *arguments)
    if options.bf16 and options.engine != "torch":
        raise UserError(f"--bf16: has no effect on --engine {options.engine}; leave one of the two out")
    check_engine(options.engine)
    if options.csv:
        refuse_taken(Path(options.csv))
        if not Path(options.csv).absolute().parent.is_dir():
            raise UserError(f"--csv: {Path(options.csv).parent}: no such folder")
    if _place(options.out).startswith(_place(options.source)):
        raise UserError(f"{options.out}: is inside the corpus, which it would change; name a folder outside the corpus")
    # Workers may run in another folder.
    source, out = (place if "://" in place else str(Path(place).absolute()) for place in (options.source, options.out))
    # Imported only after the checks: these take seconds.
    from pipeline.cluster.bulk import encode_parts
    from pipeline.cluster.session import session as ray_session
    from pipeline.inference.bulk_plan import MANIFEST, begin, finish, planned
    from pipeline.models.model_dir import dimensions, embeddings_digest
    from pipeline.registry.loading import encoder_folder

    with encoder_folder(uri) as model, _as_parquet(source) as source:
        log.debug(f"encode: model {uri} in {model}")
        precision = "bf16" if options.bf16 else "fp32"
        tokens = _projection(model, uri) if options.tokens else None
        kept = options.column, options.keep
        digest = embeddings_digest(model, options.engine)
        plan = planned(source, *kept, digest, dimensions(model), precision=precision, tokens=tokens)
        records = begin(plan, out, update=options.update)
        if records:
            log.info(f"encode: {len(records)} of {len(plan.parts)} parts are already encoded")
        finished = {record.number for record in records}
        pending = [part for part in plan.parts if part.number not in finished]
        if pending:
            began, before = time.monotonic(), sum(record.rows for record in records)
            with ray_session(execution.cluster) as on:
                check_engine(options.engine, gpu=on.use_gpu)
                for record in encode_parts(model, source, plan, pending, out, on, options.engine):
                    records.append(record)
                    done = sum(record.rows for record in records)
                    rate = (done - before) / (time.monotonic() - began)
                    left = duration((plan.rows - done) / rate)
                    log.info(f"encode: {done}/{plan.rows} rows  {rate:.0f} rows/s  {left} left")
        manifest = finish(plan, out, records)
    if options.csv:
        _write_csv(Path(options.csv), out, manifest["parts"], ["row", *options.keep, "mean", "log_var"])
    notes = "".join(f"; {manifest[name]} {words}" for name, words in _NOTES if manifest[name])
    log.info(f"encode: {manifest['rows']} rows in {len(plan.parts)} parts, {options.out}/{MANIFEST}{notes}")


@contextmanager
def _as_parquet(source: str) -> Iterator[str]:
    """The corpus, while the block runs; a csv or tsv file as a Parquet file, whose columns are all text.

    A csv has commas, quotes of RFC 4180 and a header; a tsv has tabs, a header and no quotes. Nothing is guessed.
    """
    if not source.endswith(_TEXT):
        yield source
        return
    is_csv = source.endswith(".csv")
    form = csv.ParseOptions(delimiter="," if is_csv else "\t", quote_char=is_csv and '"', newlines_in_values=is_csv)
    with TemporaryDirectory(prefix="gausscse-") as folder:
        # An interrupted run goes on: the same rows give the same file, and its folder does not count.
        file = Path(folder) / f"{Path(source).stem}.parquet"
        try:
            with csv.open_csv(source, parse_options=form) as first:
                names = first.schema.names
            # Empty fields have no text.
            types: dict[str, Any] = {"column_types": dict.fromkeys(names, pa.string()), "strings_can_be_null": True}
            as_text = csv.ConvertOptions(null_values=[""], **types)
            rows = csv.open_csv(source, parse_options=form, convert_options=as_text)
            with rows, pq.ParquetWriter(file, rows.schema) as written:
                for batch in rows:
                    written.write_batch(batch)
        except pa.ArrowException as error:
            raise UserError(f"{source}: cannot be read as {source[-3:]}: {first_line(error)}") from None
        try:
            yield str(file)
        except UserError as error:
            raise type(error)(str(error).replace(str(file), source)) from None


def _write_csv(file: Path, out: str, parts: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """Write all rows of an encoded corpus, in their order."""
    import duckdb

    with replacing(file) as new:
        if not parts:
            new.write_text(",".join(columns) + "\n", encoding="utf-8")
            return
        # DuckDB takes each path for a pattern.
        paths = [re.sub(r"([*?[])", r"[\1]", f"{out}/{part['file']}") for part in parts]
        query = "copy (from read_parquet($paths) order by row) to $file (format csv, header)"
        duckdb.execute(query, {"paths": paths, "file": str(new)})


def _projection(model: Path, uri: str) -> str:
    """Digest of the projection that makes a model's token vectors."""
    from pipeline.models.relation_head import read_relation

    relation = read_relation(model)
    if relation is None:
        raise UserError(f"--tokens: {uri} has no relation head, and only such a head reads tokens; leave it out")
    return relation.projection.digest


def _place(name: str) -> str:
    """The place as an absolute path or URI, with a slash at its end."""
    where = name.partition("?")[0] if "://" in name else str(Path(name).resolve())
    return f"{where.rstrip('/')}/"


def _asked(arguments: Sequence[str]) -> argparse.Namespace:
    parser = Parser(prog="gausscse encode", description="Encode the sentences of a corpus as Gaussians.")
    parser.add_argument("source", help="a Parquet file or a folder of them, also s3://…; or a csv or tsv file with a header")
    parser.add_argument(
        "out", help="a new folder, or that of an interrupted run, which then continues, or with --update that of another run"
    )
    parser.add_argument("--model", help=f"{MODEL}; default: the champion")
    parser.add_argument("--column", default="sentence", help="the column with the text; default: sentence")
    kept = "columns to copy to the output"
    parser.add_argument("--keep", default=[], type=lambda names: names.split(","), action="extend", metavar="A,B", help=kept)
    bf16 = "compute in bf16, about twice as fast where there are instructions for it; the numbers change by about one percent"
    parser.add_argument("--bf16", action="store_true", help=bf16)
    engine = "computes the model, as for gausscse serve; a corpus is searched by the engine that encoded it; default: torch"
    parser.add_argument("--engine", choices=ENGINES, default="torch", help=engine)
    parser.add_argument("--csv", metavar="FILE", help="also write all rows into a csv file")
    tokens = "also store the token vectors that the model's relation head reads, for search --by relation"
    parser.add_argument("--tokens", action="store_true", help=tokens)
    again = "OUT may hold the output of another run; encode only the parts that differ"
    parser.add_argument("--update", action="store_true", help=again)
    return parser.parse_args(arguments)
