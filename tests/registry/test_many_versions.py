"""What the registry costs with more versions than a page of MLflow's has, and that none of them is left out."""

from __future__ import annotations

import time
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

from bench import registry as many
from pipeline.cli import registry
from pipeline.config.execution import TrackingParams
from pipeline.registry import champions
from pipeline.registry.alias_log import Change, History, enter, read
from pipeline.registry.fetching import referred_to
from pipeline.registry.versions import all_versions
from pipeline.tracking.server import Tracker, open_tracker
from tests.calls import counted
from tests.conftest import Command
from tests.copies import PLAIN, ROOT
from tests.registry.servers import empty_database

pytestmark = pytest.mark.faults
SMALL, LARGE = 2_100, 4_200


def tracker_of(folder: Path, versions: int) -> Tracker:
    """MLflow in the database of a project, with so many versions and entries of their history."""
    folder.mkdir()
    (folder / "params.yaml").write_text(PLAIN.read_text(encoding="utf-8"), encoding="utf-8")
    (folder / "execution.yaml").write_text((ROOT / "execution.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    (folder / "mlflow.db").write_bytes(empty_database())
    many.fill(folder / "mlflow.db", versions)
    return open_tracker(TrackingParams(uri=None, experiment="another"), folder)


@pytest.fixture(scope="module")
def registries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, tuple[Path, Tracker]]]:
    """Two registries, by their number of versions; the tests only read them."""
    root = tmp_path_factory.mktemp("registries")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        yield {versions: (root / str(versions), tracker_of(root / str(versions), versions)) for versions in (SMALL, LARGE)}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The calls of MLflow's client, by name, from now on."""
    names = [name for name, method in vars(MlflowClient).items() if callable(method) and not name.startswith("_")]
    return counted(monkeypatch, MlflowClient, names)


def test_the_copies_are_what_mlflow_writes(registries: dict[int, tuple[Path, Tracker]], tmp_path: Path) -> None:
    _, tracker = registries[SMALL]
    client = tracker_of(tmp_path / "written", 2).client
    for number in (3, 4):
        many.add(client, number)
        enter(client, many.NAME, lambda _, number=number: many.change(number))
    ours, theirs = (read(one, many.NAME).events[:4] for one in (tracker.client, client))
    assert [(one.number, one.change()) for one in map(Changed, ours)] == [
        (one.number, one.change()) for one in map(Changed, theirs)
    ]
    versions = [[*all_versions(one, f"name = '{many.NAME}'")][:4] for one in (tracker.client, client)]
    shown = [[(one.version, one.tags, one.source, one.description) for one in found] for found in versions]
    assert shown[0] == shown[1]


class Changed:
    """An event without its time and id."""

    def __init__(self, event: Any) -> None:
        self.number, self._event = event.number, event

    def change(self) -> tuple[Any, ...]:
        return tuple(getattr(self._event, name) for name in (*Change.__dataclass_fields__, "previous", "champion", "by"))


@pytest.mark.parametrize("versions", [SMALL, LARGE])
def test_every_version_is_listed_by_a_call_for_each_thousand(
    registries: dict[int, tuple[Path, Tracker]],
    versions: int,
    calls: Counter[str],
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root, _ = registries[versions]
    # It looks through the history, which is too long to do so for each version.
    monkeypatch.delattr(History, "of")
    pages = -(-versions // 1000)
    code, said, _ = command(registry.main, root, ["history"])
    assert (code, len(said.splitlines())) == (0, versions)
    assert calls["search_model_versions"] == pages
    calls.clear()
    code, said, _ = command(registry.main, root, ["status"])
    lines = said.splitlines()
    assert (code, len(lines)) == (0, versions)
    assert "champion" in lines[0] and "challenger" in lines[-1]
    assert sum("kept: no gain" in line for line in lines) == versions - 1
    # History and versions once, and three times what is new since; the aliases with the model.
    assert calls["search_model_versions"] == 2 * pages + 3
    assert calls["get_registered_model"] == 1 and calls.total() <= 2 * pages + 10


def test_what_gc_asks_leaves_the_history_out_and_holds_a_page(
    registries: dict[int, tuple[Path, Tracker]], calls: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    peaks: dict[int, int] = {}
    for versions, (root, _) in registries.items():
        monkeypatch.chdir(root)
        referred_to()
        calls.clear()
        tracemalloc.start()
        named = referred_to()
        peaks[versions] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert named == {f"{number:064}": f"version {number} of gausscse" for number in range(1, versions + 1)}
        assert calls["search_model_versions"] == -(-versions // 1000)
    # A version with its card is 10 kB, its digest and its name here 0.3 kB.
    assert peaks[LARGE] - peaks[SMALL] < 2_000 * (LARGE - SMALL)


def test_a_version_that_changes_between_two_pages_is_not_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    client = tracker_of(tmp_path / "it", 1_100).client
    search = MlflowClient.search_model_versions

    def changed_after(of: MlflowClient, *arguments: Any, **named: Any) -> Any:
        page = search(of, *arguments, **named)
        # By MLflow's own order, the latest change first, one of them now moves from the second page to the first.
        for number in ("50", "1050"):
            client.update_model_version(many.NAME, number, f"changed {time.monotonic()}")
        return page

    monkeypatch.setattr(MlflowClient, "search_model_versions", changed_after)
    assert [int(version.version) for version in all_versions(client, f"name = '{many.NAME}'")] == list(range(1, 1_101))


def test_a_change_is_entered_after_one_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: Counter[str]) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    asked: list[int] = []
    for versions in (100, 1_100):
        tracker = tracker_of(tmp_path / str(versions), versions)
        calls.clear()
        back = enter(tracker.client, many.NAME, lambda _: Change(action="promoted by force", version=2, reason="measured"))
        assert (back.champion, back.last) == (2, versions + 1)
        asked.append(calls.total())
        assert champions.status(tracker, many.NAME)[1] == []
    # One page more.
    assert asked[1] == asked[0] + 1
