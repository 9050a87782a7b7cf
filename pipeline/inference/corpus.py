"""Read the output of `gausscse encode`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import ArrowException

from pipeline.inference.bulk_plan import FORMAT, LOG_VAR, MANIFEST, MEAN, PLAN, ROW, TOKENS
from pipeline.models.model_dir import ENGINES, Engine
from pipeline.storage.filesystem import Place
from pipeline.utils.errors import UserError, first_line

if TYPE_CHECKING:
    from pipeline.gaussian.distribution import Gaussian
    from pipeline.models.relation_head import Relation

# What to do about a part that is not as the manifest says.
_AGAIN = "is it being updated? otherwise encode with --update"


@dataclass(frozen=True, slots=True)
class Encoded:
    """An encoded corpus in memory: the N rows that have a Gaussian."""

    gaussians: Gaussian
    """(N, D), in the order of the corpus."""
    rows: list[int]
    """Row numbers in the corpus, which count rows without a Gaussian, too."""
    kept: pa.Table
    """The kept columns, N rows."""
    model: str
    """`embeddings_digest` of the encoder."""


def read_gaussians(out: str, relation: Relation | None = None) -> Encoded:
    """Read the output of `gausscse encode`; takes 8·D bytes of memory per row, and d bytes per token.

    Args:
        relation: the head to rank by. Token vectors are read if it reads those that the corpus has.

    Raises:
        UserError: the output is not complete, or a file is missing or differs from the manifest.
    """
    import torch

    from pipeline.gaussian.distribution import Gaussian
    from pipeline.gaussian.tokens import TokenVectors

    place = Place.open(out, Path.cwd())
    manifest = _manifest(place)
    projection = relation and relation.projection
    with_tokens = projection is not None and manifest.get("tokens") == projection.digest
    tables: list[pa.Table] = []
    for part in manifest["parts"]:
        data = place.read_bytes(part["file"])
        if data is None:
            raise UserError(f"{place.name}/{part['file']}: is missing; {_AGAIN}")
        if sha256(data).hexdigest() != part["sha256"]:
            raise UserError(f"{place.name}/{part['file']}: differs from its SHA-256 sum in {MANIFEST}; {_AGAIN}")
        try:
            file = pq.ParquetFile(pa.BufferReader(data))
            tables.append(file.read([name for name in file.schema_arrow.names if with_tokens or name != TOKENS]))
        except ArrowException as error:
            why = f"cannot be read as Parquet ({first_line(error)})"
            raise UserError(f"{place.name}/{part['file']}: {why}; encode into a new folder") from None
    if not tables:
        raise UserError(f"{place.name}: the corpus has no rows")
    table = pa.concat_tables(tables)
    mean, log_var = (
        torch.from_numpy(np.concatenate([chunk.flatten().to_numpy() for chunk in table.column(name).chunks])).reshape(
            len(table), manifest["dim"]
        )
        for name in (MEAN, LOG_VAR)
    )
    tokens = None
    if projection is not None and with_tokens:
        numbers = np.concatenate([chunk.flatten().flatten().to_numpy() for chunk in table.column(TOKENS).chunks])
        vectors = numbers.reshape(-1, projection.out_features)
        lengths = pc.list_value_length(table.column(TOKENS)).to_numpy().astype(np.int64)
        tokens = TokenVectors.of_packed(torch.from_numpy(vectors), torch.from_numpy(lengths))
    kept = table.drop([name for name in (ROW, MEAN, LOG_VAR, TOKENS) if name in table.column_names])
    return Encoded(Gaussian(mean, log_var, tokens=tokens), table.column(ROW).to_pylist(), kept, manifest["model"])


def model_of(out: str) -> str:
    """`embeddings_digest` of the model that encoded the corpus in a folder; reads the manifest only.

    Raises:
        UserError: the output is not complete, or the manifest cannot be read.
    """
    return str(_manifest(Place.open(out, Path.cwd()))["model"])


def engine_of(out: str) -> Engine:
    """An engine that gives Gaussians to compare with those of a corpus (`embeddings_digest`); errors as in `model_of`."""
    name = model_of(out).partition(" ")[2]
    return name if name in ENGINES else "torch"


class NotEncoded(UserError):
    """Nothing was encoded into this folder, or not all of it yet."""


def being_encoded(out: str) -> bool:
    """True if `gausscse encode` has begun to write into a folder and is not done."""
    place = Place.open(out, Path.cwd())
    return place.read(PLAN) is not None and place.read(MANIFEST) is None


def _manifest(place: Place) -> dict[str, Any]:
    try:
        text = place.read(MANIFEST)
        if text is None:
            raise NotEncoded(f"{place.name}: no {MANIFEST} here: run gausscse encode until it is done")
        manifest = json.loads(text)
    except ValueError as error:
        raise UserError(f"{place.name}/{MANIFEST}: cannot be read as JSON: {error}") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise UserError(f"{place.name}/{MANIFEST}: is not of the format {FORMAT!r}, which this version reads")
    return manifest
