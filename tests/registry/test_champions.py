"""Who becomes champion, on a real MLflow (sqlite) with models that are really scored."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mlflow.entities.model_registry import ModelVersion
from mlflow.tracking import MlflowClient

from pipeline.registry import champions
from pipeline.registry.alias_log import Change, History, enter, log_of, read
from pipeline.registry.champions import Registration
from pipeline.registry.version_scorer import VersionScorer
from pipeline.registry.versions import all_versions
from pipeline.tracking.mlflow_runs import DIGEST_TAG
from pipeline.tracking.server import Tracker
from pipeline.utils.atomic_io import write_sums
from pipeline.utils.errors import TransientStorageError, UserError
from tests.registry.lab import Lab
from tests.tiny import make_tiny_backbone

Register = Callable[..., Registration]


def aliases(tracker: Tracker, name: str) -> dict[str, int]:
    found: dict[str, str] = tracker.client.get_registered_model(name).aliases
    return {alias: int(version) for alias, version in found.items()}


def actions(history: History) -> list[tuple[str, int, int | None]]:
    return [(event.action, event.version, event.champion) for event in history.events]


def promote(lab: Lab, tracker: Tracker, name: str, number: int, by_force: str | None = None) -> History:
    with lab.scorer(tracker) as scorer:
        return champions.promote(tracker, name, number, scorer, by_force=by_force)


def test_the_rule_promotes_a_better_model(lab: Lab, tracker: Tracker, register: Register) -> None:
    first = register(lab.untrained(1))
    assert (first.version, first.alias, first.champion_version) == (1, "champion", 1)
    assert (first.reason, first.decision) == ("there was no champion yet", None)
    assert aliases(tracker, first.name) == {"champion": 1}

    like = register(lab.untrained(2))
    assert (like.version, like.alias, like.champion_version) == (2, "challenger", 1)
    assert "is not significantly above register.min_gain 0" in like.reason

    better = register(lab.trained(1))
    assert (better.version, better.alias, better.champion_version) == (3, "champion", 3)
    assert aliases(tracker, first.name) == {"champion": 3, "challenger": 2}
    decision = better.decision
    assert decision is not None
    gain = decision["differences"]["promotion"]["pr_auc"]
    assert gain["low"] > 0
    assert gain["old"] < gain["new"]
    # The history keeps everything that the decision depends on.
    assert {"pairs", "scorer", "evaluate", "register"} <= set(decision)
    assert decision["weights"]["candidate"] == tracker.client.get_model_version(first.name, "3").tags["tensors_digest"]
    checks = ["promotion.pr_auc", "promotion.direction.score", "generated_test.pr_auc"]
    assert [check["name"] for check in decision["checks"]] == checks

    history = read(tracker.client, first.name)
    assert actions(history) == [("promoted", 1, 1), ("kept", 2, 1), ("promoted", 3, 3)]
    assert [event.previous for event in history.events] == [None, 1, 1]
    # Registered again: no second version, no second entry.
    assert register(lab.trained(1)) == better
    assert register(lab.untrained(2)).alias == "challenger"
    assert actions(read(tracker.client, first.name))[:3] == actions(history)


def test_compare_has_every_metric_with_its_interval_and_scores_once(
    lab: Lab, tracker: Tracker, register: Register, capsys: pytest.CaptureFixture[str]
) -> None:
    name = register(lab.untrained(1)).name
    register(lab.trained(1))
    capsys.readouterr()
    with lab.scorer(tracker) as scorer:
        found = champions.compare(tracker, name, 1, 2, scorer)
        back = champions.compare(tracker, name, 2, 1, scorer)
    # The registration has scored both, each on two groups of sets.
    assert capsys.readouterr().out.count("reused, scored before") == 4
    every = {"pr_auc", "directed_pr_auc", "accuracy", "direction.score"}
    assert {set_name: set(metrics) for set_name, metrics in found.items()} == {"dev": every, "generated_test": every}
    for set_name, metrics in found.items():
        for metric, one in metrics.items():
            other = back[set_name][metric]
            assert one.low <= one.gain <= one.high
            assert (other.old, other.new, other.gain) == (one.new, one.old, -one.gain)
            assert (other.low, other.high) == pytest.approx((-one.high, -one.low))


def test_promotion_by_force_and_back(lab: Lab, tracker: Tracker, register: Register) -> None:
    name = register(lab.trained(1)).name
    register(lab.untrained(1))
    register(lab.untrained(2))
    assert actions(promote(lab, tracker, name, 2))[-1] == ("kept", 2, 1)
    assert aliases(tracker, name) == {"champion": 1, "challenger": 2}
    forced = promote(lab, tracker, name, 2, "for the demonstration")
    assert (actions(forced)[-1], forced.events[-1].reason) == (("promoted by force", 2, 2), "for the demonstration")
    # The one that was refused before is the challenger again.
    assert aliases(tracker, name) == {"champion": 2, "challenger": 3}
    promote(lab, tracker, name, 3, "and another")
    for number, words in ((3, "version 3 is the champion already"), (9, "has no version 9 of a model")):
        with pytest.raises(UserError, match=words):
            promote(lab, tracker, name, number)
    assert champions.rollback(tracker, name, "it was worse").champion == 2
    assert champions.rollback(tracker, name, "so was this").champion == 1
    assert aliases(tracker, name) == {"champion": 1, "challenger": 2}
    with pytest.raises(UserError, match="no earlier champion"):
        champions.rollback(tracker, name, "once more")


def test_another_rule_is_another_attempt(
    lab: Lab, tracker: Tracker, register: Register, run_id: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name = register(lab.untrained(1)).name
    first = register(lab.untrained(2))
    rule = lab.params.register_.model_copy(update={"metric": "directed_pr_auc"})
    other = replace(lab, params=lab.params.model_copy(update={"register_": rule}))
    second = other.register(tracker, name, lab.untrained(2), run_id)
    assert "attempt 2 against this champion: 99.1667 %" in second.reason
    capsys.readouterr()
    # Back to the first rule: the first answer, although a decision came between; nothing is scored for it.
    assert register(lab.untrained(2)) == first
    assert "scored" not in capsys.readouterr().out
    assert register(lab.untrained(2)) == first
    assert [event.reason.count("attempt 1 ") for event in read(tracker.client, name).events] == [0, 1, 0, 1]


def test_a_rollback_goes_to_an_earlier_champion_by_its_number(lab: Lab, tracker: Tracker, register: Register) -> None:
    name = register(lab.untrained(1)).name
    for seed in (2, 3):
        register(lab.untrained(seed))
        promote(lab, tracker, name, seed, "to see")
    back = register(lab.untrained(1))
    assert (back.alias, back.champion_version) == ("challenger", 3)
    assert back.rollback == 'gausscse registry rollback --to 1 --reason "…"'
    with pytest.raises(UserError, match="rollbacks lead to version 1, 2, not to version 4"):
        champions.rollback(tracker, name, "no", to=4)
    # Those between need not be there any more; the one that will be served must be.
    tracker.client.delete_model_version(name, "2")
    with pytest.raises(UserError, match="no version 2"):
        champions.rollback(tracker, name, "no")
    before = read(tracker.client, name).events
    history = champions.rollback(tracker, name, "reverted", to=1)
    # One entry, so version 2 is not served meanwhile. The rule brings back neither of them.
    assert actions(history)[len(before) :] == [("rolled back", 1, 1)]
    assert history.stack == [1]
    again = register(lab.untrained(1))
    assert (again.alias, again.rollback) == ("champion", None)
    # Version 2 was only passed over, and is deleted; another version has its weights.
    assert "version 2, which has the same weights, was rolled back (reverted)" in register(lab.untrained(2)).reason
    vetoed = register(lab.untrained(3))
    assert (vetoed.reason, vetoed.rollback) == ("it was rolled back (reverted); promote it with --force if that is over", None)


def test_a_store_that_does_not_answer_decides_nothing(
    lab: Lab, tracker: Tracker, register: Register, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: object) -> None:
        raise TransientStorageError("503")

    name = register(lab.untrained(1)).name
    before = actions(read(tracker.client, name))
    monkeypatch.setattr(VersionScorer, "__call__", unreachable)
    with pytest.raises(TransientStorageError):
        register(lab.untrained(2))
    assert actions(read(tracker.client, name)) == before
    monkeypatch.undo()
    assert "(attempt 1 against" in register(lab.untrained(2)).reason


def test_the_champions_own_weights_are_no_attempt(lab: Lab, tracker: Tracker, register: Register, tmp_path: Path) -> None:
    register(lab.untrained(1))
    twin = register(elsewhere(lab.untrained(1), tmp_path / "twin"), **{DIGEST_TAG: "2" * 64})
    assert (twin.version, twin.champion_version) == (2, 1)
    assert "it has the same weights; promote it with --force" in twin.reason
    assert "(attempt 1 against" in register(lab.untrained(2)).reason


def test_running_again_does_not_bring_back_a_rolled_back_model(lab: Lab, tracker: Tracker, register: Register) -> None:
    name = register(lab.untrained(1)).name
    register(lab.trained(1))
    assert champions.rollback(tracker, name, "customers complained").champion == 1
    for _ in range(2):
        again = register(lab.trained(1))
        assert (again.alias, again.champion_version) == ("challenger", 1)
        assert again.reason == "it was rolled back (customers complained); promote it with --force if that is over"
    assert actions(read(tracker.client, name))[-2:] == [("rolled back", 1, 1), ("kept", 2, 1)]
    # The command applies the rule.
    assert promote(lab, tracker, name, 2).champion == 2


def elsewhere(encoder: Path, folder: Path) -> Path:
    """The same weights with another configuration and card: what another pipeline run makes of them."""
    copy = Path(shutil.copytree(encoder, folder))
    config = json.loads((copy / "config.json").read_text(encoding="utf-8"))
    config["trial"]["train"]["eval_every"] = 7
    (copy / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (copy / "README.md").write_text("another card", encoding="utf-8")
    write_sums(copy)
    return copy


def test_rolled_back_weights_are_vetoed_under_another_version(
    lab: Lab, tracker: Tracker, register: Register, tmp_path: Path
) -> None:
    name = register(lab.untrained(1)).name
    assert register(lab.trained(1), **{DIGEST_TAG: "1" * 64}).champion_version == 2
    champions.rollback(tracker, name, "customers complained")
    tracker.client.delete_model_version(name, "2")
    again = register(elsewhere(lab.trained(1), tmp_path / "again"), **{DIGEST_TAG: "2" * 64})
    assert (again.version, again.alias, again.champion_version) == (3, "challenger", 1)
    assert again.reason == (
        "version 2, which has the same weights, was rolled back (customers complained); promote it with --force if that is over"
    )
    # Other weights are judged: the second attempt. A person's word counts more than the veto, and ends it.
    assert "(attempt 2 against this champion: 99.1667 % interval " in register(lab.untrained(2)).reason
    assert promote(lab, tracker, name, 3).champion == 3
    promote(lab, tracker, name, 1, "to see")
    back = register(elsewhere(lab.trained(1), tmp_path / "third"))
    assert (back.version, back.champion_version) == (3, 3)
    # Whatever the version is called, it is the first attempt that these weights make.
    assert "(attempt 1 against this champion: 97.5 % interval " in back.reason


def test_a_champion_that_cannot_be_scored_stays(lab: Lab, tracker: Tracker, register: Register, tmp_path: Path) -> None:
    silent = Path(shutil.copytree(lab.untrained(1), tmp_path / "silent"))
    config = json.loads((silent / "config.json").read_text(encoding="utf-8"))
    del config["trial"]
    (silent / "config.json").write_text(json.dumps(config), encoding="utf-8")
    write_sums(silent)
    name = register(silent).name
    second = register(lab.trained(1))
    assert (second.alias, second.champion_version) == ("challenger", 1)
    assert "cannot be compared with the champion, version 1: " in second.reason
    assert "does not say with what objective it was trained" in second.reason
    assert promote(lab, tracker, name, 2).champion == 1
    assert promote(lab, tracker, name, 2, "it cannot be scored").champion == 2


def test_models_with_other_tokenizers_are_compared(lab: Lab, register: Register, tmp_path: Path) -> None:
    """Another vocabulary and another length: its own tokens of the same pairs."""
    backbone = make_tiny_backbone(tmp_path / "other", ["A dog."], hidden=16)
    other = lab.params.model.encoder.model_copy(update={"backbone": str(backbone), "max_length": 20})
    register(lab.untrained(4, other))
    better = register(lab.trained(1))
    assert better.alias == "champion"
    assert better.decision is not None
    assert better.decision["differences"]["promotion"]["pr_auc"]["low"] > 0


def test_status_repairs_the_aliases(lab: Lab, tracker: Tracker, register: Register) -> None:
    name = register(lab.untrained(1)).name
    register(lab.untrained(2))
    tracker.client.delete_registered_model_alias(name, "champion")
    tracker.client.set_registered_model_alias(name, "challenger", "1")
    history, repaired, versions = champions.status(tracker, name)
    assert repaired == [
        "alias champion: version none → 1, by entry 2 of the history",
        "alias challenger: version 1 → 2, by entry 2 of the history",
    ]
    assert (history.champion, history.challenger, len(versions)) == (1, 2, 2)
    assert champions.status(tracker, name)[1] == []
    with pytest.raises(UserError, match="the registry has no version of a model 'nobody'"):
        champions.status(tracker, "nobody")


def test_a_long_history_is_read_once_for_a_change(
    lab: Lab, tracker: Tracker, register: Register, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = register(lab.untrained(1)).name
    register(lab.untrained(2))
    sizes: list[int] = []

    def counted(client: MlflowClient, where: str) -> list[ModelVersion]:
        found = [*all_versions(client, where)]
        sizes.append(len(found))
        return found

    monkeypatch.setattr("pipeline.registry.alias_log.all_versions", counted)

    def force(turn: int) -> History:
        return enter(tracker.client, name, lambda _: Change(action="promoted by force", version=turn % 2 + 1, reason=str(turn)))

    for turn in range(8):
        force(turn)
    before = read(tracker.client, name)
    for ask, more in ((lambda: force(8), 1), (lambda: champions.status(tracker, name)[0], 1)):
        sizes.clear()
        history = ask()
        # All entries once, and the new one.
        assert (max(sizes), sum(sizes)) == (len(history.events) - more * (history.last > before.last), len(history.events))
        before = history
    assert history == read(tracker.client, name)
    assert [event.reason for event in history.events[-9:]] == [str(turn) for turn in range(9)]


def test_deleted_versions_are_reported_and_block_nothing(lab: Lab, tracker: Tracker, register: Register) -> None:
    name = register(lab.untrained(1)).name
    register(lab.untrained(2))
    tracker.client.delete_model_version(name, "2")
    assert champions.status(tracker, name)[1] == [
        "alias challenger points to no version: the history says version 2, which was deleted"
    ]
    # The champion itself: the next version cannot be compared with it, and becomes champion only by force.
    tracker.client.delete_model_version(name, "1")
    new = register(lab.untrained(3))
    assert new.alias == "challenger"
    assert "cannot be compared with the champion, version 1" in new.reason
    assert promote(lab, tracker, name, new.version, "the other is gone").champion == new.version
    assert aliases(tracker, name) == {"champion": new.version}


def test_a_damaged_history_is_reported(lab: Lab, tracker: Tracker, register: Register) -> None:
    name = register(lab.untrained(1)).name
    entry: dict[str, Any] = json.loads(tracker.client.get_model_version(log_of(name), "1").tags["gausscse.event"])
    # As a later version of this package might write it, and as nothing of ours does.
    entry["change"]["later"] = 1
    for text in (json.dumps(entry), "{}"):
        tracker.client.set_model_version_tag(log_of(name), "1", "gausscse.event", text)
        with pytest.raises(UserError, match=r"^version 1 of '.*\.history' in the registry is not an entry of this history"):
            read(tracker.client, name)


def test_an_alias_that_no_history_explains_is_not_replaced(lab: Lab, tracker: Tracker, register: Register) -> None:
    name = register(lab.untrained(1)).name
    tracker.client.delete_registered_model(log_of(name))
    with pytest.raises(
        UserError, match=f"^{name}: version 1 has the alias champion, and no history says why; .* promote 1 --force"
    ):
        register(lab.untrained(2))
    assert aliases(tracker, name)["champion"] == 1
    promote(lab, tracker, name, 1, by_force="it serves well")
    assert register(lab.untrained(2)).champion_version == 1
    assert register(lab.trained(1)).alias == "champion"
