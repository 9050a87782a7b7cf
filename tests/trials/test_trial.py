"""What a trial says of itself, and what the files in its folder say of it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.trials.trial import (
    OUTCOME,
    STOPPED,
    EarlyStopping,
    Stop,
    Timing,
    stopped,
    weights_named,
)
from pipeline.utils.atomic_io import write_json
from tests.conftest import PLAIN
from tests.trial_of import plain_trial

TRIAL = plain_trial(3e-5, seed=7)
RULE = EarlyStopping(grace_scorings=2, reduction_factor=3)
STOP = Stop(step=20, best_score=45.5, reason="it fell behind", early_stopping=RULE)


def test_its_parameters_are_those_of_the_file_but_the_list_of_seeds() -> None:
    written = yaml.safe_load((PLAIN).read_text(encoding="utf-8"))
    expected = {
        f"{section}.{key}": value for section in ("model", "objective", "train") for key, value in written[section].items()
    }
    assert expected.pop("train.seeds") is not None
    # The head is fitted to the finished model; a trial does not depend on it.
    assert expected.pop("model.relation_head") == "none"
    assert TRIAL.parameters() == {"learning_rate": 3e-5, "batch_size": 8, "seed": 7, **expected}


def test_how_it_was_trained_is_said_as_far_as_it_is_known() -> None:
    assert str(Timing(seconds=1.0, workers=2)) == "trained by 2 workers"
    whole = Timing(seconds=1.0, workers=1, precision="bf16", versions={"torch": "2.9", "numpy": "2.1"}, device="a GPU")
    assert str(whole) == "trained by 1 worker on a GPU in bf16 with torch 2.9, numpy 2.1"
    assert str(Timing(seconds=1.0, workers=1, threads=4, device="cpu")) == "trained by 1 worker of 4 threads on cpu"


@pytest.mark.parametrize("note", [{}, {**asdict(STOP), "early_stopping": {}}, {**asdict(STOP), "more": 1}, "not an object"])
def test_a_stop_of_another_format_is_none(tmp_path: Path, note: Any) -> None:
    write_json(tmp_path / STOPPED, note)
    assert stopped(tmp_path, RULE) is None


@pytest.mark.parametrize(
    ("outcome", "named"),
    [
        ({"weights": "0123456789abcdef" * 4}, "0123456789abcdef" * 4),
        # What is no digest may not become part of a file's name.
        ({"weights": "../" + "a" * 61}, None),
        ({"weights": "a" * 65}, None),
        ({}, None),
        (None, None),
    ],
)
def test_weights_are_named_by_a_digest_or_not_at_all(tmp_path: Path, outcome: Any, named: str | None) -> None:
    assert weights_named(tmp_path) is None
    write_json(tmp_path / OUTCOME, {"outcome": outcome})
    assert weights_named(tmp_path) == named
