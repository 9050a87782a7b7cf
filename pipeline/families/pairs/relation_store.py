"""Relation heads that were fitted before, kept in the storage by everything they depend on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.config.params import RelationParams
from pipeline.config.paths import DEV_TOKENS, RELATIONS, TRAIN_TOKENS
from pipeline.data.schema import DEV, TRAIN_PAIRS
from pipeline.data.token_sets import read_pairs, rows_digest
from pipeline.evaluation.encoding import Encode
from pipeline.families.pairs.relation import calibrate, fit_head
from pipeline.identity.digests import RELATION, code_digest, library_versions, other_versions
from pipeline.models.model_dir import RELATION_WEIGHTS, content_digest, encoder_digest
from pipeline.models.relation_head import ScoreKind, read_head
from pipeline.storage.sync import Mirror, mirror_of
from pipeline.trials.store import TrialStore
from pipeline.utils.atomic_io import check_sums, read_json, sha256_json, write_directory, write_json, write_sums
from pipeline.utils.errors import UserError
from pipeline.utils.logs import log
from pipeline.utils.safetensors_io import write_tensors

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
    pairs, dev_pairs = read_pairs(stores[0], TRAIN_PAIRS), read_pairs(stores[1], DEV)
    dev_digest = rows_digest(stores[1], DEV)
    # What decides the network. The rest of `params` decides its scale.
    network = {
        "model": encoder_digest(model),
        "pairs": rows_digest(stores[0], TRAIN_PAIRS),
        "epochs": params.epochs,
        "difference": params.difference,
        "seed": seed,
        "code": code_digest(RELATION),
    }
    scaled = {"network": network, "dev": dev_digest, "kind": kind, "similarity_weight": params.similarity_weight}
    whole, bare = (_Kept.of(what, trials, content_digest(model)) for what in (scaled, network))
    if whole.read() is not None:
        log.info(f"relation head of {name}: reused, fitted before")
        whole.warn_versions()
        return whole.folder
    if bare.read() is not None:
        log.info(f"relation head of {name}: its network is reused, and its scale is new")
        bare.warn_versions()
        head = read_head(bare.folder)
    else:
        log.info(f"relation head of {name}: encoding the sentences of {len(pairs):,} training pairs")
        # Twice as fast where the processor or GPU can. The development set is encoded as it will be scored.
        (train,) = encode(model, stores[:1], bf16=_trained_in_bf16(model))
        head = fit_head(train, pairs, params.epochs, seed, _reporter(name, params.epochs), difference=params.difference)
        bare.write(lambda folder: write_tensors(head.state_dict(), folder / RELATION_WEIGHTS))
    (dev,) = encode(model, stores[1:])
    head = head.to(dev.mean.device)
    whole.write(calibrate(head, dev, dev_pairs, kind, params, seed=seed, pairs_digest=dev_digest).write)
    return whole.folder


@dataclass(frozen=True, slots=True)
class _Kept:
    """A folder of the storage, named by what decides its files."""

    folder: Path
    mirror: Mirror

    @staticmethod
    def of(what: Mapping[str, Any], trials: TrialStore, note: str) -> _Kept:
        key = sha256_json(what)
        trials.use(f"{RELATIONS}/{key}", note=note)
        mirror = mirror_of(trials.storage / RELATIONS, trials.remote, RELATIONS)
        mirror.pull(key)
        return _Kept(trials.storage / RELATIONS / key, mirror)

    def read(self) -> Path | None:
        """The folder; None if it is missing or damaged."""
        try:
            check_sums(self.folder)
        except UserError:
            return None
        return self.folder

    def write(self, files: Callable[[Path], object]) -> None:
        """Fill the folder, here and in the storage."""
        try:
            with write_directory(self.folder) as folder:
                files(folder)
                write_json(folder / _VERSIONS, library_versions())
                write_sums(folder)
        except OSError:
            # Another pipeline on this storage may have fitted the same head at the same time; its head is just as good.
            if self.read() is None:
                raise
        self.mirror.push(self.folder.name)

    def warn_versions(self) -> None:
        if others := other_versions([read_json(self.folder / _VERSIONS)]):
            log.warning(f"a relation head that is reused was fitted with {others}")


def _reporter(name: str, epochs: int) -> Callable[[int, float], None]:
    def report(epoch: int, loss: float) -> None:
        log.info(f"relation head of {name}: pass {epoch} of {epochs}, loss {loss:.4f}")

    return report


def _trained_in_bf16(model: Path) -> bool:
    trial = read_json(model / "config.json").get("trial") or {}
    return trial.get("train", {}).get("precision") == "bf16"
