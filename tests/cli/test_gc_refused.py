"""Faults that end `gausscse gc` before it removes anything: each with one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.storages import Later, Project
from tests.stages.running import set_keys

Run = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        (lambda root: (root / "mlflow.db").unlink(), "mlflow.db: no MLflow database here"),
        (lambda root: (root / "mlflow.db").write_text("no database" * 100), "MLflow at sqlite:"),
        (lambda root: (root / "data/identity/backbone.json").unlink(), "data/identity/backbone.json: no such file"),
        (lambda root: (root / "data/tokens/train/tokens.json").unlink(), "data/tokens/train"),
        (lambda root: (root / "inputs.json").write_text("{}"), "inputs.json: not what `make upload` writes"),
    ],
    ids=["no database", "damaged database", "no identity", "no tokens", "damaged inputs"],
)
def test_what_cannot_be_asked_ends_it_before_it_removes_anything(
    on_disk: Project, run: Run, later: Later, break_it: Callable[[Path], object], said: str
) -> None:
    on_disk.train(8)
    later(30)
    before = on_disk.storage.entries()
    break_it(on_disk.root)
    for delete in ([], ["--delete"]):
        code, out, err = run(on_disk, *delete)
        assert (code, out) == (2, "")
        assert err.startswith("error: ") and said in err and err.count("\n") == 1
    assert on_disk.storage.entries() == before


def test_a_registry_or_storage_that_does_not_answer_is_one_line(
    on_disk: Project, run: Run, later: Later, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_disk.train(8)
    later(30)
    before = on_disk.storage.entries()
    with monkeypatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
        code, out, err = run(on_disk, "--delete")
        assert (code, out, err.count("\n")) == (2, "", 1), err
        assert err.startswith("error: MLflow at http://127.0.0.1:9: ")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    set_keys(on_disk.root, {"cluster.storage": "s3://team/x?endpoint_override=127.0.0.1:9&scheme=http"}, "execution.yaml")
    code, out, err = run(on_disk, "--delete")
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert "see cluster.storage" in err
    assert on_disk.storage.entries() == before


def test_to_keep_noitem_of_today_is_refused(on_disk: Project, run: Run) -> None:
    code, out, err = run(on_disk, "--keep-days", "0")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "--keep-days: '0' is not a whole number from 1 to" in err
