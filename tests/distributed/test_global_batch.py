"""The loss of workers together is the loss of one process on the same batch: gradients tensor by tensor, and SGD steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.data.token_store import ROW_KINDS
from tests.distributed.group import JOBS, PAPER, SGD, Gradients, assert_same_gradients, assert_same_weights, gradients
from tests.objectives.pairs import COLUMNS, KIND
from tests.store import random_stores

Results = dict[int, Gradients]
# An objective with modules of its own.
PAIRS = {**PAPER, "objective": "pairs"}
OWN = {
    "pairs": PAIRS,
    "pairs, uneven": {**PAIRS, "batch": 9},
    "pairs, micro-batches": {**PAIRS, "batch": 9, "micro_batch": 4},
    # One of the two scales is used in even steps, the other in odd ones.
    "pairs, sgd": {**PAIRS, "batch": 9, "micro_batch": 9, "steps": 4},
}
ALL_SGD = [*SGD, "pairs, sgd"]
# These give the same gradients.
SAME = {"micro-batches": "uneven", "pairs, micro-batches": "pairs, uneven", "relation, micro-batches": "relation"}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, tiny_backbone: Path) -> Results:
    """Every job by one, two and four real gloo processes."""
    base = tmp_path_factory.mktemp("gloo")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ROW_KINDS, KIND, COLUMNS)
        store, _ = random_stores(base / "stores", rows={KIND: [(k, 7 * k % 60) for k in range(1, 41)]})
    jobs = JOBS | OWN
    return {workers: gradients([[]] * workers, base / str(workers), store, tiny_backbone, jobs=jobs) for workers in (1, 2, 4)}


@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("job", [name for name in (*JOBS, *OWN) if name not in (*ALL_SGD, "cached")])
def test_gradients_are_those_of_one_process(results: Results, job: str, workers: int) -> None:
    assert_same_gradients(results[workers][job], results[1][job])


def test_modules_that_a_batch_does_not_use_have_the_gradient_zero_and_not_none(results: Results) -> None:
    own = {name: float(value.norm()) for name, value in results[1]["pairs"].items() if name.startswith("objective.")}
    assert own.pop("objective.scales.1") == 0
    assert len(own) == 3
    assert min(own.values()) > 0


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_gradient_caching_repeats_the_plain_step_with_its_dropout(results: Results, workers: int) -> None:
    found = results[workers]["cached"]
    names = [name for name in found if not name.startswith("plain.")]
    largest = max(float(found[name].abs().max()) for name in names)
    for name in names:
        expected = found[f"plain.{name}"]
        assert float((found[name] - expected).norm()) <= 1e-10 * float(expected.norm()) + 1e-13 * largest, name


def test_jobs_differ_only_where_they_should(results: Results) -> None:
    for job, same in (*SAME.items(), ("mask", "paper")):
        head = next(name for name in results[1][job] if name.endswith("mean_head.weight"))
        ours, theirs = results[1][job][head], results[1][same][head]
        assert (float((ours - theirs).norm()) < 1e-10 * float(theirs.norm())) == (job in SAME), job


@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("job", ALL_SGD)
def test_sgd_steps_lead_to_the_same_weights(results: Results, job: str, workers: int) -> None:
    assert_same_weights(results[workers][job], results[1][job])
