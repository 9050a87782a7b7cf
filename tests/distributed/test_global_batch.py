"""The loss of workers together is the loss of one process on the same batch: gradients tensor by tensor, and SGD steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.distributed.group import JOBS, SGD, Gradients, assert_same_gradients, assert_same_weights, gradients
from tests.store import random_stores

Results = dict[int, Gradients]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, tiny_backbone: Path) -> Results:
    """Every job by one, two and four real gloo processes."""
    base = tmp_path_factory.mktemp("gloo")
    store, _ = random_stores(base / "stores")
    return {workers: gradients([[]] * workers, base / str(workers), store, tiny_backbone) for workers in (1, 2, 4)}


@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("job", [name for name in JOBS if name not in (*SGD, "cached")])
def test_gradients_are_those_of_one_process(results: Results, job: str, workers: int) -> None:
    assert_same_gradients(results[workers][job], results[1][job])


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_gradient_caching_repeats_the_plain_step_with_its_dropout(results: Results, workers: int) -> None:
    found = results[workers]["cached"]
    names = [name for name in found if not name.startswith("plain.")]
    largest = max(float(found[name].abs().max()) for name in names)
    for name in names:
        expected = found[f"plain.{name}"]
        assert float((found[name] - expected).norm()) <= 1e-10 * float(expected.norm()) + 1e-13 * largest, name


@pytest.mark.parametrize("job", ["micro-batches", "mask"])
def test_those_jobs_differ_only_where_they_should(results: Results, job: str) -> None:
    same = {"micro-batches": "uneven", "mask": "paper"}[job]
    ours, theirs = results[1][job]["mean_head.weight"], results[1][same]["mean_head.weight"]
    assert (float((ours - theirs).norm()) < 1e-10 * float(theirs.norm())) == (job == "micro-batches")


@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("job", SGD)
def test_sgd_steps_lead_to_the_same_weights(results: Results, job: str, workers: int) -> None:
    assert_same_weights(results[workers][job], results[1][job])
