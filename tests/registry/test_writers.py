"""Eight writers at once, and writers that are killed: on MLflow servers with passwords, sqlite and PostgreSQL behind them."""

from __future__ import annotations

import multiprocessing
import os
import random
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.execution import TrackingParams
from pipeline.registry import champions
from pipeline.registry.alias_log import Change, History, enter, read, repair_aliases
from pipeline.tracking.mlflow_runs import pipeline_run
from pipeline.tracking.server import Tracker, open_tracker
from pipeline.utils.errors import UserError
from tests.registry.lab import Lab
from tests.registry.servers import Server, postgres, served

pytestmark = pytest.mark.faults

WRITERS, EACH = 8, 3
VERSIONS = 4


@pytest.fixture(scope="module", params=[pytest.param("sqlite", marks=pytest.mark.weekly), "postgresql"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp(request.param)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        address = nullcontext(f"sqlite:///{folder}/mlflow.db") if request.param == "sqlite" else postgres()
        with address as database, served(folder, database) as up:
            patch.setenv("MLFLOW_TRACKING_USERNAME", up.user)
            patch.setenv("MLFLOW_TRACKING_PASSWORD", up.password)
            yield up


@pytest.fixture(scope="module")
def tracker(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Tracker:
    return open_tracker(TrackingParams(uri=server.uri, experiment="test"), tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def name(lab: Lab, tracker: Tracker) -> str:
    """A model of a few versions, the first of them champion."""
    run = pipeline_run(tracker, "a" * 64, {}, {})
    for seed in range(1, VERSIONS + 1):
        champions.add_version(tracker, "contested", lab.untrained(seed), run, {})
    enter(tracker.client, "contested", lambda seen: None if seen.events else promoted(1, "the first"))
    return "contested"


def promoted(version: int, reason: str) -> Change:
    return Change(action="promoted", version=version, reason=reason)


def at_once(count: int, body: Callable[[int], None]) -> list[int]:
    """Exit codes of processes that do it at the same moment."""
    context = multiprocessing.get_context("fork")
    gate = context.Barrier(count)

    def run(number: int) -> None:
        gate.wait(60)
        body(number)

    processes = [context.Process(target=run, args=(number,)) for number in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(240)
    return [process.exitcode if process.exitcode is not None else -1 for process in processes]


def test_eight_writers_at_once_leave_a_serial_history(name: str, tracker: Tracker) -> None:
    before = read(tracker.client, name)

    def write(number: int) -> None:
        draw = random.Random(number)
        for turn in range(EACH):

            def change(seen: History, turn: int = turn) -> Change:
                # The next one after the champion that it sees: who decided on an old state is found out by the sum.
                assert seen.champion is not None
                return promoted(seen.champion % VERSIONS + 1, f"writer {number}, turn {turn}")

            if draw.random() < 0.3:
                champions.status(tracker, name)
            enter(tracker.client, name, change)

    assert at_once(WRITERS, write) == [0] * WRITERS
    history = read(tracker.client, name)
    # Nothing is lost and nothing is there twice; everybody saw what was before.
    reasons = [event.reason for event in history.events[len(before.events) :]]
    assert sorted(reasons) == sorted(f"writer {number}, turn {turn}" for number in range(WRITERS) for turn in range(EACH))
    champion = before.champion
    for event in history.events[len(before.events) :]:
        assert champion is not None
        champion = champion % VERSIONS + 1
        assert event.champion == champion
    # One champion, and it is the last one's; nothing has to be repaired.
    assert repair_aliases(tracker.client, name) == []
    assert int(tracker.client.get_model_version_by_alias(name, "champion").version) == history.champion


class Dying:
    """A client whose process is killed after so many calls, before it uses the last one's answer."""

    def __init__(self, client: Any, calls: int) -> None:
        self._client, self._left = client, calls

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._client, name)

        def counted(*arguments: Any, **more: Any) -> Any:
            self._left -= 1
            try:
                return call(*arguments, **more)
            finally:
                if self._left == 0:
                    os._exit(9)

        return counted


def test_a_writer_killed_after_any_call_leaves_a_whole_history(name: str, tracker: Tracker) -> None:
    for at in range(1, 40):
        before = read(tracker.client, name)
        target = before.champion % VERSIONS + 1 if before.champion else 1

        def write(_: int, at: int = at, target: int = target) -> None:
            dying: Any = Dying(tracker.client, at)
            enter(dying, name, lambda _: promoted(target, f"killed at call {at}"))

        (code,) = at_once(1, write)
        there = read(tracker.client, name)
        assert len(there.events) - len(before.events) in (0, 1)
        history, repaired, _ = champions.status(tracker, name)
        assert history == there
        # What it says it repaired is what the kill had left between the two.
        assert all("of the history" in line for line in repaired)
        assert champions.status(tracker, name)[1] == []
        assert int(tracker.client.get_model_version_by_alias(name, "champion").version) == there.champion
        if code == 0:
            # It read, entered, read again, set an alias and looked once more, at least.
            assert at > 6
            return
    raise AssertionError("it makes more calls than that")


@pytest.mark.parametrize("password", ["a-wrong-password", "password1234"])
def test_a_refused_password_is_one_line(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, password: str) -> None:
    """One that is wrong, and a well-known default, which is not sent."""
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", password)
    with pytest.raises(UserError, match="MLFLOW_TRACKING_PASSWORD") as caught:
        open_tracker(TrackingParams(uri=server.uri, experiment="test"), tmp_path)
    assert ("\n" in str(caught.value), "wrong-password" in str(caught.value)) == (False, False)
    assert ("well-known default" in str(caught.value)) is (password == "password1234")
