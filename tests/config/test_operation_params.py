"""Parameters of operation rows: what goes together, and the line that says what does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.config.load import load_params
from pipeline.families.operations.params import FAMILY
from pipeline.families.pairs.params import ReversedParams
from pipeline.utils.errors import UserError
from tests.copies import PLAIN


def written(tmp_path: Path, rows: int = 0, **files: Any) -> Path:
    """tests/plain.yaml with generated operation rows, or with these files."""
    tree = yaml.safe_load(PLAIN.read_text(encoding="utf-8"))
    tree["data"]["generated"]["operations"] = rows
    if files:
        tree["data"]["source"] = "files"
        tree["data"]["files"] |= files
    file = tmp_path / "params.yaml"
    file.write_text(yaml.safe_dump(tree), encoding="utf-8")
    return file


PAIRS = {"train": [{"path": "a"}], "dev": {"path": "b"}}
ROWS = [{"path": "c", "where": {"split": "train"}}]


def test_pairs_and_operations_go_together(tmp_path: Path) -> None:
    assert FAMILY.has(load_params(written(tmp_path, 50)).data)
    assert not FAMILY.has(load_params(written(tmp_path)).data)
    data = load_params(written(tmp_path, **PAIRS, operations=ROWS)).data
    assert (data.has_pairs, FAMILY.has(data)) == (True, True)
    # The rows of the grammar are not those of the files.
    assert not FAMILY.has(load_params(written(tmp_path, 50, **PAIRS)).data)


def test_the_kind_of_an_objective_s_rows_decides_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"objective.name: got 'ent\+con\+rev': trains on pairs, and section data names none"):
        load_params(written(tmp_path, operations=ROWS))
    monkeypatch.setattr(ReversedParams, "family", "operations")
    assert load_params(written(tmp_path, 50)).objective.row_kind == "operations"
    with pytest.raises(
        UserError,
        match=r"objective.name: got 'ent\+con\+rev': trains on operation rows, and section data names none "
        r"\(generated.operations, or files.operations\)",
    ):
        load_params(written(tmp_path))
    # Neither pairs nor text are needed, up to the metric that promotes.
    with pytest.raises(UserError, match=r"register.metric: got 'pr_auc': needs pairs"):
        load_params(written(tmp_path, operations=ROWS))


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (
            {"operations_dev": {"path": "c"}, **PAIRS},
            "data.files.operations: .*lists no operation rows, but files.operations_dev",
        ),
        (
            {"operations": ROWS, "operations_tests": {"x": {"path": "b"}}, "tasks": {"x": {"path": "c"}}},
            "in both files.tasks and files.operations_tests",
        ),
        ({"operations": ROWS, "operations_tests": {"dev_operations": {"path": "b"}}}, "'dev_operations' must be letters"),
        ({"operations": ROWS, "tests": {"x": {"path": "b"}}}, "files.train: .*lists no pairs, but there are sets"),
        ({"operations": [{"path": "c", "document": "x"}]}, r"data.files.operations"),
    ],
)
def test_what_does_not_go_together_is_one_line(tmp_path: Path, files: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said) as refusal:
        load_params(written(tmp_path, **files))
    assert "\n" not in str(refusal.value)
