"""Models → per-pair scores of every set: their order and content, what is kept, and what is said meanwhile."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.nn.functional as F
from conftest import PLAIN
from store import make_store, random_stores

from pipeline.config.load import load_params
from pipeline.config.objectives import own_keys
from pipeline.data.token_store import digest, open_store
from pipeline.evaluation.encoding import Encode, encode_here
from pipeline.evaluation.score_cache import Model, Scores, score_models
from pipeline.gaussian.distribution import Gaussian, similarity
from pipeline.identity.digests import SCORES, code_digest
from pipeline.models.encoder import GaussianEncoder
from pipeline.models.model_dir import add_relation, content_digest
from pipeline.trials.store import TrialStore
from pipeline.utils.atomic_io import SUMS, sha256_json, write_json, write_sums
from tests.relations import drawn_relation
from tests.trial_of import tiny_encoder

P = load_params(PLAIN)
STORES = (Path("dev"), Path("tests"))
TESTS = {"a": [(0, 1, 0), (1, 2, 1)], "z": [(2, 0, 2)]}
GRADED = [(0, 1, 4.5), (1, 2, 0.0), (2, 2, 5.0)]


class Project:
    """Token stores, of which one has test sets of both kinds, and a model."""

    def __init__(self, root: Path, backbone: Path) -> None:
        self.root = root
        random_stores(root)
        make_store(root / "tests", [[2, 7, 3], [2, 8, 9, 3], [2, 6, 3]], pairs=TESTS, graded={"m": GRADED})
        tiny_encoder(backbone).save_pretrained(root / "model")
        self.model = Model(name="a model", folder=root / "model", objective=P.objective)
        self.places = TrialStore(train_tokens=root, dev_tokens=root, storage=root / "storage")

    def score(self, *models: Model, encode: Encode = encode_here) -> list[Scores]:
        return list(score_models(models or [self.model], self.root, self.places, encode, STORES))


@pytest.fixture
def project(tmp_path: Path, tiny_backbone: Path) -> Project:
    return Project(tmp_path, tiny_backbone)


def never(folder: Path, stores: Sequence[Path], /, **how: Any) -> Sequence[Gaussian]:
    raise AssertionError(f"{folder} was encoded")


def test_every_set_is_scored_by_the_model_the_development_set_first(project: Project) -> None:
    (scores,) = project.score()
    # "a" comes before "dev" in the alphabet.
    assert list(scores.tables) == ["dev", "a", "m", "z"]
    encoder, store = GaussianEncoder.from_pretrained(project.root / "model"), open_store(project.root / "tests")
    rows = [encoder.encode_rows(store, np.array([row])) for row in range(3)]
    for name, pairs in TESTS.items():
        expected = [similarity(rows[h], rows[p], P.objective.similarity).item() for p, h, _ in pairs]
        assert scores.tables[name]["score"].to_pylist() == pytest.approx(expected, rel=1e-5)
        assert scores.tables[name]["label"].to_pylist() == [label for _, _, label in pairs]
    cosines = [F.cosine_similarity(rows[a].mean, rows[b].mean).item() for a, b, _ in GRADED]
    assert scores.tables["m"]["cosine"].to_pylist() == pytest.approx(cosines, rel=1e-5)
    assert scores.tables["m"]["score"].to_pylist() == [grade for _, _, grade in GRADED]
    assert scores.folder.parent == project.root / "storage/scores"
    # Projects that share a storage find scores by this name; under another, every model would be scored again.
    depends = {"dev": digest(project.root / "dev"), "tests": digest(project.root / "tests")}
    depends["code"] = code_digest(SCORES, project.model.objective)
    depends |= {"model": content_digest(project.model.folder), "relation": None}
    assert scores.folder.name == sha256_json({**depends, "objective": P.objective.model_dump(mode="json")})
    # Taken from there, they are the same, in the same order.
    (again,) = project.score(encode=never)
    assert again.folder == scores.folder
    assert list(again.tables) == list(scores.tables)
    assert again.tables == scores.tables


def test_a_relation_head_scores_the_model_that_it_is_given_to(project: Project) -> None:
    relation = drawn_relation()
    (plain,) = project.score()
    (project.root / "head").mkdir()
    relation.write(project.root / "head")
    headed = replace(project.model, relation=project.root / "head")
    (scores,) = project.score(headed)
    encoder, store = GaussianEncoder.from_pretrained(project.root / "model"), open_store(project.root / "tests")
    encoder.relation_head = relation
    rows = [encoder.encode_rows(store, np.array([row])) for row in range(3)]
    for name, pairs in TESTS.items():
        for pair, called in zip(pairs, scores.tables[name]["relation"].to_pylist(), strict=True):
            entailed, neutral, contradicted, turned = relation.probabilities(rows[pair[0]], rows[pair[1]])[0].tolist()
            assert called == np.argmax([entailed, neutral + turned, contradicted])
        for column, one, other in (("score", 0, 1), ("reverse_score", 1, 0)):
            expected = [relation.score(rows[pair[one]], rows[pair[other]]).item() for pair in pairs]
            assert scores.tables[name][column].to_pylist() == pytest.approx(expected, rel=1e-3)
        for column in ("score", "reverse_score"):
            alone = column.replace("score", "similarity_score")
            assert scores.tables[name][alone].to_pylist() == plain.tables[name][column].to_pylist()
    # The same head in the model's own folder gives the same scores, another head others.
    drawn_relation(weight=2.0).write(project.root / "head")
    (other,) = project.score(headed)
    assert other.folder != scores.folder
    assert other.tables["a"] != scores.tables["a"]
    copied = shutil.copytree(project.model.folder, project.root / "copy")
    add_relation(project.root / "head", copied)
    (own,) = project.score(replace(project.model, folder=copied))
    assert own.tables == other.tables


def test_other_versions_are_told_once_and_again_where_they_differ(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    names = ("ent", "ent+con", "ent+con+rev")
    models = [replace(project.model, objective=own_keys(P.objective.model_dump() | {"name": name})) for name in names]
    for scores, version in zip(project.score(*models), ("1.0", "1.0", "2.0"), strict=True):
        file = scores.folder / "versions.json"
        write_json(file, {**json.loads(file.read_text(encoding="utf-8")), "numpy": version})
        (scores.folder / SUMS).unlink()
        write_sums(scores.folder)
    assert capsys.readouterr().err == ""
    project.score(*models, encode=never)
    assert capsys.readouterr().err.splitlines() == [
        f"warning: scores that are reused were computed with numpy {version} (now {np.__version__})" for version in ("1.0", "2.0")
    ]


def test_another_that_keeps_the_same_scores_first_does_no_harm(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    (expected,) = project.score()
    shutil.move(expected.folder, project.root / "others")
    rename = Path.rename

    def late(self: Path, target: Path) -> Path:
        # The other one's folder comes into its place between the look at it and this.
        if target == expected.folder:
            shutil.copytree(project.root / "others", target)
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", late)
    (scores,) = project.score()
    assert scores.tables == expected.tables
    # What fails for another reason is not taken for that.
    shutil.rmtree(project.root / "storage/scores")
    (project.root / "storage/scores").write_text("a file", encoding="utf-8")
    with pytest.raises(OSError, match="storage"):
        project.score()


def test_damaged_scores_are_computed_again(project: Project) -> None:
    (scores,) = project.score()
    file = scores.folder / "a.parquet"
    file.write_bytes(file.read_bytes()[:-1])
    asked: list[Path] = []

    def encode(folder: Path, stores: Sequence[Path], /, **how: Any) -> Sequence[Gaussian]:
        asked.append(folder)
        return encode_here(folder, stores)

    (again,) = project.score(encode=encode)
    assert asked == [project.model.folder]
    assert again.tables == scores.tables == project.score(encode=never)[0].tables
