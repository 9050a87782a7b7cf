"""Trials and bulk runs are reused only where their identity is the same. Other versions or precisions are a warning."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.identity.digests import library_versions, other_versions
from pipeline.inference.bulk_plan import planned
from pipeline.tracking.forwarder import warn_reuse
from tests.identity.edits import edited
from tests.tracking.runs import TIMING
from tests.trial_of import plain_trial

TRIAL = plain_trial()


def test_reuse_under_other_versions_or_another_precision_is_one_line_each(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.tracking.forwarder.bf16_here", lambda: True)
    now = library_versions()
    assert now.keys() == {"python", "torch", "transformers", "tokenizers", "safetensors", "numpy"}
    same = (TRIAL, replace(TIMING, precision="bf16"))
    warn_reuse([same] * 4)
    assert capsys.readouterr().err == ""
    other = (TRIAL, replace(TIMING, precision="fp32", versions={**now, "torch": "2.1.0", "numpy": "1.9"}))
    warn_reuse([other, other, same, same])
    assert capsys.readouterr().err.splitlines() == [
        f"warning: trials that are reused were trained with numpy 1.9 (now {now['numpy']}), torch 2.1.0 (now {now['torch']})",
        "warning: 2 of 4 trials that are reused were trained in another precision; this machine uses bf16",
    ]
    assert other_versions([{"torch": "1"}, {"torch": "2"}]) == f"torch 1 and 2 (now {now['torch']})"


def test_a_bulk_run_is_planned_with_the_code_that_encodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"text": ["a", "b"]}), tmp_path / "corpus.parquet")

    def plan() -> dict[str, Any]:
        return planned(str(tmp_path / "corpus.parquet"), "text", [], "m" * 64, 4).to_json()

    before = plan()
    edited(tmp_path / "words/pipeline", monkeypatch, {"models/encoder": "# A comment.\n"})
    assert plan() == before
    edited(tmp_path / "code/pipeline", monkeypatch, {"models/encoder": "x = 1\n"})
    assert {key for key, value in plan().items() if before[key] != value} == {"code"}
