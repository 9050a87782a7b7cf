"""What became of a registered model's versions: who is champion, who was, and why. An append-only log beside the model.

MLflow's aliases have no compare-and-swap: of two who read the champion and then move the alias, the later one undoes what the
other did. Version numbers are another thing: the database gives each number of a registered model to one writer (name and number
are its primary key), whichever database it is, and through a server as well. So every change is a version of the registered model
`NAME.history`, which says on which change before it it was decided. It counts if that one is still the last: else somebody was
faster, and whoever wrote it decides anew. Nobody holds a lock, so nobody can die with it.

The aliases follow the log. Whoever reads it sets right what a crash between the two has left behind.
"""

from __future__ import annotations

import getpass
import json
import random
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal
from uuid import uuid4

from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from pipeline.errors import UserError
from pipeline.registry.versions import is_missing

CHAMPION = "champion"
CHALLENGER = "challenger"
_TAG = "gausscse.event"
# Of versions in one answer.
_PAGE = 1000
# Changes that are decided anew before somebody should look why.
_PATIENCE = 60

Action = Literal["adopted", "registered", "promoted", "kept", "rolled back"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What somebody wants to enter: of which version, and who has which alias after it."""

    action: Action
    version: int
    """The version that it is about."""
    champion: int | None
    challenger: int | None
    reason: str
    forced: bool = False
    decision: Mapping[str, Any] | None = None
    """All that the rule looked at, where it was asked."""
    weights: str | None = None
    """`pipeline.model_folder.weights_digest` of the version; None for a rollback, and in entries written before it was kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A change that counts."""

    number: int
    before: int
    """Number of the event it was decided on; 0 where there was none."""
    previous: int | None
    """The champion before it."""
    change: Change
    by: str
    at: float
    """Seconds since 1970, by the server's clock."""
    id: str
    """By which its writer knows it again."""


@dataclass(frozen=True, slots=True)
class History:
    """The events of a registered model, first to last."""

    name: str
    events: tuple[Event, ...]

    @property
    def last(self) -> int:
        """Number of the last event; 0 before the first."""
        return self.events[-1].number if self.events else 0

    @property
    def champion(self) -> int | None:
        """The version that is champion."""
        return self.events[-1].change.champion if self.events else None

    @property
    def challenger(self) -> int | None:
        """The version that was registered last and is not champion."""
        return self.events[-1].change.challenger if self.events else None

    @property
    def before_champion(self) -> int | None:
        """The champion that a rollback brings back: rolled back twice, it is the one before that."""
        stack: list[int] = []
        for event in self.events:
            champion = event.change.champion
            if event.change.action == "rolled back" and len(stack) > 1:
                stack.pop()
            elif champion is not None and (not stack or stack[-1] != champion):
                stack.append(champion)
        return stack[-2] if len(stack) > 1 else None

    def of(self, version: int) -> Event | None:
        """The last event about a version."""
        return next((event for event in reversed(self.events) if event.change.version == version), None)

    def weights_of(self, version: int) -> str | None:
        """The digest of a version's weights, where an entry has it."""
        return next((e.change.weights for e in self.events if e.change.version == version and e.change.weights), None)

    def attempt(self, champion: str, candidate: str) -> int:
        """Which attempt to beat a champion this is, from 1; one that was made before keeps its number.

        What counts is a model that the rule has judged, once: under whatever version numbers champion and candidate were
        registered, and whether or not another was champion meanwhile. The count does not depend on the promotion pairs: a set
        that differs in a few pairs would otherwise begin a new count on nearly the same ones.

        Args:
            champion: digest of its weights.
            candidate: the same.
        """
        decisions = [event.change.decision for event in self.events if event.change.decision]
        judged = [decision["weights"] for decision in decisions if "weights" in decision]
        # The champion's own weights, registered once more, are no attempt to beat it.
        tried = list(dict.fromkeys(one["candidate"] for one in judged if one["champion"] == champion != one["candidate"]))
        return tried.index(candidate) + 1 if candidate in tried else len(tried) + 1


def read(client: MlflowClient, name: str) -> History:
    """The log as it is; entries that were overtaken do not count."""
    return History(name, tuple(_counting(_entries(client, name))))


def log_of(name: str) -> str:
    """Name of the registered model that holds a model's history."""
    return f"{name}.history"


def _entries(client: MlflowClient, name: str) -> list[tuple[int, dict[str, Any], float]]:
    """Number, content and time of every version of the log, first to last."""
    found: list[tuple[int, dict[str, Any], float]] = []
    for version in _versions(client, log_of(name)):
        try:
            told = json.loads(version.tags[_TAG])
        except (KeyError, ValueError):
            raise UserError(
                f"version {version.version} of {log_of(name)!r} in the registry is no event of ours: delete that version"
            ) from None
        found.append((int(version.version), told, version.creation_timestamp / 1000))
    return sorted(found, key=lambda entry: entry[0])


def _counting(entries: Iterable[tuple[int, dict[str, Any], float]]) -> Iterable[Event]:
    last, champion = 0, None
    for number, told, at in entries:
        if told["before"] == last:
            change = Change(**told["change"])
            yield Event(number=number, before=last, previous=champion, change=change, by=told["by"], at=at, id=told["id"])
            last, champion = number, change.champion


def enter(client: MlflowClient, name: str, decide: Callable[[History], Change | None]) -> History:
    """Decide on the history as it is and enter what comes of it; when somebody was faster, decide anew.

    Args:
        decide: gets the history; returns None where nothing is to be entered.

    Returns:
        the history, with the entry in it if there was one; the aliases are as it says.

    Raises:
        UserError: others are faster all the time, or the version that it is about is gone.
    """
    _make_log(client, name)
    for attempt in range(_PATIENCE):
        history = read(client, name)
        change = decide(history)
        if change is None or _appended(client, history, change):
            mend(client, name)
            return read(client, name)
        # Apart from each other, or all of them meet again.
        time.sleep(random.uniform(0, 0.05 * min(attempt + 1, 10)))
    raise UserError(f"{name}: the registry changed {_PATIENCE} times while this was being decided; run it again")


def _make_log(client: MlflowClient, name: str) -> None:
    try:
        client.create_registered_model(log_of(name), description=f"What became of the versions of {name}: see `history`.")
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise


def _appended(client: MlflowClient, history: History, change: Change) -> bool:
    """Whether the change is entered as the one after `history`."""
    # A call that is repeated because its answer was lost makes two entries; the second does not count.
    mine = uuid4().hex
    entry = {"id": mine, "before": history.last, "change": asdict(change), "by": _who()}
    try:
        client.create_model_version(
            log_of(history.name),
            # A version has to have a source: the version that it is about.
            f"models:/{history.name}/{change.version}",
            tags={_TAG: json.dumps(entry)},
            description=f"version {change.version} {change.action}: {change.reason}",
        )
    except MlflowException as error:
        # MLflow tries three numbers.
        if "Giving up after" not in str(error) and "database is locked" not in str(error):
            raise
    # One that was overtaken stays where it is: a version that is just being deleted is seen by others without its tags.
    return any(event.id == mine for event in read(client, history.name).events)


def mend(client: MlflowClient, name: str) -> list[str]:
    """Set the aliases to what the log says; returns what was otherwise."""
    said: list[str] = []
    while True:
        history = read(client, name)
        if not history.events:
            return said
        aliases = dict(client.get_registered_model(name).aliases)
        for alias, version in ((CHAMPION, history.champion), (CHALLENGER, history.challenger)):
            now = int(aliases[alias]) if alias in aliases else None
            if now == version:
                continue
            if version is not None and not _set(client, name, alias, version):
                said.append(f"alias {alias} has nobody: version {version}, which the history gives it, was deleted")
                version = None
            else:
                said.append(f"alias {alias} was {_at(now)}; by the history, entry {history.last}, it is {_at(version)}: set")
            if version is None and now is not None:
                client.delete_registered_model_alias(name, alias)
        # Somebody may have entered another meanwhile, and set the alias before we did.
        if read(client, name).last == history.last:
            return said


def _set(client: MlflowClient, name: str, alias: str, version: int) -> bool:
    """Whether there is such a version to give the alias to."""
    try:
        client.set_registered_model_alias(name, alias, str(version))
    except MlflowException as error:
        if not is_missing(error):
            raise
        return False
    return True


def _at(version: int | None) -> str:
    return "nowhere" if version is None else f"at version {version}"


def _versions(client: MlflowClient, name: str) -> list[ModelVersion]:
    found: list[ModelVersion] = []
    token = None
    while True:
        page = client.search_model_versions(f"name = '{name}'", max_results=_PAGE, page_token=token)
        found += page
        token = page.token
        if not token:
            return found


def _who() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"
    return f"{user}@{socket.gethostname()}"
