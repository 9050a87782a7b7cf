"""Relation heads that were fitted before, kept in the storage by everything they depend on."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np

from pipeline.config.params import RelationParams
from pipeline.config.paths import DEV_TOKENS, RELATIONS, TRAIN_TOKENS
from pipeline.data.schema import DEV, MINIMAL_PAIRS, TRAIN_PAIRS
from pipeline.data.token_sets import PairSet, joined, read_pairs, rows_digest, set_names
from pipeline.data.token_store import open_store
from pipeline.evaluation.encoding import Compute, Encode
from pipeline.evaluation.kept import Kept
from pipeline.families.pairs.relation import calibrate, fit_head
from pipeline.identity.digests import RELATION, code_digest
from pipeline.models.encoder import GaussianEncoder
from pipeline.models.model_dir import RELATION_WEIGHTS, content_digest, encoder_digest
from pipeline.models.relation_head import Relation, ScoreKind, read_head
from pipeline.models.token_head import DIM, TokenHead, TokenProjection, joint_projection
from pipeline.storage.object_store import private_folder
from pipeline.trials.store import TrialStore
from pipeline.utils.atomic_io import read_json, room_for
from pipeline.utils.logs import log
from pipeline.utils.safetensors_io import write_tensors

# Sentences whose hidden states decide which directions of them are kept for a fit, and the most directions.
_SAMPLE, _DIRECTIONS = 2048, 4 * DIM


def relation_for(
    name: str, model: Path, kind: ScoreKind, params: RelationParams, seed: int, root: Path, trials: TrialStore, compute: Compute
) -> Path:
    """The folder of the relation head that fits a model: fitted before, or now.

    Args:
        name: the model's name, for messages on the terminal.
        model: the model's folder.
        kind: the similarity that the head is combined with.
        root: the project's folder, whose training pairs and development pairs are used.
        compute: called if the head must be fitted, or its scale found.

    Returns:
        a folder with the files that `read_relation` reads.

    Raises:
        UserError: the token store has no labelled training pairs, or the pairs are all of one kind.
    """
    stores = [root / TRAIN_TOKENS, root / DEV_TOKENS]
    fitted_on = [TRAIN_PAIRS, *({MINIMAL_PAIRS} & {*set_names(stores[0], PairSet)})]
    pairs = sum(len(read_pairs(stores[0], name)) for name in fitted_on)
    dev_digest = rows_digest(stores[1], DEV)
    # What decides the network. The rest of `params` decides its scale.
    network = {
        "model": encoder_digest(model),
        "pairs": [rows_digest(stores[0], name) for name in fitted_on],
        "epochs": params.epochs,
        "seed": seed,
        "code": code_digest(RELATION),
    }
    scaled = {"network": network, "dev": dev_digest, "kind": kind, "similarity_weight": params.similarity_weight}
    whole, bare = (Kept.of(RELATIONS, what, trials, content_digest(model)) for what in (scaled, network))
    reused = next((kept for kept in (whole, bare) if kept.complete), None)
    if reused is not None:
        log.info(f"relation head of {name}: reused, fitted before{'' if reused is whole else '; its scale is new'}")
        if others := reused.other_versions:
            log.warning(f"a relation head that is reused was fitted with {others}")
    if reused is whole:
        return whole.folder
    if reused is bare:
        head = read_head(bare.folder)
    else:
        log.info(f"relation head of {name}: encoding the sentences of {pairs:,} training pairs")
        fit = partial(_fitted, fitted_on=fitted_on, epochs=params.epochs, seed=seed, name=f"relation head of {name}")
        head = compute(fit, model, stores[0])
        bare.write(lambda folder: write_tensors(head.state_dict(), folder / RELATION_WEIGHTS))
    scale = partial(_calibrated, head=head, kind=kind, params=params, seed=seed, pairs_digest=dev_digest)
    whole.write(compute(scale, model, stores[1]).write)
    return whole.folder


def _fitted(model: Path, store: Path, encode: Encode, /, *, fitted_on: Sequence[str], **how: Any) -> TokenHead:
    """`fit_head`, on the sets `fitted_on` of the training store."""
    # Twice as fast where the processor or GPU can. The development set is encoded as it will be scored.
    trial = read_json(model / "config.json").get("trial") or {}
    first, start = _projections(model, store)
    bf16, folder = trial.get("train", {}).get("precision") == "bf16", private_folder()
    # On disk: the vectors of a sentence take some 9 kB. The file has no name, so that it ends with the process.
    with room_for(Path(f"{socket.gethostname()}:{folder}")), TemporaryFile(dir=folder) as table:
        (train,) = encode(model, [store], bf16=bf16, project=first, table=table)
        return fit_head(train, joined([read_pairs(store, name) for name in fitted_on]), first, start, **how)


def _calibrated(model: Path, store: Path, encode: Encode, /, *, head: TokenHead, **how: Any) -> Relation:
    """`calibrate`, on the development store."""
    (dev,) = encode(model, [store], project=head.projection)
    return calibrate(head, dev, read_pairs(store, DEV), **how)


def _projections(model: Path, store: Path) -> tuple[TokenProjection, TokenProjection]:
    """What keeps the hidden states for a fit, from those of a sample of sentences, and where the head's own projection starts."""
    opened, encoder = open_store(store), GaussianEncoder.from_pretrained(model)
    rows = np.random.default_rng(0).permutation(len(opened))[:_SAMPLE]
    rows = rows[np.argsort(opened.lengths_of(rows), kind="stable")]
    tokens = encoder.encode_rows(opened, rows, project=lambda states: states).tokens
    assert tokens is not None
    states = tokens.table.float()
    return TokenProjection.principal(states, _DIRECTIONS), joint_projection(model) or TokenProjection.principal(states)
