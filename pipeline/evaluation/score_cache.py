"""Per-pair scores of models on every set. Each model is scored once; later calls read the scores from the storage.

Scores are kept under `<storage>/scores`, in a folder named by a digest of everything they depend on: the model's files, the token
stores, the objective and the code that computes them. So a killed evaluation continues where it stopped.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipeline.config.objective import ObjectiveParams
from pipeline.config.params import EvaluateParams
from pipeline.config.paths import DEV_TOKENS, PREPARED, TEST_TOKENS
from pipeline.config.paths import SCORES as SCORED
from pipeline.data.schema import HARD, HARD_FOLDER
from pipeline.data.token_sets import (
    read_operations_set,
    read_pairs,
    read_sts,
    read_targets,
    read_task,
    read_text,
    set_names,
)
from pipeline.data.token_store import digest, open_store
from pipeline.evaluation.encoding import Encode
from pipeline.evaluation.evaluator import (
    nli_metrics,
    score_nli,
    score_sts,
    score_text,
    share_metrics,
    sts_metrics,
    sweep,
)
from pipeline.evaluation.operations import TrainingTargets, operation_metrics, score_operations
from pipeline.evaluation.transfer import score_task
from pipeline.identity.digests import SCORES, code_digest, library_versions, other_versions
from pipeline.models.encoder import GaussianEncoder
from pipeline.models.model_dir import content_digest, relation_digest
from pipeline.models.relation_head import Relation, read_relation
from pipeline.objectives.choice import objective_of
from pipeline.storage.sync import mirror_of
from pipeline.trials.store import TrialStore
from pipeline.utils.atomic_io import check_sums, read_json, sha256_json, write_directory, write_json, write_sums
from pipeline.utils.errors import UserError
from pipeline.utils.logs import log

if TYPE_CHECKING:
    from pipeline.gaussian.distribution import Gaussian


# In a folder of scores: the versions of the libraries that computed them.
_VERSIONS = "versions.json"


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
        tables: set name ("dev" first, if there is one) → table of `score_nli` or `score_sts`.
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
    sets = {**{store.name: digest(root / store) for store in stores}, "code": code_digest(SCORES)}
    warned_of = ""
    for model in models:
        head = model.relation or model.folder
        key = sha256_json(
            {
                **sets,
                "model": (content := content_digest(model.folder)),
                "objective": model.objective.model_dump(mode="json"),
                "relation": relation_digest(head),
                **({"transfer_search": search} if any(set_names(root / store).tasks for store in stores) else {}),
            }
        )
        kept = trials.storage / SCORED / key
        trials.use(f"{SCORED}/{key}", note=content)
        mirror = mirror_of(kept.parent, trials.remote, kept.parent.name)
        mirror.pull(key)
        tables = _read(kept)
        if tables is None:
            log.info(f"scoring {model.name}")
            folders = [root / store for store in stores]
            encoded = dict(zip(folders, encode(model.folder, folders), strict=True))
            tables = _score_sets(encoded, model.objective, read_relation(head), search) | _score_operations(encoded, model.folder)
            _keep(tables, kept)
            mirror.push(key)
        else:
            log.info(f"scoring {model.name}: reused, scored before")
            log.debug(f"{model.name}: scores from {kept}")
            others = other_versions([read_json(kept / _VERSIONS)])
            if others and others != warned_of:
                log.warning(f"scores that are reused were computed with {others}")
                warned_of = others
        yield Scores(kept, tables)


def numbers_of(
    tables: Mapping[str, pa.Table], params: EvaluateParams, hard: Mapping[str, NDArray[np.bool_]] = MappingProxyType({})
) -> dict[str, dict[str, float]]:
    """set → metric → value. The threshold of a test set is swept on the set in `evaluate.threshold_on`, by default on dev.

    Args:
        hard: set → (n,) of `read_hard`; a set without an entry has no metrics of hard pairs.
    """
    on = params.threshold_on
    thresholds = {name: sweep(tables[name], name, params) for name in {"dev", *on.values()} if name in tables}

    def numbers(name: str, table: pa.Table) -> dict[str, float]:
        if "cosine" in table.column_names:
            return sts_metrics(table)
        if "operation" in table.column_names:
            return operation_metrics(table)
        if "label" in table.column_names:
            return nli_metrics(table, thresholds[on.get(name, "dev")], params, hard.get(name))
        return share_metrics(table)

    return {name: numbers(name, table) for name, table in tables.items()}


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


def _keep(tables: Mapping[str, pa.Table], kept: Path) -> None:
    try:
        with write_directory(kept) as folder:
            for name, table in tables.items():
                pq.write_table(table, folder / f"{name}.parquet", compression="zstd")
            write_json(folder / _VERSIONS, library_versions())
            write_sums(folder)
    except OSError:
        # Another pipeline on this storage may have scored the same model at the same time; its scores are just as good.
        if _read(kept) is None:
            raise


def _read(kept: Path) -> dict[str, pa.Table] | None:
    """The scores in a folder; None if there are none or a file is damaged."""
    if not kept.is_dir():
        return None
    try:
        check_sums(kept)
    except UserError:
        return None
    # "dev" first, in the same order as in `_score_sets`.
    files = sorted(kept.glob("*.parquet"), key=lambda file: (file.stem != "dev", file.stem))
    return {file.stem: pq.read_table(file) for file in files}


def _score_sets(
    encoded: Mapping[Path, Gaussian], objective: ObjectiveParams, relation: Relation | None, search: bool
) -> dict[str, pa.Table]:
    """Per-row scores of every set of some token stores; rows are in the order of the set.

    Args:
        encoded: token store → the Gaussians of its sentences.
    """
    chosen = objective_of(objective)
    kind = chosen.similarity
    tables: dict[str, pa.Table] = {}
    for folder, sentences in encoded.items():
        store, names = open_store(folder), set_names(folder)
        tables |= {name: score_nli(sentences, store, read_pairs(folder, name), chosen, kind, relation) for name in names.nli}
        tables |= {name: score_sts(sentences, read_sts(folder, name), kind) for name in names.sts}
        tables |= {name: score_text(sentences, read_text(folder, name), chosen) for name in names.text}
        means = sentences.mean.float().cpu().numpy()
        tables |= {
            name: score_task(means, read_task(folder, name), search=search, threads=os.cpu_count() or 1) for name in names.tasks
        }
    return dict(sorted(tables.items(), key=lambda item: (item[0] != "dev", item[0])))


def _score_operations(encoded: Mapping[Path, Gaussian], model: Path) -> dict[str, pa.Table]:
    """Per-row scores of every set of operation rows; the arguments are as in `_score_sets`, and the model's folder."""
    sets = {folder: names for folder in encoded if (names := set_names(folder).operations)}
    if not sets:
        return {}
    encoder = GaussianEncoder.from_pretrained(model)
    means = {folder: sentences.mean.float().cpu() for folder, sentences in encoded.items()}
    training = next((_targets(folder, means[folder], name) for folder in encoded for name in set_names(folder).targets), None)
    return {
        name: score_operations(encoder, means[folder], open_store(folder), read_operations_set(folder, name), training)
        for folder, names in sets.items()
        for name in names
    }


def _targets(folder: Path, means: Tensor, name: str) -> TrainingTargets:
    store, targets = open_store(folder), read_targets(folder, name)
    mean = means[torch.from_numpy(targets.sentence.astype(np.int64))]
    return TrainingTargets(operation=targets.operation, mean=mean, ids=lambda k: store[int(targets.sentence[k])].tolist())
