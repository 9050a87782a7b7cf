"""Relation heads that were fitted before, kept in the storage by everything they depend on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pipeline.config.params import RelationParams
from pipeline.config.paths import DEV_TOKENS, TRAIN_TOKENS
from pipeline.data.schema import DEV, TRAIN_PAIRS
from pipeline.data.token_sets import read_pairs
from pipeline.data.token_store import digest
from pipeline.evaluation.encoding import Encode
from pipeline.identity.digests import RELATION, code_digest, library_versions, other_versions
from pipeline.models.model_dir import content_digest
from pipeline.models.relation_head import Relation, ScoreKind, read_relation
from pipeline.storage.inventory import RELATIONS
from pipeline.storage.sync import mirror_of
from pipeline.training.relation import fit_relation
from pipeline.trials.store import TrialStore
from pipeline.utils.atomic_io import check_sums, read_json, sha256_json, write_directory, write_json, write_sums
from pipeline.utils.errors import UserError
from pipeline.utils.logs import log

_VERSIONS = "versions.json"


def relation_for(
    name: str,
    model: Path,
    kind: ScoreKind,
    params: RelationParams,
    seed: int,
    root: Path,
    trials: TrialStore,
    encode: Encode,
) -> Path:
    """The folder of the relation head that fits a model: fitted before, or now.

    Args:
        name: the model's name, for messages on the terminal.
        model: the model's folder.
        kind: the similarity that the head is combined with.
        root: the project's folder, whose training pairs and development pairs are used.
        encode: called if the head must be fitted.

    Returns:
        a folder with the files that `read_relation` reads.

    Raises:
        UserError: the token store has no labelled training pairs, or the pairs are all of one kind.
    """
    stores = [root / TRAIN_TOKENS, root / DEV_TOKENS]
    key = sha256_json(
        {
            "model": (content := content_digest(model)),
            "tokens": [digest(store) for store in stores],
            "kind": kind,
            "relation": params.model_dump(mode="json"),
            "seed": seed,
            "code": code_digest(RELATION),
        }
    )
    head_folder = trials.storage / RELATIONS / key
    trials.use(f"{RELATIONS}/{key}", note=content)
    mirror = mirror_of(head_folder.parent, trials.remote, RELATIONS)
    mirror.pull(key)
    if _read(head_folder) is not None:
        log.info(f"relation head of {name}: reused, fitted before")
        if others := other_versions([read_json(head_folder / _VERSIONS)]):
            log.warning(f"a relation head that is reused was fitted with {others}")
        return head_folder
    pairs, dev_pairs = read_pairs(stores[0], TRAIN_PAIRS), read_pairs(stores[1], DEV)
    log.info(f"relation head of {name}: encoding the sentences of {len(pairs):,} training pairs")
    # Twice as fast where the processor or GPU can. The development set is encoded as it will be scored.
    (train,) = encode(model, stores[:1], bf16=_trained_in_bf16(model))
    (dev,) = encode(model, stores[1:])
    relation = fit_relation(
        train, pairs, dev, dev_pairs, kind, params, seed=seed, dev_digest=digest(stores[1]), report=_reporter(name, params.epochs)
    )
    try:
        with write_directory(head_folder) as folder:
            relation.write(folder)
            write_json(folder / _VERSIONS, library_versions())
            write_sums(folder)
    except OSError:
        # Another pipeline on this storage may have fitted the same head at the same time; its head is just as good.
        if _read(head_folder) is None:
            raise
    mirror.push(key)
    return head_folder


def _reporter(name: str, epochs: int) -> Callable[[int, float], None]:
    def report(epoch: int, loss: float) -> None:
        log.info(f"relation head of {name}: pass {epoch} of {epochs}, loss {loss:.4f}")

    return report


def _trained_in_bf16(model: Path) -> bool:
    trial = read_json(model / "config.json").get("trial") or {}
    return trial.get("train", {}).get("precision") == "bf16"


def _read(kept: Path) -> Relation | None:
    if not kept.is_dir():
        return None
    try:
        check_sums(kept)
        return read_relation(kept)
    except UserError:
        return None
