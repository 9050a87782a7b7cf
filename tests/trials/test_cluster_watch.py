"""When the workers of a run are started again elsewhere, and how many; cluster/test_elastic.py does it on hosts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from pipeline.cluster.capacity import ClusterWatch, workers_after_move
from pipeline.config.execution import ClusterParams
from pipeline.config.load import load_execution
from tests.conftest import ROOT


def cluster(workers: int, fewest: int | None = None) -> ClusterParams:
    execution = load_execution(ROOT / "execution.yaml")
    return execution.cluster.model_copy(update={"workers": workers, "min_workers": fewest})


@pytest.mark.parametrize(
    ("workers", "fewest", "places", "free", "go_on"),
    [
        # All that are wanted fit, or all that the cluster has places for.
        (4, None, 4, 4, 4),
        # Others use some of the places: as many as fit, but no fewer than min_workers.
        (4, 2, 4, 3, 3),
        # All or none; Ray then waits for the places.
        (4, None, 4, 1, 4),
        # The whole cluster is smaller than min_workers.
        (4, 3, 2, 1, 2),
    ],
)
def test_a_run_goes_on_with_as_many_workers_as_fit(workers: int, fewest: int | None, places: int, free: int, go_on: int) -> None:
    assert workers_after_move(cluster(workers, fewest), places, lambda: free, patience=0.0) == go_on


def test_places_that_become_free_are_waited_for_and_no_longer() -> None:
    free = iter([0, 1, 3, 4])
    assert workers_after_move(cluster(3, 1), 4, lambda: next(free)) == 3
    # It did not look again once there was room for all.
    assert next(free) == 4


HOMES = ("node-a", "node-a", "node-b")


def said(watch: ClusterWatch, looks: Sequence[tuple[float, int]]) -> Iterator[str]:
    """What it says at each look: (seconds on a clock, places that are free)."""
    return (watch.reason_to_move({}, free, now) for now, free in looks)


@pytest.mark.parametrize(
    ("leaving", "why"),
    [
        ({}, ""),
        # Two of the workers are there.
        ({"node-a": "10.0.0.1"}, "10.0.0.1 is about to leave the cluster"),
        ({"node-b": "10.0.0.2", "node-a": "10.0.0.1"}, "10.0.0.1, 10.0.0.2 are about to leave the cluster"),
        # None of the workers is there.
        ({"node-c": "10.0.0.3", "node-a": "10.0.0.1"}, "10.0.0.1 is about to leave the cluster"),
    ],
)
def test_workers_move_if_a_node_that_they_are_on_is_about_to_leave(leaving: dict[str, str], why: str) -> None:
    assert ClusterWatch(cluster(3), use_gpu=False, homes=HOMES).reason_to_move(leaving, 0, 100.0) == why


def test_a_node_that_leaves_comes_before_room_for_more() -> None:
    watch = ClusterWatch(cluster(4, 1), use_gpu=False, homes=HOMES)
    assert list(said(watch, [(100.0, 1), (112.0, 1)])) == ["", "there is room for 1 more"]
    assert watch.reason_to_move({"node-b": "10.0.0.2"}, 1, 113.0) == "10.0.0.2 is about to leave the cluster"


@pytest.mark.parametrize(
    ("looks", "last"),
    [
        # It has lasted for 12 seconds.
        ([(100.0, 1), (112.0, 1)], "there is room for 1 more"),
        # The time before the first room does not count.
        ([(100.0, 0), (110.0, 1), (121.9, 1)], ""),
        # Room that comes or goes meanwhile begins a new wait.
        ([(100.0, 1), (106.0, 2), (117.9, 2)], ""),
        # The run lacks two workers: what is free beyond that is not its own, and may come and go.
        ([(100.0, 5), (106.0, 2), (112.0, 7)], "there is room for 2 more"),
    ],
)
def test_a_run_takes_room_that_has_lasted(looks: list[tuple[float, int]], last: str) -> None:
    watch = ClusterWatch(cluster(5, 1), use_gpu=False, homes=HOMES)
    *before, now = said(watch, looks)
    assert before == [""] * (len(looks) - 1)
    assert now == last
