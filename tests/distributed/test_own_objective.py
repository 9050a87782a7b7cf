"""An objective with modules of its own on workers of a real gloo group: gradients and SGD steps are those of one process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipeline.data.token_store import ROW_KINDS
from tests.distributed.group import PAPER, Gradients, assert_same_gradients, assert_same_weights, gradients
from tests.objectives.pairs import COLUMNS, KIND
from tests.store import make_store

PAIRS = {**PAPER, "objective": "pairs"}
JOBS = {
    "pairs": PAIRS,
    "uneven": {**PAIRS, "batch": 9},
    "micro-batches": {**PAIRS, "batch": 9, "micro_batch": 4},
    # One of the two scales is used in even steps, the other in odd ones.
    "sgd": {**PAIRS, "batch": 9, "micro_batch": 9, "steps": 4},
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, tiny_backbone: Path) -> dict[int, Gradients]:
    base = tmp_path_factory.mktemp("own")
    r = np.random.default_rng(0)
    texts = [[2, *r.integers(5, 30, r.integers(1, 11)).tolist(), 3] for _ in range(60)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ROW_KINDS, KIND, COLUMNS)
        store = make_store(base / "store", texts, rows={KIND: [tuple(r.permutation(60)[:2].tolist()) for _ in range(40)]})
    return {workers: gradients([[]] * workers, base / str(workers), store, tiny_backbone, jobs=JOBS) for workers in (1, 2)}


@pytest.mark.parametrize("job", ["pairs", "uneven", "micro-batches"])
def test_gradients_are_those_of_one_process(results: dict[int, Gradients], job: str) -> None:
    assert_same_gradients(results[2][job], results[1][job])
    own = {name: float(value.norm()) for name, value in results[1][job].items() if name.startswith("objective.")}
    # What the batch did not use has the gradient zero, not none.
    assert own.pop("objective.scales.1") == 0
    assert len(own) == 3
    assert min(own.values()) > 0


def test_micro_batches_give_the_same_gradients(results: dict[int, Gradients]) -> None:
    assert_same_gradients(results[1]["micro-batches"], results[1]["uneven"])


def test_sgd_steps_lead_to_the_same_weights(results: dict[int, Gradients]) -> None:
    assert_same_weights(results[2]["sgd"], results[1]["sgd"])
