"""Register versions, promote them by the rule or by force, roll back, compare."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from pipeline.data.schema import DEV, PROMOTION
from pipeline.evaluation.bootstrap import Difference
from pipeline.families.family import deciding_metrics, dev_sets, promotion_sets
from pipeline.models.model_dir import content_digest, weights_digest
from pipeline.registry.alias_log import CHALLENGER, CHAMPION, Change, History, enter, read, repair_aliases
from pipeline.registry.promotion import decide, differences, set_of
from pipeline.registry.versions import (
    CONTENT_TAG,
    WEIGHTS_TAG,
    NoSuchVersion,
    add_version,
    all_versions,
    find_version,
    is_missing,
    quiet,
    same_version,
)
from pipeline.tracking.server import Tracker
from pipeline.utils.atomic_io import SUMS, sha256_file
from pipeline.utils.errors import RunError, UserError

if TYPE_CHECKING:
    from pipeline.registry.version_scorer import Judge


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """The result of registering an encoder."""

    name: str
    version: int
    alias: str | None
    """`champion` or `challenger`; None if the version has neither alias any more."""
    champion_version: int
    """The champion now; equals `version` if that is the champion."""
    reason: str
    """Why, in one sentence."""
    model_uri: str
    """models:/NAME/VERSION, which stays valid when the aliases move."""
    metric: str
    """`register.metric`, in which the next two are given, in per cent."""
    dev_score: float
    """Of this version, on the selection part of the development set."""
    previous_champion_score: float | None
    """On the promotion part, of the champion it was compared with; None if there was no other champion."""
    decision: Mapping[str, Any] | None
    """Everything the rule looked at; None if there was no champion to compare with."""
    warning: str | None
    """One line if the promotion part is too small to find a gain worth having."""
    rollback: str | None
    """The command that makes this version champion again, if a newer champion took its place; None otherwise."""


def register_model(
    tracker: Tracker,
    name: str,
    encoder_dir: Path,
    run_id: str,
    tags: Mapping[str, str],
    dev_score: float,
    judge: Judge,
    published: Callable[[], AbstractContextManager[Path]] | None = None,
) -> Registration:
    """Log an encoder as a version of a registered model and apply the promotion rule to it.

    The first version of a model becomes champion. A later one becomes challenger, or champion if the rule says so. A second call
    for the same encoder and run (or pipeline digest) adds no second version, and no second history entry if nothing else changed.

    Args:
        tracker: the MLflow server and experiment.
        name: name of the registered model.
        encoder_dir: folder written by `GaussianEncoder.save_pretrained`.
        run_id: the run that made the encoder.
        tags: further tags of the version.
        dev_score: `register.metric` on the selection part of the development set, in per cent.
        judge: scores versions.
        published: makes the folder to log, the encoder with further files that do not count in its content digest; it is
            called only if there is no version of the encoder yet. By default, `encoder_dir` is logged.

    Raises:
        UserError: the folder is damaged, the score is not finite, or MLflow refuses or cannot be reached.
    """
    metric = judge.register.metric
    if not math.isfinite(dev_score):
        raise UserError(f"{encoder_dir}: development {deciding_metrics()[metric]} is {dev_score}: not registered")
    # The content digest tells whether it is the same model (it computes the same). The digest of all files is checked on loading.
    all_tags = {**tags, CONTENT_TAG: content_digest(encoder_dir), f"{DEV}_{metric}": repr(float(dev_score))}
    with tracker.calls() as client, quiet():
        version = same_version(client, name, run_id, all_tags)
        if version is None:
            with published() if published else nullcontext(encoder_dir) as folder:
                all_tags |= {"model_digest": sha256_file(folder / SUMS), WEIGHTS_TAG: weights_digest(folder)}
                version = add_version(tracker, name, folder, run_id, all_tags)
        number = int(version.version)
        adopt(client, name)
        history = enter(client, name, lambda seen: _by_the_rule(client, seen, version, judge, challenger=number))
        event = history.of(number)
        assert event is not None
        decision = event.change.decision
        found = decision["differences"].get(set_of(metric, PROMOTION), {}) if decision else {}
        aliases = {history.champion: CHAMPION, history.challenger: CHALLENGER}
        assert history.champion is not None
        back = number != history.champion and number in history.stack
        return Registration(
            name=name,
            version=number,
            alias=aliases.get(number),
            champion_version=history.champion,
            reason=event.change.reason,
            model_uri=f"models:/{name}/{number}",
            metric=metric,
            dev_score=float(dev_score),
            previous_champion_score=found[metric]["old"] if metric in found else None,
            decision=decision,
            warning=decision.get("warning") if decision else None,
            rollback=f'gausscse registry rollback --to {number} --reason "…"' if back else None,
        )


def promote(tracker: Tracker, name: str, number: int, judge: Judge, *, by_force: str | None = None) -> History:
    """Make a version champion if the rule says so, or if forced by the user.

    Args:
        by_force: the user's reason; if given, the rule is not applied.

    Raises:
        UserError: there is no such version, it is the champion already, or it cannot be scored.
    """
    with tracker.calls() as client, quiet():
        version = find_version(client, f"models:/{name}/{number}")
        adopt(client, name)

        def change(seen: History) -> Change | None:
            if seen.champion == number:
                raise UserError(f"{name} version {number} is the champion already")
            if by_force is None:
                return _by_the_rule(client, seen, version, judge, challenger=seen.challenger, again=True)
            return seen.with_champion("promoted", number, by_force, weights=_weights(version, judge), forced=True)

        return enter(client, name, change)


def rollback(tracker: Tracker, name: str, reason: str, to: int | None = None) -> History:
    """Make the previous champion the champion again.

    Args:
        to: the earlier champion to go back to. The rule brings back neither the champion nor those that are passed over.

    Raises:
        UserError: there was no previous champion, or its version is gone, or no rollback leads to version `to`.
    """
    with tracker.calls() as client, quiet():
        adopt(client, name)

        def change(seen: History) -> Change:
            earlier = seen.stack[:-1]
            if to is not None and seen.champion == to:
                raise UserError(f"{name}: version {to} is the champion already")
            if not earlier:
                raise UserError(f"{name}: there is no earlier champion to go back to")
            if to is not None and to not in earlier:
                raise UserError(f"{name}: rollbacks lead to version {', '.join(map(str, earlier))}, not to version {to}")
            back = earlier[-1] if to is None else to
            find_version(client, f"models:/{name}/{back}")
            return seen.with_champion("rolled back", back, reason)

        return enter(client, name, change)


def compare(tracker: Tracker, name: str, old: int, new: int, judge: Judge) -> dict[str, dict[str, Difference]]:
    """Every metric of two versions on the same pairs, with the interval of new − old; the promotion part is left out.

    People sooner or later choose by the figures they see. So only the rule may use the promotion part.

    Raises:
        UserError: there is no such version, or one cannot be scored.
    """
    with tracker.calls() as client, quiet():
        first, second = (judge(find_version(client, f"models:/{name}/{number}")) for number in (old, new))
    shown = {set_name: groups for set_name, groups in judge.groups().items() if set_name not in promotion_sets()}
    rule = judge.register
    return differences(first, second, shown, judge.evaluate, resamples=rule.resamples, confidence=rule.confidence)


def status(tracker: Tracker, name: str) -> tuple[History, list[str], list[ModelVersion]]:
    """The history, a line for each alias that had to be set right, and all versions.

    Raises:
        UserError: there is no such model.
    """
    with tracker.calls() as client, quiet():
        adopt(client, name)
        lines = repair_aliases(client, name)
        versions = sorted(all_versions(client, f"name = '{name}'"), key=lambda version: int(version.version))
        return read(client, name), lines, versions


def adopt(client: MlflowClient, name: str) -> None:
    """Start a history for a model that has a champion but no history: an old registration, or one made by hand.

    Raises:
        UserError: there is no such model.
    """
    try:
        found: dict[str, str] = client.get_registered_model(name).aliases
    except MlflowException as error:
        if not is_missing(error):
            raise
        raise UserError(f"the registry has no model {name!r}; `dvc repro` registers one") from None
    aliases = {alias: int(version) for alias, version in found.items()}
    if CHAMPION not in aliases or read(client, name).events:
        return
    champion, reason = aliases[CHAMPION], "it was champion when the history began"
    adopted = Change(action="adopted", version=champion, champion=champion, challenger=aliases.get(CHALLENGER), reason=reason)
    enter(client, name, lambda history: None if history.events else adopted)


def _by_the_rule(
    client: MlflowClient, seen: History, version: ModelVersion, judge: Judge, *, challenger: int | None, again: bool = False
) -> Change | None:
    """Apply the rule to a version; None if nothing would change, unless the user asks for the rule `again`."""
    number, before = int(version.version), seen.of(int(version.version))
    if seen.champion == number:
        return None
    weights = _weights(version, judge)
    if seen.champion is None:
        return seen.with_champion("promoted", number, "there was no champion yet", weights=weights)
    promoted, decision = False, None
    reason = None if again else _veto(client, seen, version, weights, judge)
    if reason is None:
        promoted, reason, decision = _judged(client, seen, seen.champion, version, judge, strict=again)
    if promoted:
        return seen.with_champion("promoted", number, reason, weights=weights, decision=decision)
    if before is not None and (before.change.decision, before.change.reason) == (decision, reason) and not again:
        return None
    return Change(
        action="kept",
        version=number,
        champion=seen.champion,
        challenger=challenger,
        reason=reason,
        decision=decision,
        weights=weights,
    )


def _judged(
    client: MlflowClient, seen: History, champion: int, version: ModelVersion, judge: Judge, *, strict: bool
) -> tuple[bool, str, dict[str, Any]]:
    """Compare a version with the champion: whether the rule promotes it, why, and everything that the rule looked at.

    Raises:
        UserError: they cannot be compared now, or, if `strict`, not at all.
    """
    inputs, numbers = judge.inputs(), {"champion": champion, "candidate": int(version.version)}
    decision: dict[str, Any] = {**numbers, "differences": {}, **inputs}
    try:
        holder = find_version(client, f"models:/{seen.name}/{champion}")
        pair = {"champion": judge.weights(holder), "candidate": judge.weights(version)}
        if pair["champion"] == pair["candidate"]:
            raise UserError("it has the same weights; promote it with --force if it should be served all the same")
        attempt, known = seen.attempt(champion, pair, inputs)
        if known is not None and known.decision and known.action == "kept":
            return False, known.reason, {**known.decision, **numbers}
        new, old = judge(version), judge(holder)
        groups = {set_name: groups for set_name, groups in judge.groups().items() if set_name not in dev_sets()}
        ruled = decide(old, new, groups, judge.evaluate, judge.register, attempt=attempt)
    except RunError:
        # It passes, and says nothing of the two models.
        raise
    except (UserError, ValueError) as error:
        if strict:
            raise UserError(str(error)) from None
        return False, f"it cannot be compared with the champion, version {champion}: {error}", decision
    decision |= {
        "differences": {
            name: {key: _numbers(value) for key, value in found.items()} for name, found in ruled.differences.items()
        },
        "checks": [asdict(check) for check in ruled.checks],
        "models": {"champion": old.digest, "candidate": new.digest},
        "weights": pair,
        "attempt": attempt,
        "warning": ruled.warning,
    }
    return ruled.promoted, ruled.reason, decision


def _weights(version: ModelVersion, judge: Judge) -> str | None:
    """The digest of a version's weights; None if its files are damaged or missing.

    Raises:
        RunError: they cannot be read now. Without them, a veto would be passed.
    """
    try:
        return judge.weights(version)
    except RunError:
        raise
    except UserError:
        return None


def _veto(client: MlflowClient, seen: History, version: ModelVersion, weights: str | None, judge: Judge) -> str | None:
    """Why the rule is not applied to a version: a rollback ended the last time its weights were champion. None otherwise.

    The user had a reason for the rollback that the rule does not see. Running the pipeline again, or registering the same weights
    as another version, does not change that reason.
    """

    def has_weights(number: int) -> bool:
        if weights is None or weights == seen.weights_of(number):
            return weights is not None
        with suppress(NoSuchVersion):
            return weights == _weights(find_version(client, f"models:/{seen.name}/{number}"), judge)
        return False

    if not any(change.action == "rolled back" for _, change in seen.ended) or (seen.champion and has_weights(seen.champion)):
        return None
    for number, change in reversed(seen.ended):
        own = number == int(version.version)
        if own or has_weights(number):
            if change.action != "rolled back":
                return None
            which = "it was" if own else f"version {number}, which has the same weights, was"
            return f"{which} rolled back ({change.reason}); promote it with --force if that is over"
    return None


def _numbers(difference: Difference) -> dict[str, float | None]:
    return {key: value if math.isfinite(value) else None for key, value in asdict(difference).items()}
