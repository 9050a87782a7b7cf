"""How the scorer scores a version: by the version's own objective, with pairs of one premise drawn together."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch.nn.functional as F

from pipeline.config.paths import DEV_TOKENS, PREPARED
from pipeline.data.token_sets import read_pairs
from pipeline.data.token_store import open_store
from pipeline.evaluation.encoding import encode_all
from pipeline.gaussian.distribution import similarity
from pipeline.models.encoder import GaussianEncoder
from pipeline.registry.champions import Registration
from pipeline.tracking.server import Tracker
from pipeline.utils.atomic_io import write_sums
from tests.registry.lab import Lab


@pytest.mark.parametrize(("name", "kind"), [("simcse", "kl"), ("ent+con", "kl-dimwise"), ("ent+con+rev", "kl")])
def test_a_version_is_scored_by_the_objective_it_was_trained_with(
    lab: Lab, tracker: Tracker, register: Callable[..., Registration], tmp_path: Path, name: str, kind: str
) -> None:
    given = lab.params.objective
    assert (given.name, given.gaussian_similarity) == ("ent+con+rev", "kl")
    folder = Path(shutil.copytree(lab.untrained(1), tmp_path / "encoder"))
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["trial"]["objective"] |= {"name": name, "similarity": kind}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    write_sums(folder)
    registered = register(folder)
    with lab.scorer(tracker) as scorer:
        table = scorer(tracker.client.get_model_version(registered.name, str(registered.version)))["dev"]
    store, pairs = open_store(lab.root / DEV_TOKENS), read_pairs(lab.root / DEV_TOKENS, "dev")
    sentences = encode_all(GaussianEncoder.from_pretrained(folder), store)
    premise, hypothesis = sentences[pairs.premise], sentences[pairs.hypothesis]
    if name == "simcse":
        expected = F.cosine_similarity(premise.mean, hypothesis.mean)
        assert "sim_hp" not in table.column_names
    else:
        expected = similarity(hypothesis, premise, kind)  # type: ignore[arg-type]
        np.testing.assert_allclose(table["sim_hp"].to_numpy(), expected.detach().numpy(), rtol=1e-5)
    np.testing.assert_allclose(table["score"].to_numpy(), expected.detach().numpy(), rtol=1e-5)


def test_the_pairs_of_one_premise_are_one_group(lab: Lab, tracker: Tracker) -> None:
    with lab.scorer(tracker) as scorer:
        groups = scorer.groups()
    premises = pq.read_table(lab.root / PREPARED / "dev/dev.parquet")["premise"].to_pylist()
    assert len(set(premises)) < len(premises) == len(groups["dev"])
    assert len(set(zip(premises, groups["dev"].tolist(), strict=True))) == len(set(premises)) == len(set(groups["dev"].tolist()))
