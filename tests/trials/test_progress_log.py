from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.training.trainer import Progress
from pipeline.trials.progress_log import LOG, RECORDS, ProgressLog, RecordReader


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
