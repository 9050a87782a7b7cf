"""Who becomes champion, on a real MLflow (sqlite) with models that are really scored."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from pipeline.models.encoder import GaussianEncoder
from pipeline.registry import Registration, champions, promotion
from pipeline.registry.alias_log import History, log_of, read
from pipeline.registry.version_scorer import Judge
from pipeline.registry.versions import WEIGHTS_TAG
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
    return [(event.change.action, event.change.version, event.change.champion) for event in history.events]


def test_the_rule_promotes_a_better_model(lab: Lab, tracker: Tracker, register: Register) -> None:
    first = register(lab.untrained(1))
    assert (first.version, first.alias, first.champion_version) == (1, "champion", 1)
    assert (first.reason, first.decision, first.previous_champion_score) == ("there was no champion yet", None, None)
    assert aliases(tracker, first.name) == {"champion": 1}

    like = register(lab.untrained(2))
    assert (like.version, like.alias, like.champion_version) == (2, "challenger", 1)
    assert "is not significantly above register.min_gain 0" in like.reason
    assert aliases(tracker, first.name) == {"champion": 1, "challenger": 2}

    better = register(lab.trained(1))
    assert (better.version, better.alias, better.champion_version) == (3, "champion", 3)
    assert aliases(tracker, first.name) == {"champion": 3, "challenger": 2}
    decision = better.decision
    assert decision is not None
    gain = decision["differences"]["promotion"]["pr_auc"]
    assert gain["low"] > 0
    assert better.previous_champion_score == gain["old"] < gain["new"]
    # The history keeps everything that the decision depends on.
    assert {"pairs", "scorer", "evaluate", "register"} <= set(decision)
    assert decision["models"]["candidate"] == tracker.client.get_model_version(first.name, "3").tags["model_digest"]
    assert [check["name"] for check in decision["checks"]] == [
        "promotion.pr_auc",
        "promotion.direction.score",
        "generated_test.pr_auc",
    ]

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
    with lab.judge(tracker) as judge:
        found = champions.compare(tracker, name, 1, 2, judge)
        back = champions.compare(tracker, name, 2, 1, judge)
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
    with lab.judge(tracker) as judge:
        refused = champions.promote(tracker, name, 2, judge)
        assert actions(refused)[-1] == ("kept", 2, 1)
        # Looking at an older one makes it no challenger.
        assert aliases(tracker, name) == {"champion": 1, "challenger": 3}
        forced = champions.promote(tracker, name, 2, judge, by_force="for the demonstration")
        assert actions(forced)[-1] == ("promoted", 2, 2)
        assert (forced.events[-1].change.forced, forced.events[-1].change.reason) == (True, "for the demonstration")
        champions.promote(tracker, name, 3, judge, by_force="and another")
        assert aliases(tracker, name) == {"champion": 3}
        with pytest.raises(UserError, match="version 3 is the champion already"):
            champions.promote(tracker, name, 3, judge)
        with pytest.raises(UserError, match="has no version 9 of a model"):
            champions.promote(tracker, name, 9, judge)
    assert champions.rollback(tracker, name, "it was worse").champion == 2
    assert champions.rollback(tracker, name, "so was this").champion == 1
    assert aliases(tracker, name) == {"champion": 1}
    with pytest.raises(UserError, match="no earlier champion"):
        champions.rollback(tracker, name, "once more")
    # A promotion after a rollback can be taken back too, to where the rollback had come.
    with lab.judge(tracker) as judge:
        champions.promote(tracker, name, 3, judge, by_force="after all")
    history = champions.rollback(tracker, name, "no")
    assert history.champion == 1
    for before, after in zip(history.events, history.events[1:], strict=False):
        assert after.previous == before.change.champion


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
    assert [event.change.reason.count("attempt 1 ") for event in read(tracker.client, name).events] == [0, 1, 0, 1]


def test_a_rollback_goes_to_an_earlier_champion_by_its_number(lab: Lab, tracker: Tracker, register: Register) -> None:
    name = register(lab.untrained(1)).name
    for seed in (2, 3):
        register(lab.untrained(seed))
        with lab.judge(tracker) as judge:
            champions.promote(tracker, name, seed, judge, by_force="to see")
    back = register(lab.untrained(1))
    assert (back.alias, back.champion_version) == ("challenger", 3)
    assert back.rollback == 'gausscse registry rollback --to 1 --reason "…"'
    with pytest.raises(UserError, match="rollbacks lead to version 1, 2, not to version 4"):
        champions.rollback(tracker, name, "no", to=4)
    with pytest.raises(UserError, match="version 3 is the champion already"):
        champions.rollback(tracker, name, "no", to=3)
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
    assert ("was rolled back (reverted)" in vetoed.reason, vetoed.rollback) == (True, None)


def test_a_store_that_does_not_answer_decides_nothing(
    lab: Lab, tracker: Tracker, register: Register, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = register(lab.untrained(1)).name
    before = actions(read(tracker.client, name))
    monkeypatch.setattr(Judge, "__call__", lambda _, version: raised(TransientStorageError(f"{version.version}: 503")))
    with pytest.raises(TransientStorageError):
        register(lab.untrained(2))
    assert actions(read(tracker.client, name)) == before
    monkeypatch.undo()
    assert "(attempt 1 against" in register(lab.untrained(2)).reason
    # Nor is a veto passed.
    with lab.judge(tracker) as judge:
        champions.promote(tracker, name, 2, judge, by_force="to see")
    champions.rollback(tracker, name, "bad")
    monkeypatch.setattr(Judge, "weights", lambda _, version: raised(TransientStorageError(f"{version.version}: 503")))
    with pytest.raises(TransientStorageError):
        register(lab.untrained(2))


def raised(error: Exception) -> NoReturn:
    raise error


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
    # By hand, and by the rule.
    with lab.judge(tracker) as judge:
        assert champions.promote(tracker, name, 2, judge).champion == 2


def elsewhere(encoder: Path, folder: Path) -> Path:
    """The same weights with another configuration and card: what another pipeline run makes of them."""
    copy = Path(shutil.copytree(encoder, folder))
    config = json.loads((copy / "config.json").read_text(encoding="utf-8"))
    config["trial"]["train"]["eval_every"] = 7
    (copy / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (copy / "README.md").write_text("another card", encoding="utf-8")
    write_sums(copy)
    return copy


@pytest.mark.parametrize("rolled_back", ["kept", "deleted", "of old"])
def test_rolled_back_weights_are_vetoed_under_another_version(
    lab: Lab, tracker: Tracker, run_id: str, tmp_path: Path, rolled_back: str
) -> None:
    """`of old`: from before versions had a digest of the weights."""
    name = f"weights-{rolled_back}"

    def register(encoder: Path, **tags: str) -> Registration:
        return lab.register(tracker, name, encoder, run_id, 50.0, **tags)

    register(lab.untrained(1))
    assert register(lab.trained(1), **{DIGEST_TAG: "1" * 64}).champion_version == 2
    champions.rollback(tracker, name, "customers complained")
    if rolled_back == "deleted":
        tracker.client.delete_model_version(name, "2")
    elif rolled_back == "of old":
        for number in ("1", "2"):
            tracker.client.delete_model_version_tag(name, number, WEIGHTS_TAG)
    again = register(elsewhere(lab.trained(1), tmp_path / "again"), **{DIGEST_TAG: "2" * 64})
    assert (again.version, again.alias, again.champion_version) == (3, "challenger", 1)
    assert again.reason == (
        "version 2, which has the same weights, was rolled back (customers complained); promote it with --force if that is over"
    )
    if rolled_back != "kept":
        return
    # Other weights are judged: the second attempt. A person's word counts more than the veto, and ends it.
    assert "(attempt 2 against this champion: 99.1667 % interval " in register(lab.untrained(2)).reason
    with lab.judge(tracker) as judge:
        assert champions.promote(tracker, name, 3, judge).champion == 3
        champions.promote(tracker, name, 1, judge, by_force="to see")
    back = register(elsewhere(lab.trained(1), tmp_path / "third"))
    assert (back.version, back.champion_version) == (3, 3)
    # Whatever the version is called, it is the first attempt that these weights make.
    assert "(attempt 1 against this champion: 97.5 % interval " in back.reason


def test_a_small_promotion_part_is_one_line_of_warning(lab: Lab, register: Register, monkeypatch: pytest.MonkeyPatch) -> None:
    register(lab.untrained(1))
    warning = register(lab.untrained(2)).warning
    assert warning is not None
    assert re.match(r"the promotion part \(\d+ pairs\) is too small to detect a gain of 2 points: .* 80 % .*$", warning)
    monkeypatch.setattr(promotion, "FINDABLE", 100.0)
    assert register(lab.untrained(3)).warning is None


def test_a_champion_without_a_history_is_adopted(lab: Lab, tracker: Tracker, register: Register) -> None:
    name = register(lab.untrained(1)).name
    register(lab.untrained(2))
    tracker.client.delete_registered_model(log_of(name))
    register(lab.untrained(3))
    assert actions(read(tracker.client, name)) == [("adopted", 1, 1), ("kept", 3, 1)]
    assert aliases(tracker, name) == {"champion": 1, "challenger": 3}


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
    with lab.judge(tracker) as judge:
        with pytest.raises(UserError, match="does not say with what objective"):
            champions.promote(tracker, name, 2, judge)
        assert champions.promote(tracker, name, 2, judge, by_force="it cannot be scored").champion == 2


def test_models_with_other_tokenizers_are_compared(lab: Lab, tracker: Tracker, register: Register, tmp_path: Path) -> None:
    """Another vocabulary and another length: its own tokens of the same pairs."""
    backbone = make_tiny_backbone(tmp_path / "other", ["A dog."], hidden=16)
    other = lab.params.model.encoder.model_copy(update={"backbone": str(backbone), "max_length": 20})
    assert GaussianEncoder.from_pretrained(lab.untrained(4, other)).dim == 16
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
        "alias champion pointed to no version; set to version 1 by entry 2 of the history",
        "alias challenger pointed to version 1; set to version 2 by entry 2 of the history",
    ]
    assert (history.champion, history.challenger, len(versions)) == (1, 2, 2)
    assert champions.status(tracker, name)[1] == []
    with pytest.raises(UserError, match="the registry has no model 'nobody'"):
        champions.status(tracker, "nobody")


def test_deleted_versions_are_reported_and_block_nothing(lab: Lab, tracker: Tracker, register: Register) -> None:
    name = register(lab.untrained(1)).name
    register(lab.untrained(2))
    register(lab.untrained(3))
    tracker.client.delete_model_version(name, "3")
    _, said, versions = champions.status(tracker, name)
    assert said == ["alias challenger points to no version: the history says version 3, which was deleted"]
    assert {int(version.version) for version in versions} == {1, 2}
    with lab.judge(tracker) as judge:
        assert champions.promote(tracker, name, 2, judge, by_force="there it is").champion == 2
    assert champions.rollback(tracker, name, "back").champion == 1
    assert aliases(tracker, name) == {"champion": 1}
    # The champion itself: the next version cannot be compared with it, and becomes champion only by force.
    tracker.client.delete_model_version(name, "1")
    assert champions.status(tracker, name)[1] == [
        "alias champion points to no version: the history says version 1, which was deleted",
        "alias challenger points to no version: the history says version 3, which was deleted",
    ]
    new = register(lab.untrained(4))
    assert new.alias == "challenger"
    assert "cannot be compared with the champion, version 1" in new.reason
    with lab.judge(tracker) as judge:
        assert champions.promote(tracker, name, new.version, judge, by_force="the other is gone").champion == new.version
    assert aliases(tracker, name) == {"champion": new.version}


def test_a_damaged_history_is_reported(lab: Lab, tracker: Tracker, register: Register) -> None:
    name = register(lab.untrained(1)).name
    version: Any = tracker.client.get_model_version(name, "1")
    tracker.client.create_model_version(log_of(name), version.source, version.run_id, model_id=version.model_id)
    with pytest.raises(
        UserError, match=r"version 2 of '.*\.history' in the registry is not an entry of this history; delete that version"
    ):
        read(tracker.client, name)
    tracker.client.delete_model_version(log_of(name), "2")
    entry = json.loads(tracker.client.get_model_version(log_of(name), "1").tags["gausscse.event"])
    entry["change"]["later"] = 1
    tracker.client.set_model_version_tag(log_of(name), "1", "gausscse.event", json.dumps(entry))
    with pytest.raises(UserError, match=r"^entry 1 of the registry's history was written by a newer version"):
        read(tracker.client, name)
