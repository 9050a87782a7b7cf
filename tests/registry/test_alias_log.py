"""The history of a model's champions: which attempts count."""

from __future__ import annotations

from typing import Any

from pipeline.registry.alias_log import Change, Event, History


def judged(champion: str, candidate: str, pairs: str = "pairs") -> dict[str, Any]:
    return {"pairs": {"promotion": pairs}, "weights": {"champion": champion, "candidate": candidate}}


def test_attempts_are_counted_once_a_model_whatever_the_pairs() -> None:
    decisions: list[dict[str, Any] | None] = [
        None,  # The first version, or one by force.
        {"pairs": {"dev": "d"}, "models": {}},  # From before the promotion part existed.
        judged("a", "b"),
        judged("a", "c"),
        judged("a", "b"),  # The same model under another version number.
        judged("a", "a"),  # The champion once more.
        judged("a", "d", pairs="others"),  # The pairs changed: a new share, one more row.
        {"pairs": {"promotion": "pairs"}},  # One that could not be scored.
        judged("c", "e"),  # Of another champion; the next is of the first again, after a rollback.
        judged("a", "f"),
    ]
    changes = [
        Change(action="kept", version=k, champion=1, challenger=None, reason="", decision=decision)
        for k, decision in enumerate(decisions)
    ]
    events = [
        Event(number=k + 1, before=k, previous=1, change=change, by="", at=0.0, id=str(k)) for k, change in enumerate(changes)
    ]
    history = History("m", tuple(events))
    assert [history.attempt("a", candidate) for candidate in "bcdfg"] == [1, 2, 3, 4, 5]
    assert history.attempt("c", "g") == 2
    assert history.attempt("b", "g") == History("m", ()).attempt("a", "b") == 1
