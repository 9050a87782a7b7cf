"""The history of a registered model, as an append-only log in the registry: which version is champion, which were, and why.

MLflow's aliases have no compare-and-swap. If two processes read the champion and then both move the alias, the second undoes the
change of the first. Version numbers are safe: every database gives a number to one writer only (name and number are the primary
key), also through an MLflow server. So each change is stored as a version of a second registered model, `NAME.history`. The entry
names the last entry its writer had seen. It counts only if that entry is still the last one. Otherwise another writer was
faster, and the writer decides again. There is no lock, so no process can die while holding one.

The aliases follow the log. After a crash they may be out of date; the next reader corrects them.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal
from uuid import uuid4

from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from pipeline.registry.versions import all_versions, create_model, is_missing
from pipeline.utils.errors import UserError
from pipeline.utils.users import user_at_host

CHAMPION = "champion"
CHALLENGER = "challenger"
_TAG = "gausscse.event"
# Number of times a change is decided before it is given up.
_PATIENCE = 60

Action = Literal["promoted", "promoted by force", "kept", "rolled back"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change to enter into the log. The version that it is about is champion after it, unless the action is `kept`."""

    action: Action
    version: int
    reason: str
    decision: Mapping[str, Any] | None = None
    """Everything the rule looked at; None if the rule was not applied."""
    weights: str | None = None
    """The version's `weights_digest`; None for a rollback."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event(Change):
    """A change that is in the log and counts."""

    number: int
    previous: int | None
    """The champion before it."""
    champion: int | None
    """The champion after it."""
    by: str
    at: float
    """Seconds since 1970, by the server's clock."""
    id: str
    """A random id by which the writer recognises its entry."""


@dataclass(frozen=True, slots=True)
class History:
    """The events of a registered model, oldest first."""

    name: str
    events: tuple[Event, ...]

    @property
    def last(self) -> int:
        """Number of the last event; 0 before the first."""
        return self.events[-1].number if self.events else 0

    @property
    def champion(self) -> int | None:
        """The version that is champion."""
        return self.events[-1].champion if self.events else None

    @property
    def challenger(self) -> int | None:
        """The version that is challenger: the last one that the rule refused, unless it is champion by now."""
        refused = (event.version for event in reversed(self.events) if event.action == "kept")
        return next((version for version in refused if version != self.champion), None)

    @property
    def stack(self) -> list[int]:
        """The champion, after the champions that rollbacks would bring back: the next one is the last but one."""
        return self._replayed()[0]

    @property
    def rolled_back(self) -> dict[str | None, tuple[int, Event]]:
        """Weights → the version that had them and the rollback that ended their last time as champion."""
        return self._replayed()[1]

    def _replayed(self) -> tuple[list[int], dict[str | None, tuple[int, Event]]]:
        stack: list[int] = []
        rolled_back: dict[str | None, tuple[int, Event]] = {}
        weights = {event.version: event.weights for event in self.events if event.weights}
        for event in self.events:
            if event.action == "rolled back":
                while stack[-1] != event.version:
                    version = stack.pop()
                    rolled_back[weights.get(version)] = version, event
            elif event.action != "kept":
                stack.append(event.version)
            rolled_back.pop(weights.get(stack[-1]), None)
        return stack, rolled_back

    def of(self, version: int) -> Event | None:
        """The last event about a version."""
        return next((event for event in reversed(self.events) if event.version == version), None)

    def attempt(self, weights: Mapping[str, str], inputs: Mapping[str, Any]) -> tuple[int, Event | None]:
        """The number of an attempt to beat a champion, from 1, and the first identical decision, if there was one.

        Every decision of the rule against this champion is a chance to pass, so each counts: one about another model, and one
        about the same model on other pairs or with another parameter or scorer. A decision is identical if both models have the
        same weights and all inputs are equal. It keeps its number. Weights distinguish models, so version numbers do not
        matter, nor whether another version was champion in between.

        Args:
            weights: `weights_digest` of "champion" and "candidate".
            inputs: everything else that the decision depends on (`VersionScorer.inputs`).
        """
        asked = {"weights": dict(weights), **inputs}
        # By their text: to compare each with all others takes 18 seconds for ten thousand.
        decisions: dict[str, Event] = {}
        for event in self.events:
            decision = {key: (event.decision or {}).get(key) for key in asked}
            # A decision without weights is one that could not be scored.
            if decision["weights"] and decision["weights"]["champion"] == weights["champion"]:
                decisions.setdefault(json.dumps(decision, sort_keys=True), event)
        this = json.dumps(asked, sort_keys=True)
        return [*decisions, this].index(this) + 1, decisions.get(this)


