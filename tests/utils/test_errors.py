"""What users meet is one line with a remedy; errors of this program keep their traceback."""

from __future__ import annotations

import importlib
import signal
import sys
from collections.abc import Callable, Iterator

import pytest
import torch

from pipeline.utils.errors import run_stage


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(
    ("work", "code", "line"),
    [
        (lambda: torch.empty(10**15), 1, "error: out of memory: [enforce fail"),
        (lambda: bytearray(10**18), 1, "error: out of memory: "),
    ],
)
def test_one_line(work: Callable[[], object], code: int, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        run_stage(lambda: (work(), None)[1])
    said = capsys.readouterr().err
    assert (end.value.code, said.count("\n")) == (code, 1) and said.startswith(line)
    assert said.endswith("; take fewer or shorter texts at once, or smaller batches\n")


def test_a_fault_of_the_program_keeps_its_traceback() -> None:
    with pytest.raises(RuntimeError, match="a fault"):
        run_stage(lambda: (_ for _ in ()).throw(RuntimeError("a fault")))
    with pytest.raises(ModuleNotFoundError):
        run_stage(lambda: (importlib.import_module("pipeline.no_such_module"), None)[1])
    # Of a user's own module, such as an objective.
    with pytest.raises(ModuleNotFoundError):
        run_stage(lambda: (importlib.import_module("no_such_package.part"), None)[1])


def test_a_package_that_this_program_lacks_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    monkeypatch.delitem(sys.modules, "pipeline.data.scratch", raising=False)
    with pytest.raises(SystemExit):
        run_stage(lambda: (importlib.import_module("pipeline.data.scratch"), None)[1])
    assert capsys.readouterr().err == (
        "error: this command needs duckdb, which is not installed: pip install 'gausscse-pipeline[train]'\n"
    )
