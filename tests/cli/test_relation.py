"""`gausscse relation` on a model that has another head: nothing of that head is left in the new folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml

from pipeline.cli import relation as command
from pipeline.config.load import load_params
from pipeline.config.paths import DEV_TOKENS, TRAIN_TOKENS
from pipeline.data.sentence_tokenizer import Encoder
from pipeline.data.token_store import MANIFEST
from pipeline.models.canaries import read_canaries
from pipeline.models.encoder import GaussianEncoder
from pipeline.models.model_dir import CARD, encoder_digest, relation_digest
from pipeline.models.threshold import Calibration
from pipeline.registry.publishing import add_canaries
from pipeline.utils.atomic_io import check_sums, read_json, write_json, write_sums
from tests.copies import PLAIN, ROOT
from tests.relations import drawn_relation
from tests.store import make_store


@pytest.fixture
def project(tmp_path: Path, tiny_backbone: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with tokens, and a model with a head, its canaries, its card and its threshold."""
    held = yaml.safe_load(PLAIN.read_text(encoding="utf-8"))
    held["model"] |= {"backbone": str(tiny_backbone), "max_length": 24, "relation_head": "tokens"}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(held), encoding="utf-8")
    for name in ("execution.yaml", "dvc.yaml"):
        shutil.copyfile(ROOT / name, tmp_path / name)
    params = load_params(tmp_path / "params.yaml").model.encoder
    encoder = GaussianEncoder.from_backbone(params, seed=1).eval()
    r = np.random.default_rng(0)
    sentences = [[2, *r.integers(5, 30, r.integers(1, 11)).tolist(), 3] for _ in range(60)]
    pairs = [(*r.integers(0, 60, 2).tolist(), k % 3) for k in range(90)]
    for store, name in ((TRAIN_TOKENS, "pairs"), (DEV_TOKENS, "dev")):
        make_store(tmp_path / store, sentences, triplets=[(0, 1, 2)], pairs={name: pairs})  # type: ignore[dict-item]
        read = {"tokenizer_sha256": Encoder.of(encoder).digest(), "max_length": 24}
        write_json(tmp_path / store / MANIFEST, read_json(tmp_path / store / MANIFEST) | read)
    encoder.relation_head = drawn_relation()
    encoder.calibration = Calibration(threshold=0.125, entailment_if=">=", swept_on="dev", pairs="a" * 64, accuracy=1.0)
    encoder.save_pretrained(tmp_path / "model")
    (tmp_path / "model" / CARD).write_text("The old head.", encoding="utf-8")
    write_sums(tmp_path / "model")
    add_canaries(tmp_path / "model", tmp_path / DEV_TOKENS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_noitem_of_the_old_head_is_left(project: Path) -> None:
    command.main([str(project / "model"), str(project / "out")])
    check_sums(project / "out")
    assert encoder_digest(project / "out") == encoder_digest(project / "model")
    assert relation_digest(project / "out") != relation_digest(project / "model")
    old, new = read_canaries(project / "model"), read_canaries(project / "out")
    assert old is not None
    assert new is not None
    assert old.relation != new.relation
    encoder = GaussianEncoder.from_pretrained(project / "out")
    first, second = (encoder.encode_counted(texts)[0] for texts in (new.premises, new.hypotheses))
    new.check(encoder.similarity(second, first), encoder.relation(first, second))
    assert not (project / "out" / CARD).exists()
    assert encoder.calibration is not None
    assert encoder.calibration.pairs != "a" * 64
