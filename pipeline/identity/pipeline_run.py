"""The digest that identifies a pipeline run: its data, code, backbone and parameters."""

from __future__ import annotations

from pathlib import Path

from pipeline.config.params import Params
from pipeline.config.paths import DEV_TOKENS, TEST_TOKENS, TRAIN_TOKENS
from pipeline.data.token_store import digest as tokens_digest
from pipeline.identity.digests import RELATION, SCORES, WEIGHTS, backbone_seen, code_digest
from pipeline.utils.atomic_io import sha256_json


def data_digests() -> dict[str, str]:
    """Content digest of each token store that a model and its scores depend on: "train", "dev", "tests"."""
    return {store.name: tokens_digest(store) for store in (TRAIN_TOKENS, DEV_TOKENS, TEST_TOKENS)}


def pipeline_digest(params: Params) -> str:
    """Digest of the tokenized data, the backbone's files, the code that trains and scores, and all parameters that affect them.

    Section `data` is left out because its results are included: the same data read from another folder gives the same pipeline
    run. Also left out are the variants to compare, the promotion rule, and the content of the report.
    """
    settings = params.model_dump(mode="json", by_alias=True, exclude={"data", "experiments", "report", "register_"})
    made_with = {"backbone": backbone_seen(Path()), "code": code_digest((*WEIGHTS, *RELATION, *SCORES), params.objective)}
    return sha256_json({"tokens": data_digests(), "params": settings, **made_with})
