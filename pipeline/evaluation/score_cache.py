"""Per-pair scores of models on every set. Each model is scored once; later calls read the scores from the storage.

Scores are kept under `<storage>/scores`, in a folder named by a digest of everything they depend on: the model's files, the token
stores, the objective and the code that computes them. So a killed evaluation continues where it stopped.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pipeline.config.objectives import ObjectiveParams
from pipeline.config.params import EvaluateParams
from pipeline.config.paths import DEV_TOKENS, PREPARED, TEST_TOKENS
from pipeline.config.paths import SCORES as SCORED
from pipeline.data.schema import DEV, HARD, HARD_FOLDER
from pipeline.data.token_store import digest
from pipeline.evaluation.encoding import Encode
from pipeline.evaluation.kept import Kept
from pipeline.evaluation.set_kind import Encoded, kind_of, kinds_in
from pipeline.identity.digests import SCORES, code_digest
from pipeline.models.model_dir import content_digest, relation_digest
from pipeline.models.relation_head import read_relation
from pipeline.trials.store import TrialStore
from pipeline.utils.errors import UserError
from pipeline.utils.logs import log


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A trained encoder to score, and the objective it was trained with."""

    name: str
    """For messages on the terminal."""
    folder: Path
    objective: ObjectiveParams
    relation: Path | None = None
    """The folder of its relation head, if that is not the model's own folder."""


@dataclass(frozen=True, slots=True)
class Scores:
    """The per-pair scores of a model.

    Attributes:
        folder: the folder that keeps them, one SET.parquet for each set.
        tables: set name ("dev" first, if there is one) → table of per-row scores.
    """

    folder: Path
    tables: dict[str, pa.Table]


def score_models(
    models: Sequence[Model],
    root: Path,
    trials: TrialStore,
    encode: Encode,
    stores: Sequence[Path] = (DEV_TOKENS, TEST_TOKENS),
    *,
    search: bool = False,
) -> Iterator[Scores]:
    """Per-pair scores of each model in turn.

    Args:
        encode: called for models that were not scored before.
        stores: token stores below `root`; all their sets are scored.
        search: `evaluate.transfer_search`.
    """
    sets = {store.name: digest(root / store) for store in stores}
    searched = any(kind.searches for store in stores for kind, _ in kinds_in(root / store))
    warned_of = ""
    for model in models:
        head = model.relation or model.folder
        content = content_digest(model.folder)
        what = {
            **sets,
            "code": code_digest(SCORES, model.objective),
            "model": content,
            "objective": model.objective.model_dump(mode="json"),
            "relation": relation_digest(head),
            **({"transfer_search": search} if searched else {}),
        }
        kept = Kept.of(SCORED, what, trials, content)
        if kept.complete:
            log.info(f"scoring {model.name}: reused, scored before")
            others = kept.other_versions
            if others and others != warned_of:
                log.warning(f"scores that are reused were computed with {others}")
                warned_of = others
        else:
            log.info(f"scoring {model.name}")
            folders, relation = [root / store for store in stores], read_relation(head)
            sentences = encode(model.folder, folders, project=relation and relation.projection)
            encoded = Encoded(
                model=model.folder,
                objective=model.objective.make(),
                relation=relation,
                sentences=dict(zip(folders, sentences, strict=True)),
                search=search,
            )
            scored = {name: kind.score(encoded, folder, name) for folder in folders for kind, name in kinds_in(folder)}
            kept.write(lambda folder, scored=scored: _write(scored, folder))
        # The development set first.
        files = sorted(kept.folder.glob("*.parquet"), key=lambda file: (file.stem != DEV, file.stem))
        yield Scores(kept.folder, {file.stem: pq.read_table(file) for file in files})


def numbers_of(
    tables: Mapping[str, pa.Table], params: EvaluateParams, hard: Mapping[str, NDArray[np.bool_]] = MappingProxyType({})
) -> dict[str, dict[str, float]]:
    """set → metric → value (`pipeline.evaluation.set_kind.SetKind.metrics`).

    Args:
        hard: set → (n,) of `read_hard`; a set without an entry has no metrics of hard pairs.
    """
    return {name: kind_of(table.column_names).metrics(name, tables, params, hard) for name, table in tables.items()}


def read_hard(root: Path, tables: Mapping[str, pa.Table]) -> dict[str, NDArray[np.bool_]]:
    """The hard pairs of each set, as stage prepare of the project in `root` wrote them; without the sets that have none.

    Raises:
        UserError: they belong to other sets of pairs than these tables of scores.
    """
    hard_pairs: dict[str, NDArray[np.bool_]] = {}
    for file in sorted((root / PREPARED / HARD_FOLDER).glob("*.parquet")):
        if file.stem in tables:
            hard = hard_pairs[file.stem] = pq.read_table(file, schema=HARD).column(0).to_numpy()
            if len(hard) != tables[file.stem].num_rows:
                raise UserError(f"{file}: {len(hard):,} rows for {tables[file.stem].num_rows:,} scored pairs; run `dvc repro`")
    return hard_pairs


def write_scores(kept: Path, folder: Path, seed: str) -> None:
    """Copy kept scores to `folder`/SET/SEED.parquet."""
    for file in sorted(kept.glob("*.parquet")):
        (folder / file.stem).mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, folder / file.stem / f"{seed}.parquet")


def _write(tables: Mapping[str, pa.Table], folder: Path) -> None:
    for name, table in tables.items():
        pq.write_table(table, folder / f"{name}.parquet", compression="zstd")
