"""Parameters of running text and of operation rows: what goes together, and the line that says what does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.config.load import load_params
from pipeline.families.operations.params import FAMILY as OPERATIONS_FAMILY
from pipeline.families.pairs.params import GaussianParams
from pipeline.families.text.params import FAMILY as TEXT_FAMILY
from pipeline.trials.variants import variants_of
from pipeline.utils.errors import UserError
from tests.copies import PLAIN, ROOT

PRESET = ROOT / "presets/quickthoughts-quick.yaml"
QUICKTHOUGHTS: dict[str, Any] = yaml.safe_load(PRESET.read_text(encoding="utf-8"))["objective"]
TEXT = {"objective": QUICKTHOUGHTS, "data__generated__documents": 50}
PAIRS = {"train": [{"path": "a"}], "dev": {"path": "b"}}
ROWS = [{"path": "c", "where": {"split": "train"}}]


def written(tmp_path: Path, **changes: Any) -> Path:
    """tests/plain.yaml with keys changed (`section__key`)."""
    tree = yaml.safe_load(PLAIN.read_text(encoding="utf-8"))
    for dotted, value in changes.items():
        *above, last = dotted.split("__")
        section = tree
        for key in above:
            section = section[key]
        section[last] = dict(value) if isinstance(value, dict) else value
    file = tmp_path / "params.yaml"
    file.write_text(yaml.safe_dump(tree), encoding="utf-8")
    return file


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"objective__run_length": 1}, "objective.run_length: got 1: a run needs 2 sentences or more"),
        ({"objective__run_length": 8, "objective__loss": "block"}, "objective.run_length: got 8: a run needs 10 sentences"),
        ({"train__same_premise": "mask"}, "train.same_premise: got 'mask': has no effect with objective.name: quickthoughts"),
        ({"objective__loss": "block", "objective__block_size": 20}, "tune.batch_sizes: got 32: a batch needs 40 sentences"),
        ({"model__dim": 33}, "model.dim: got 33: must be even"),
        ({"train__micro_batch": 65}, "train.micro_batch: got 65: has no effect: the largest batch .* at most 64 sentences"),
    ],
)
def test_what_does_not_go_together_is_said_in_one_line(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said) as refusal:
        load_params(written(tmp_path, **{**TEXT, **changes}))
    assert "\n" not in str(refusal.value)


def files(metric: str = "next_sentence", **sets: Any) -> dict[str, Any]:
    changes = {f"data__files__{name}": value for name, value in sets.items()}
    return {"data__source": "files", "register__metric": metric, **changes}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (files(), "data.files.train: .*lists nothing to train on"),
        (files(text=[{"path": "a"}], tests={"x": {"path": "b"}}), "files.train: .*lists no pairs, but there are sets"),
        (files(text=[{"path": "a"}], text_tests={"x": {"path": "b"}}, tasks={"x": {"path": "c"}}), "in both files.text_tests"),
        (files(text=[{"path": "a"}], text_tests={"train": {"path": "c"}}), "test set name 'train' must be"),
        (files(text=[{"path": "a"}]) | {"register__metric": "pr_auc"}, "register.metric: got 'pr_auc': needs pairs"),
        (files(text=[{"path": "a"}]) | {"model__relation_head": "tokens"}, "model.relation_head: .* is fitted on labelled pairs"),
        (files(**PAIRS), "objective.name: got 'quickthoughts': trains on running text"),
        (files(**PAIRS, text_dev={"path": "c"}), "there is files.text_dev"),
        (files(**PAIRS, operations_dev={"path": "c"}), "data.files.operations: .*there is files.operations_dev"),
        (files(operations=[{"path": "c", "document": "x"}]), "data.files.operations"),
    ],
)
def test_files_that_do_not_go_together(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        load_params(written(tmp_path, **{**TEXT, **changes}))


def test_a_variant_of_another_kind_inherits_no_temperature(tmp_path: Path) -> None:
    wanted = {f"objective.{key}": value for key, value in QUICKTHOUGHTS.items()}
    changes = {"data__generated__documents": 50, "experiments__variants": {"text": wanted}}
    (variant,) = variants_of(load_params(written(tmp_path, **changes)))
    assert variant.params.objective.model_dump() == QUICKTHOUGHTS
    del wanted["objective.temperature"]
    with pytest.raises(UserError, match=r"objective\.temperature"):
        variants_of(load_params(written(tmp_path, **changes)))


def test_text_without_pairs_is_enough(tmp_path: Path) -> None:
    params = load_params(written(tmp_path, **TEXT, **files(text=[{"path": "a"}], tasks={"mr": {"path": "b"}})))
    assert (params.data.has_pairs, TEXT_FAMILY.has(params.data)) == (False, True)


def test_pairs_and_operations_go_together(tmp_path: Path) -> None:
    assert OPERATIONS_FAMILY.has(load_params(written(tmp_path, data__generated__operations=50)).data)
    data = load_params(written(tmp_path, **files("pr_auc", **PAIRS, operations=ROWS))).data
    assert (data.has_pairs, OPERATIONS_FAMILY.has(data)) == (True, True)
    # The rows of the grammar are not those of the files.
    data = load_params(written(tmp_path, data__generated__operations=50, **files("pr_auc", **PAIRS))).data
    assert not OPERATIONS_FAMILY.has(data)


def test_the_kind_of_an_objective_s_rows_decides_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"objective.name: got 'ent\+con\+rev': trains on pairs, and section data names none"):
        load_params(written(tmp_path, **files("pr_auc", operations=ROWS)))
    monkeypatch.setattr(GaussianParams, "family", "operations")
    assert load_params(written(tmp_path, data__generated__operations=50)).objective.row_kind == "operations"
    with pytest.raises(UserError, match=r"trains on operation rows, .* \(generated.operations, or files.operations\)"):
        load_params(written(tmp_path))
    # Neither pairs nor text are needed, up to the metric that promotes.
    with pytest.raises(UserError, match=r"register.metric: got 'pr_auc': needs pairs"):
        load_params(written(tmp_path, **files("pr_auc", operations=ROWS)))
