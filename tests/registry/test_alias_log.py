"""The history of a model's champions: which attempts count, and what a rollback ends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from pipeline.registry.alias_log import Action, Change, Event, History

INPUTS = {"pairs": "pairs", "register": {"metric": "pr_auc", "min_gain": 0.0}}


def judged(champion: str, candidate: str, version: int = 9, **inputs: Any) -> dict[str, Any]:
    return {"champion": version, "weights": {"champion": champion, "candidate": candidate}, **INPUTS, **inputs}


def history_of(*decisions: Mapping[str, Any] | None) -> History:
    return entered(
        Change(action="kept", version=k, champion=1, challenger=None, reason=f"change {k}", decision=decision)
        for k, decision in enumerate(decisions)
    )


def entered(changes: Iterable[Change]) -> History:
    events = (
        Event(number=k + 1, before=k, previous=1, change=change, by="", at=0.0, id=str(k)) for k, change in enumerate(changes)
    )
    return History("m", tuple(events))


def attempt(history: History, candidate: str, champion: str = "a", version: int = 1, **inputs: Any) -> tuple[int, str | None]:
    number, known = history.attempt(version, {"champion": champion, "candidate": candidate}, INPUTS | inputs)
    return number, known.reason if known else None


def test_every_decision_against_a_champion_is_an_attempt() -> None:
    history = history_of(
        None,  # The first version, or one by force.
        {"pairs": {"dev": "d"}, "models": {}},  # From before the promotion part existed.
        judged("a", "b"),
        judged("a", "c"),
        judged("a", "b"),  # The same decision, for another version number.
        judged("a", "a"),  # The champion once more.
        judged("a", "b", pairs="others"),  # Another share, one more row.
        judged("a", "b", register={"metric": "directed_pr_auc", "min_gain": 0.0}),
        INPUTS,  # One that could not be scored.
        judged("c", "e"),  # Of another champion; the next is of the first again, after a rollback.
        judged("a", "f"),
    )
    assert [attempt(history, candidate) for candidate in "bcfg"] == [
        (1, "change 2"),
        (2, "change 3"),
        (5, "change 10"),
        (6, None),
    ]
    assert attempt(history, "b", pairs="others") == (3, "change 6")
    assert attempt(history, "b", register={"metric": "directed_pr_auc", "min_gain": 0.0}) == (4, "change 7")
    assert attempt(history, "b", pairs="more") == attempt(history, "b", scorer="s") == (6, None)
    assert attempt(history, "b", register={"metric": "pr_auc", "min_gain": 0.1}) == (6, None)
    assert attempt(history, "g", champion="c") == (2, None)
    assert attempt(history, "g", champion="z") == attempt(history_of(), "b") == (1, None)


def test_decisions_with_an_older_digest_of_the_champion_still_count() -> None:
    assert attempt(history_of(judged("old digest", "b", version=1)), "c") == (2, None)


@pytest.mark.parametrize("back", [[1], [3, 2, 1]])
def test_a_rollback_ends_all_champions_it_passes_over(back: list[int]) -> None:
    """In one entry, or in one per champion, as version 0.2 wrote them."""
    crowned: list[tuple[Action, int]] = [("promoted", 1), ("promoted", 2), ("kept", 2), ("promoted", 3), ("promoted", 4)]
    crowned.extend(("rolled back", version) for version in back)
    history = entered(Change(action=a, version=v, champion=v, challenger=None, reason="") for a, v in crowned)
    assert (history.stack, history.champion) == ([1], 1)
    ended = [(version, change.action) for version, change in history.ended]
    assert ended == [(version, "promoted") for version in (1, 2, 3)] + [(version, "rolled back") for version in (4, 3, 2)]
