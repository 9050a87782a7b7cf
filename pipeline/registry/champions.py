"""Register versions, promote them by the rule or by force, roll back, compare."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient
from numpy.typing import NDArray

from pipeline.config.params import METRIC_NAMES, EvaluateParams, RegisterParams
from pipeline.data.schema import DEV, DEV_SETS, PROMOTION, PROMOTION_SETS
from pipeline.evaluation.bootstrap import Difference
from pipeline.models.model_dir import content_digest, weights_digest
from pipeline.registry.alias_log import CHALLENGER, CHAMPION, Change, History, enter, read, repair_aliases
from pipeline.registry.promotion import Judged, decide, differences, set_of
from pipeline.registry.versions import CONTENT_TAG, WEIGHTS_TAG, add_version, find_version, is_missing, quiet, same_version
from pipeline.tracking.server import Tracker, mlflow_errors
from pipeline.utils.atomic_io import SUMS, sha256_file
from pipeline.utils.errors import RunError, UserError


class Judging(Protocol):
    """The interface of `pipeline.registry.version_scorer.Judge`."""

    register: RegisterParams
    evaluate: EvaluateParams

    def __call__(self, version: ModelVersion) -> Judged: ...

    def weights(self, version: ModelVersion) -> str: ...

    def inputs(self) -> dict[str, Any]: ...

    def groups(self) -> Mapping[str, NDArray[Any]]: ...


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
    judge: Judging,
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
        raise UserError(f"{encoder_dir}: development {METRIC_NAMES[metric]} is {dev_score}: not registered")
    # The content digest tells whether it is the same model (it computes the same). The digest of all files is checked on loading.
    all_tags = {**tags, CONTENT_TAG: content_digest(encoder_dir), f"{DEV}_{metric}": repr(float(dev_score))}
    with mlflow_errors(tracker.uri), quiet():
        client = tracker.client
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
            rollback=f'gausscse registry rollback --to {number} --reason "…"' if number in _passed(history) else None,
        )


def promote(tracker: Tracker, name: str, number: int, judge: Judging, *, by_force: str | None = None) -> History:
    """Make a version champion if the rule says so, or if forced by the user.

    Args:
        by_force: the user's reason; if given, the rule is not applied.

    Raises:
        UserError: there is no such version, it is the champion already, or it cannot be scored.
    """
    with mlflow_errors(tracker.uri), quiet():
        client = tracker.client
        version = find_version(client, f"models:/{name}/{number}")
        adopt(client, name)

        def change(seen: History) -> Change | None:
            if seen.champion == number:
                raise UserError(f"{name} version {number} is the champion already")
            if by_force is None:
                return _by_the_rule(client, seen, version, judge, challenger=seen.challenger, again=True)
            return _promoted(seen, number, by_force, _weights(version, judge), forced=True)

        return enter(client, name, change)


def rollback(tracker: Tracker, name: str, reason: str, to: int | None = None) -> History:
    """Make the previous champion the champion again.

    Args:
        to: go on until this version is champion; each step is an entry of its own, so the rule brings none of them back.

    Raises:
        UserError: there was no previous champion, or its version is gone, or no rollback leads to version `to`, or another
            version became champion between two steps.
    """
    with mlflow_errors(tracker.uri), quiet():
        client = tracker.client
        adopt(client, name)
        passing: list[int] = []

        def change(seen: History) -> Change | None:
            earlier = seen.stack[:-1]
            if to is not None and seen.champion == to:
                # Another process went back to it between two steps.
                if passing:
                    return None
                raise UserError(f"{name}: version {to} is the champion already")
            if passing and seen.stack != passing[: len(seen.stack)]:
                raise UserError(
                    f"{name}: version {seen.champion} became champion meanwhile; look at the history, then run it again"
                )
            if not earlier:
                raise UserError(f"{name}: there is no earlier champion to go back to")
            if to is not None and to not in earlier:
                raise UserError(f"{name}: rollbacks lead to version {', '.join(map(str, earlier))}, not to version {to}")
            back = earlier[-1]
            if not passing:
                # The one that will be served must be there; those between need not.
                find_version(client, f"models:/{name}/{to or back}")
                passing.extend(seen.stack)
            challenger = None if seen.challenger == back else seen.challenger
            return Change(action="rolled back", version=back, champion=back, challenger=challenger, reason=reason)

        history = enter(client, name, change, source=to)
        while to is not None and history.champion != to:
            history = enter(client, name, change, source=to)
        return history


def _passed(history: History) -> set[int]:
    """The versions that rollbacks can make champion again."""
    return {*history.stack[:-1]} - {history.champion}


def compare(tracker: Tracker, name: str, old: int, new: int, judge: Judging) -> dict[str, dict[str, Difference]]:
    """Every metric of two versions on the same pairs, with the interval of new − old; the promotion part is left out.

    People sooner or later choose by the figures they see. So only the rule may use the promotion part.

    Raises:
        UserError: there is no such version, or one cannot be scored.
    """
    with mlflow_errors(tracker.uri), quiet():
        client = tracker.client
        first, second = (judge(find_version(client, f"models:/{name}/{number}")) for number in (old, new))
    shown = {set_name: groups for set_name, groups in judge.groups().items() if set_name not in PROMOTION_SETS}
    rule = judge.register
    return differences(first, second, shown, judge.evaluate, resamples=rule.resamples, confidence=rule.confidence)


def status(tracker: Tracker, name: str) -> tuple[History, list[str], list[ModelVersion]]:
    """The history, a line for each alias that had to be set right, and all versions.

    Raises:
        UserError: there is no such model.
    """
    with mlflow_errors(tracker.uri), quiet():
        client = tracker.client
        try:
            client.get_registered_model(name)
        except MlflowException as error:
            if not is_missing(error):
                raise
            raise UserError(f"the registry has no model {name!r}; `dvc repro` registers one") from None
        adopt(client, name)
        lines = repair_aliases(client, name)
        versions = sorted(client.search_model_versions(f"name = '{name}'"), key=lambda version: int(version.version))
        return read(client, name), lines, versions


def adopt(client: MlflowClient, name: str) -> None:
    """Start a history for a model that has a champion but no history: an old registration, or one made by hand."""
    if read(client, name).events:
        return
    aliases = client.get_registered_model(name).aliases
    if CHAMPION not in aliases:
        return
    champion = int(aliases[CHAMPION])
    challenger = int(aliases[CHALLENGER]) if CHALLENGER in aliases else None
    reason = "it was champion when the history began"
    adopted = Change(action="adopted", version=champion, champion=champion, challenger=challenger, reason=reason)
    enter(client, name, lambda history: None if history.events else adopted)


def _by_the_rule(
    client: MlflowClient, seen: History, version: ModelVersion, judge: Judging, *, challenger: int | None, again: bool = False
) -> Change | None:
    """Apply the rule to a version; None if nothing would change, unless the user asks for the rule `again`."""
    number, before = int(version.version), seen.of(int(version.version))
    if seen.champion == number:
        return None
    weights = _weights(version, judge)
    if seen.champion is None:
        return _promoted(seen, number, "there was no champion yet", weights)
    if not again and (veto := _veto(client, seen, version, weights, judge)) is not None:
        if before is not None and before.change.reason == veto:
            return None
        return Change(action="kept", version=number, champion=seen.champion, challenger=challenger, reason=veto, weights=weights)
    inputs = judge.inputs()
    decision: dict[str, Any] = {"champion": seen.champion, "candidate": number, "differences": {}, **inputs}
    promoted = False
    try:
        champion = find_version(client, f"models:/{seen.name}/{seen.champion}")
        pair = {"champion": judge.weights(champion), "candidate": judge.weights(version)}
        if pair["champion"] == pair["candidate"]:
            raise UserError("it has the same weights; promote it with --force if it should be served all the same")
        attempt, known = seen.attempt(seen.champion, pair, inputs)
        if known is not None and known.decision and known.action == "kept":
            reason, decision = known.reason, {**known.decision, "champion": seen.champion, "candidate": number}
        else:
            new, old = judge(version), judge(champion)
            groups = {set_name: groups for set_name, groups in judge.groups().items() if set_name not in DEV_SETS}
            ruled = decide(old, new, groups, judge.evaluate, judge.register, attempt=attempt)
            promoted, reason = ruled.promoted, ruled.reason
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
    except RunError:
        # It passes, and says nothing of the two models.
        raise
    except (UserError, ValueError) as error:
        if again:
            raise UserError(str(error)) from None
        reason = f"it cannot be compared with the champion, version {seen.champion}: {error}"
    if promoted:
        return _promoted(seen, number, reason, weights, decision=decision)
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


def _weights(version: ModelVersion, judge: Judging) -> str | None:
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


def _veto(client: MlflowClient, seen: History, version: ModelVersion, weights: str | None, judge: Judging) -> str | None:
    """Why the rule is not applied to a version: a rollback ended the last time its weights were champion. None otherwise.

    The user had a reason for the rollback that the rule does not see. Running the pipeline again, or registering the same weights
    as another version, does not change that reason.
    """
    if not any(event.change.action == "rolled back" for event in seen.events):
        return None

    def has_weights(number: int) -> bool:
        if number == int(version.version):
            return True
        try:
            known = _weights(find_version(client, f"models:/{seen.name}/{number}"), judge)
        except RunError:
            raise
        except UserError:  # It was deleted.
            known = None
        known = known or seen.weights_of(number)
        return weights is not None and weights == known

    champions = {event.previous for event in seen.events if event.previous is not None}
    same = {number for number in champions if has_weights(number)}
    last = next((event for event in reversed(seen.events) if event.previous in same), None)
    if last is None or last.change.action != "rolled back":
        return None
    which = "it was" if last.previous == int(version.version) else f"version {last.previous}, which has the same weights, was"
    return f"{which} rolled back ({last.change.reason}); promote it with --force if that is over"


def _promoted(
    seen: History,
    number: int,
    reason: str,
    weights: str | None,
    *,
    forced: bool = False,
    decision: Mapping[str, Any] | None = None,
) -> Change:
    return Change(
        action="promoted",
        version=number,
        champion=number,
        challenger=None if seen.challenger == number else seen.challenger,
        reason=reason,
        forced=forced,
        decision=decision,
        weights=weights,
    )


def _numbers(difference: Difference) -> dict[str, float | None]:
    return {key: value if math.isfinite(value) else None for key, value in asdict(difference).items()}
