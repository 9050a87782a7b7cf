"""The cross-encoder of bench.alternatives gets the pairs as its tokenizer would give them, each once."""

from __future__ import annotations

import numpy as np
import pytest
from transformers import AutoTokenizer

from bench import alternatives
from pipeline.config.load import load_params
from pipeline.data.token_store import TokenStore, open_store
from pipeline.models.backbone import resolve
from tests.conftest import ROOT
from tests.store import make_store

TEXTS = ["A dog runs across a wide field.", "An animal moves.", "Nobody sleeps.", "Three men are playing chess in a park today."]


@pytest.fixture(scope="module")
def packaged() -> AutoTokenizer:
    return AutoTokenizer.from_pretrained(resolve(load_params(ROOT / "params.yaml").model.backbone, None).location)


@pytest.fixture(scope="module")
def store(packaged: AutoTokenizer, tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    ids = packaged(TEXTS)["input_ids"]  # type: ignore[operator]
    return open_store(make_store(tmp_path_factory.mktemp("texts") / "store", ids))


def test_a_pair_is_what_the_tokenizer_makes_of_two_texts(packaged: AutoTokenizer, store: TokenStore) -> None:
    left, right = np.array([0, 1, 3], np.int32), np.array([1, 2, 0], np.int32)
    ours = alternatives._inputs(store, left, right)
    theirs = packaged([TEXTS[k] for k in left], [TEXTS[k] for k in right], padding=True, return_tensors="pt")  # type: ignore[operator]
    assert sorted(ours) == sorted(theirs)
    for name, values in ours.items():
        assert values.tolist() == theirs[name].tolist(), name
