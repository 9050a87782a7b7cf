from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.training.trainer import Progress
from pipeline.trials.progress_log import LOG, RECORDS, ProgressLog, RecordReader, duration


def progress(step: int, **changes: Any) -> Progress:
    base: dict[str, Any] = {
        "step": step,
        "total_steps": 100,
        "loss": 1.25,
        "learning_rate": 1e-4,
        "score_name": "dev_pr_auc",
        "score": None,
        "best_score": None,
        "row_kind": "triplets",
        "rows_per_second": 31.5,
        "seconds_left": 65.0,
    }
    return Progress(**{**base, **changes})


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {"score": 61.2, "best_score": 61.5},
            "trial  step  10/100  loss 1.2500  lr 1.00e-04  dev PR-AUC 61.20  best 61.50  31.5 triplets/s  1m05s left",
        ),
        (
            {"loss": None, "mfu": 41.4, "peak_memory_mb": 12345.6, "gathered_mb": 28.31, "seconds_left": 4.4},
            "trial  step  10/100  lr 1.00e-04  31.5 triplets/s  MFU 41 %  peak 12,346 MB  gathers 28.3 MB/step  4s left",
        ),
    ],
)
def test_a_line_has_what_is_known(tmp_path: Path, changes: dict[str, Any], line: str) -> None:
    ProgressLog("trial", tmp_path)(progress(10, **changes))
    assert (tmp_path / LOG).read_text(encoding="utf-8").endswith(f"  {line}\n")


def test_records_are_read_once_and_repeated_steps_not_again(tmp_path: Path) -> None:
    log, reader = ProgressLog("trial", tmp_path), RecordReader(tmp_path)
    assert reader.read() == []
    log(progress(10))
    log(progress(20))
    assert [r["step"] for r in reader.read()] == [10, 20]
    # A restart from the checkpoint of step 10.
    log.note("latest/ is damaged")
    log(progress(20))
    log(progress(30))
    assert [r["step"] for r in reader.read()] == [30]
    assert reader.read() == []
    assert reader.notes == ["latest/ is damaged"]
    assert (tmp_path / LOG).read_text(encoding="utf-8").splitlines()[2].endswith("  trial  latest/ is damaged")


def test_a_torn_line_is_passed_over(tmp_path: Path) -> None:
    log, reader = ProgressLog("trial", tmp_path), RecordReader(tmp_path)
    with (tmp_path / RECORDS).open("a", encoding="utf-8") as out:
        out.write('{"step": 10, "tot')
    assert reader.read() == []  # not yet whole
    log(progress(20))
    log(progress(30))
    assert [r["step"] for r in reader.read()] == [30]


def test_a_duration_of_hours_has_no_seconds() -> None:
    assert duration(3725) == "1h02m"
