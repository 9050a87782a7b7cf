"""The history of a model's champions: which attempts count, and which weights a rollback ends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from pipeline.registry.alias_log import Action, Change, Event, History

INPUTS = {"pairs": "pairs", "register": {"metric": "pr_auc", "min_gain": 0.0}}


def entered(changes: Iterable[Change]) -> History:
    events: list[Event] = []
    champion = None
    for number, change in enumerate(changes, start=1):
        previous, champion = champion, champion if change.action == "kept" else change.version
        keys: dict[str, Any] = asdict(change) | {"number": number, "previous": previous, "champion": champion}
        events.append(Event(**keys | {"by": "", "at": 0.0, "id": ""}))
    return History("m", tuple(events))


def judged(decisions: Iterable[Mapping[str, Any] | None]) -> History:
    """Version 1 is champion and stays it after each decision."""
    start = Change(action="promoted", version=1, reason="the first")
    kept = (Change(action="kept", version=2, reason=f"decision {k}", decision=one) for k, one in enumerate(decisions, start=1))
    return entered([start, *kept])


def about(champion: str, candidate: str, **inputs: Any) -> dict[str, Any]:
    return {"weights": {"champion": champion, "candidate": candidate}, **INPUTS, **inputs}


def attempt(history: History, candidate: str, champion: str = "a", **inputs: Any) -> tuple[int, str | None]:
    number, known = history.attempt({"champion": champion, "candidate": candidate}, INPUTS | inputs)
    return number, known.reason if known else None


def test_every_decision_against_a_champion_is_an_attempt() -> None:
    decisions: list[Mapping[str, Any] | None] = [
        about("a", "b"),
        about("a", "c"),
        about("a", "b"),  # The same decision, for another version number.
        about("a", "b", pairs="others"),  # Another share, one more row.
        about("a", "b", register={"metric": "directed_pr_auc", "min_gain": 0.0}),
        INPUTS,  # One that could not be scored.
        about("c", "e"),  # Of another champion; the next is of the first again, after a rollback.
        about("a", "f"),
    ]
    history = judged(decisions)
    assert [attempt(history, one) for one in "bcfg"] == [(1, "decision 1"), (2, "decision 2"), (5, "decision 8"), (6, None)]
    assert attempt(history, "b", pairs="others") == (3, "decision 4")
    assert attempt(history, "b", register={"metric": "directed_pr_auc", "min_gain": 0.0}) == (4, "decision 5")
    assert attempt(history, "b", pairs="more") == attempt(history, "b", scorer="s") == (6, None)
    assert attempt(history, "b", register={"metric": "pr_auc", "min_gain": 0.1}) == (6, None)
    assert attempt(history, "g", champion="c") == (2, None)
    assert attempt(history, "g", champion="z") == attempt(History("m", ()), "b") == (1, None)


class Weights(dict[str, str]):
    """Counts how often weights are compared."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Weights.compared += 1
        return super().__eq__(other)

    __hash__ = None  # type: ignore[assignment]


def test_ten_times_the_decisions_are_ten_times_the_work() -> None:
    compared: list[int] = []
    for count in (50, 500):
        decisions = [about("a", f"b{number}") for number in range(count)]
        history = judged(decision | {"weights": Weights(decision["weights"])} for decision in decisions)
        Weights.compared = 0
        assert attempt(history, "new") == (count + 1, None)
        assert attempt(history, "b9") == (10, "decision 10")
        compared.append(Weights.compared)
    assert compared[1] <= 10 * compared[0]


def test_a_rollback_ends_all_champions_it_passes_over() -> None:
    def crowned(*changes: tuple[Action, int]) -> History:
        # Versions 2 and 5 have the same weights.
        return entered(
            Change(action=a, version=v, reason="", weights=None if a == "rolled back" else f"w{v % 3}") for a, v in changes
        )

    start: list[tuple[Action, int]] = [("promoted", 1), ("promoted", 2), ("kept", 2), ("promoted", 3)]
    history = crowned(*start, ("rolled back", 1))
    assert (history.stack, history.champion) == ([1], 1)
    assert {weights: version for weights, (version, _) in history.rolled_back.items()} == {"w2": 2, "w0": 3}
    # Weights that are champion again lose their veto, whichever version has them.
    again = crowned(*start, ("rolled back", 1), ("promoted", 5))
    assert (again.stack, {*again.rolled_back}) == ([1, 5], {"w0"})
    assert {*crowned(*start, ("rolled back", 1), ("promoted", 5), ("promoted", 4)).rolled_back} == {"w0"}