def read(client: MlflowClient, name: str, known: History | None = None) -> History:
    """Read the log. Entries that were overtaken do not count.

    Args:
        known: was read before; only what follows is read now, since a long log takes seconds.

    Raises:
        UserError: something else wrote into the log, perhaps a newer version of this package.
    """
    known = known or History(name, ())
    events, last, champion = [*known.events], known.last, known.champion
    for stored in all_versions(client, f"name = '{log_of(name)}' and version_number > {last}"):
        number = int(stored.version)
        try:
            entry = json.loads(stored.tags[_TAG])
            if entry["before"] != last:
                continue
            change: dict[str, Any] = entry["change"]
            previous, champion = champion, champion if change["action"] == "kept" else int(change["version"])
            more: dict[str, Any] = {"by": entry["by"], "id": entry["id"], "at": stored.creation_timestamp / 1000}
            events.append(Event(number=number, previous=previous, champion=champion, **more, **change))
        except (KeyError, ValueError, TypeError):
            raise UserError(
                f"version {number} of {log_of(name)!r} in the registry is not an entry of this history; delete that version, or "
                "update this checkout if a newer one wrote it"
            ) from None
        last = number
    return History(name, tuple(events))


def log_of(name: str) -> str:
    """The name of the registered model that holds a model's history."""
    return f"{name}.history"


def enter(client: MlflowClient, name: str, decide: Callable[[History], Change | None]) -> History:
    """Decide on a change from the current history and enter it. If another writer was faster, decide again.

    Args:
        decide: gets the history; returns the change, or None if there is nothing to enter.

    Returns:
        the history with the new entry, if any; the aliases agree with it.

    Raises:
        UserError: others were faster every time.
    """
    history = None
    for attempt in range(_PATIENCE):
        history, mine = read(client, name, history), None
        if (change := decide(history)) is not None:
            mine = _append(client, history, change)
            history = read(client, name, history)
        # An overtaken entry is not deleted: while a version is being deleted, others see it without its tags.
        if change is None or any(event.id == mine for event in history.events):
            repair_aliases(client, name, history)
            return read(client, name, history)
        # A random pause, so that the writers do not collide again.
        time.sleep(random.uniform(0, 0.05 * min(attempt + 1, 10)))
    raise UserError(f"{name}: the registry changed {_PATIENCE} times while this was being decided; run it again")


def _append(client: MlflowClient, history: History, change: Change) -> str:
    """Try to enter the change as the next one after `history`; returns the id of the entry, which may not count."""
    # If a lost answer makes MLflow repeat the call, there are two entries; the second does not count.
    mine = uuid4().hex
    entry = {"id": mine, "before": history.last, "change": asdict(change), "by": user_at_host()}
    if not history.events:
        create_model(client, log_of(history.name), f"The history of the versions of {history.name}.")
    try:
        client.create_model_version(
            log_of(history.name),
            # MLflow wants a source.
            f"models:/{history.name}/{change.version}",
            tags={_TAG: json.dumps(entry)},
            description=f"version {change.version} {change.action}: {change.reason}",
        )
    except MlflowException as error:
        # MLflow gives up after three version numbers that others took first.
        if "Giving up after" not in str(error) and "database is locked" not in str(error):
            raise
    return mine


def repair_aliases(client: MlflowClient, name: str, history: History | None = None) -> list[str]:
    """Set the aliases to what the log says; returns a line for each alias that was wrong.

    Args:
        history: was read before.
    """
    lines: list[str] = []
    while (history := read(client, name, history)).events:
        aliases = client.get_registered_model(name).aliases
        for alias, version in ((CHAMPION, history.champion), (CHALLENGER, history.challenger)):
            now = int(aliases[alias]) if alias in aliases else None
            if now == version:
                continue
            line = f"alias {alias}: version {now or 'none'} → {version or 'none'}, by entry {history.last} of the history"
            try:
                if version is not None:
                    client.set_registered_model_alias(name, alias, str(version))
            except MlflowException as error:
                if not is_missing(error):
                    raise
                line = f"alias {alias} points to no version: the history says version {version}, which was deleted"
                version = None
            if version is None and now is not None:
                client.delete_registered_model_alias(name, alias)
            lines.append(line)
        # Another writer may have entered a change meanwhile and set the alias before we did.
        if read(client, name, history).last == history.last:
            break
    return lines
