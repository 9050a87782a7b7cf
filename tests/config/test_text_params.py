"""Parameters of running text: what goes together, and the line that says what does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.config.load import load_params
from pipeline.families.text.params import FAMILY
from pipeline.trials.variants import variants_of
from pipeline.utils.errors import UserError
from tests.copies import PLAIN, ROOT

PRESET = ROOT / "presets/quickthoughts-quick.yaml"
QUICKTHOUGHTS: dict[str, Any] = yaml.safe_load(PRESET.read_text(encoding="utf-8"))["objective"]


def written(tmp_path: Path, **changes: Any) -> Path:
    """tests/plain.yaml with objective quickthoughts and generated documents, and keys changed (`section__key`)."""
    tree = yaml.safe_load(PLAIN.read_text(encoding="utf-8"))
    tree["objective"] = dict(QUICKTHOUGHTS)
    tree["data"]["generated"]["documents"] = 50
    for dotted, value in changes.items():
        *above, last = dotted.split("__")
        section = tree
        for key in above:
            section = section[key]
        section[last] = value
    file = tmp_path / "params.yaml"
    file.write_text(yaml.safe_dump(tree), encoding="utf-8")
    return file


def test_pairs_and_text_go_together(tmp_path: Path) -> None:
    params = load_params(written(tmp_path))
    assert (params.data.has_pairs, FAMILY.has(params.data)) == (True, True)
    assert params.objective.row_kind == "documents"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"data__generated__documents": 0}, "objective.name: got 'quickthoughts': trains on running text, and .* names none"),
        ({"objective__run_length": 1}, "objective.run_length: got 1: a run needs 2 sentences or more"),
        ({"objective__run_length": 8, "objective__loss": "block"}, "objective.run_length: got 8: a run needs 10 sentences"),
        ({"objective__similarity": "kl"}, "objective.similarity: .*"),
        ({"train__same_premise": "mask"}, "train.same_premise: got 'mask': has no effect with objective.name: quickthoughts"),
        ({"train__batch_lengths": "matched"}, "train.batch_lengths: got 'matched': has no effect"),
        (
            {"objective__loss": "block", "objective__block_size": 20},
            "tune.batch_sizes: got 32: a batch needs 40 sentences",
        ),
        ({"model__dim": 33}, "model.dim: got 33: must be even"),
        ({"train__micro_batch": 65}, "train.micro_batch: got 65: has no effect: the largest batch .* at most 64 sentences"),
    ],
)
def test_what_does_not_go_together_is_said_in_one_line(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said) as refusal:
        load_params(written(tmp_path, **changes))
    assert "\n" not in str(refusal.value)


def files(**sets: Any) -> dict[str, Any]:
    changes = {f"data__files__{name}": value for name, value in sets.items()}
    return {"data__source": "files", "register__metric": "next_sentence", **changes}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (files(), "data.files.train: .*lists nothing to train on"),
        (
            files(text=[{"path": "a"}], tests={"x": {"path": "b"}}),
            "files.train: .*lists no pairs, but there are sets",
        ),
        (
            files(text=[{"path": "a"}], text_tests={"x": {"path": "b"}}, tasks={"x": {"path": "c"}}),
            "in both files.text_tests",
        ),
        (files(text=[{"path": "a"}], text_tests={"train": {"path": "c"}}), "test set name 'train' must be"),
        (files(text=[{"path": "a"}], tasks={"dev_text": {"path": "c"}}), "test set name 'dev_text' must be"),
        (files(text=[{"path": "a"}]) | {"register__metric": "pr_auc"}, "register.metric: got 'pr_auc': needs pairs"),
        (
            files(text=[{"path": "a"}]) | {"model__relation_head": "mlp"},
            "model.relation_head: .* is fitted on labelled pairs",
        ),
        (files(train=[{"path": "a"}], dev={"path": "b"}), "objective.name: got 'quickthoughts': trains on running text"),
        (files(train=[{"path": "a"}], dev={"path": "b"}, text_dev={"path": "c"}), "files.text: .*lists no running text"),
    ],
)
def test_files_of_text_without_pairs(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        load_params(written(tmp_path, **changes))


def test_a_variant_of_another_kind_inherits_no_temperature(tmp_path: Path) -> None:
    wanted = {f"objective.{key}": value for key, value in QUICKTHOUGHTS.items()}
    tree = yaml.safe_load(PLAIN.read_text(encoding="utf-8"))
    tree["data"]["generated"]["documents"] = 50
    file = tmp_path / "params.yaml"
    tree["experiments"]["variants"] = {"text": wanted}
    file.write_text(yaml.safe_dump(tree), encoding="utf-8")
    (variant,) = variants_of(load_params(file))
    assert variant.params.objective.model_dump() == QUICKTHOUGHTS
    del wanted["objective.temperature"]
    file.write_text(yaml.safe_dump(tree), encoding="utf-8")
    with pytest.raises(UserError, match=r"objective\.temperature"):
        variants_of(load_params(file))


def test_text_without_pairs_is_enough(tmp_path: Path) -> None:
    params = load_params(written(tmp_path, **files(text=[{"path": "a"}], tasks={"mr": {"path": "b"}})))
    assert (params.data.has_pairs, FAMILY.has(params.data)) == (False, True)
