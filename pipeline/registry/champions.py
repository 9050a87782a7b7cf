"""Register versions, promote them by the rule or by force, roll back, compare."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlflow.entities.model_registry import ModelVersion
from mlflow.tracking import MlflowClient

from pipeline.data.schema import DEV
from pipeline.evaluation.bootstrap import Difference
from pipeline.families.family import deciding_metrics, dev_sets, promotion_sets
from pipeline.models.model_dir import content_digest, weights_digest
from pipeline.registry.alias_log import CHALLENGER, CHAMPION, Change, History, enter, read, repair_aliases
from pipeline.registry.promotion import decide, differences
from pipeline.registry.versions import CONTENT_TAG, WEIGHTS_TAG, add_version, all_versions, find_version, same_version, tag_of
from pipeline.tracking.server import Tracker
from pipeline.utils.errors import RunError, UserError

if TYPE_CHECKING:
    from pipeline.registry.version_scorer import VersionScorer


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
    """`register.metric`."""
    dev_score: float
    """Its value for this version on the selection part of the development set, in per cent."""
    decision: Mapping[str, Any] | None
    """Everything the rule looked at; None if there was no champion to compare with."""
    rollback: str | None
    """The command that makes this version champion again, if a newer champion took its place; None otherwise."""


def register_model(
    tracker: Tracker,
    name: str,
    encoder_dir: Path,
    run_id: str,
    tags: Mapping[str, str],
    dev_score: float,
    scorer: VersionScorer,
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
        scorer: scores versions.
        published: makes the folder to log, the encoder with further files that do not count in its content digest; it is
            called only if there is no version of the encoder yet. By default, `encoder_dir` is logged.

    Raises:
        UserError: the folder is damaged, the score is not finite, or MLflow refuses or cannot be reached.
    """
    metric = scorer.register.metric
    if not math.isfinite(dev_score):
        raise UserError(f"{encoder_dir}: development {deciding_metrics()[metric]} is {dev_score}: not registered")
    # The content digest tells whether it is the same model (it computes the same). The digest of all files is checked on loading.
    all_tags = {**tags, CONTENT_TAG: content_digest(encoder_dir), f"{DEV}_{metric}": repr(float(dev_score))}
    with tracker.calls() as client:
        version = same_version(client, name, run_id, all_tags)
        if version is None:
            with published() if published else nullcontext(encoder_dir) as folder:
                version = add_version(tracker, name, folder, run_id, {**all_tags, WEIGHTS_TAG: weights_digest(folder)})
        number = int(version.version)
        history = enter(client, name, lambda seen: _by_the_rule(client, seen, version, scorer))
        event = history.of(number)
        assert event is not None
        assert history.champion is not None
        aliases = {history.champion: CHAMPION, history.challenger: CHALLENGER}
        back = number != history.champion and number in history.stack
        return Registration(
            name=name,
            version=number,
            alias=aliases.get(number),
            champion_version=history.champion,
            reason=event.reason,
            model_uri=f"models:/{name}/{number}",
            metric=metric,
            dev_score=float(dev_score),
            decision=event.decision,
            rollback=f'gausscse registry rollback --to {number} --reason "…"' if back else None,
        )


def promote(tracker: Tracker, name: str, number: int, scorer: VersionScorer, *, by_force: str | None = None) -> History:
    """Make a version champion if the rule says so, or if forced by the user.

    Args:
        by_force: the user's reason; if given, the rule is not applied.

    Raises:
        UserError: the version does not exist, or is the champion already.
    """
    with tracker.calls() as client:
        version = find_version(client, f"models:/{name}/{number}")

        def change(seen: History) -> Change | None:
            if seen.champion == number:
                raise UserError(f"{name} version {number} is the champion already")
            if by_force is None:
                return _by_the_rule(client, seen, version, scorer, again=True)
            return Change(action="promoted by force", version=number, reason=by_force, weights=tag_of(version, WEIGHTS_TAG))

        return enter(client, name, change)


def rollback(tracker: Tracker, name: str, reason: str, to: int | None = None) -> History:
    """Make the previous champion the champion again.

    Args:
        to: the earlier champion to go back to. The rule brings back neither the champion nor those that are passed over.

    Raises:
        UserError: there was no previous champion, or its version is gone, or no rollback leads to version `to`.
    """
    with tracker.calls() as client:

        def change(seen: History) -> Change:
            earlier = seen.stack[:-1]
            if not earlier:
                raise UserError(f"{name}: there is no earlier champion to go back to")
            back = earlier[-1] if to is None else to
            if back not in earlier:
                raise UserError(f"{name}: rollbacks lead to version {', '.join(map(str, earlier))}, not to version {to}")
            find_version(client, f"models:/{name}/{back}")
            return Change(action="rolled back", version=back, reason=reason)

        return enter(client, name, change)


def compare(tracker: Tracker, name: str, old: int, new: int, scorer: VersionScorer) -> dict[str, dict[str, Difference]]:
    """Every metric of two versions on the same pairs, with the interval of new − old; the promotion part is left out.

    People sooner or later choose by the figures they see. So only the rule may use the promotion part.

    Raises:
        UserError: there is no such version, or one cannot be scored.
    """
    with tracker.calls() as client:
        first, second = (scorer(find_version(client, f"models:/{name}/{number}")) for number in (old, new))
    shown = {set_name: groups for set_name, groups in scorer.groups().items() if set_name not in promotion_sets()}
    rule = scorer.register
    return differences(first, second, shown, scorer.evaluate, resamples=rule.resamples, confidence=rule.confidence)


def status(tracker: Tracker, name: str) -> tuple[History, list[str], list[ModelVersion]]:
    """The history, a line for each alias that had to be set right, and all versions.

    Raises:
        UserError: there is no such model.
    """
    with tracker.calls() as client:
        history = read(client, name)
        lines, versions = repair_aliases(client, name, history), [*all_versions(client, f"name = '{name}'")]
        if not versions:
            raise UserError(f"the registry has no version of a model {name!r}; `dvc repro` registers one")
        return read(client, name, history), lines, versions


def _by_the_rule(
    client: MlflowClient, seen: History, version: ModelVersion, scorer: VersionScorer, *, again: bool = False
) -> Change | None:
    """Apply the rule to a version; None if nothing would change, unless the user asks for the rule `again`."""
    number, weights, before = int(version.version), tag_of(version, WEIGHTS_TAG), seen.of(int(version.version))
    if seen.champion == number:
        return None
    if seen.champion is None:
        if held := client.get_registered_model(seen.name).aliases.get(CHAMPION):
            raise UserError(
                f"{seen.name}: version {held} has the alias {CHAMPION}, and no history says why; delete the alias, or keep that "
                f'version by `gausscse registry promote {held} --force --reason "…"`'
            )
        return Change(action="promoted", version=number, reason="there was no champion yet", weights=weights)
    promoted, decision = False, None
    reason = None if again else _veto(seen, number, weights)
    if reason is None:
        promoted, reason, decision = _judged(client, seen, seen.champion, version, scorer)
    if not (promoted or again) and before is not None and (before.decision, before.reason) == (decision, reason):
        return None
    action = "promoted" if promoted else "kept"
    return Change(action=action, version=number, reason=reason, weights=weights, decision=decision)


def _judged(
    client: MlflowClient, seen: History, champion: int, version: ModelVersion, scorer: VersionScorer
) -> tuple[bool, str, dict[str, Any]]:
    """Compare a version with the champion: whether the rule promotes it, why, and everything that the rule looked at.

    Raises:
        RunError: they cannot be compared now.
    """
    inputs, numbers = scorer.inputs(), {"champion": champion, "candidate": int(version.version)}
    decision: dict[str, Any] = {**numbers, "differences": {}, **inputs}
    try:
        holder = find_version(client, f"models:/{seen.name}/{champion}")
        weights = {"champion": tag_of(holder, WEIGHTS_TAG), "candidate": tag_of(version, WEIGHTS_TAG)}
        if weights["champion"] == weights["candidate"]:
            raise UserError("it has the same weights; promote it with --force if it should be served all the same")
        attempt, known = seen.attempt(weights, inputs)
        if known is not None and known.decision and known.action == "kept":
            return False, known.reason, {**known.decision, **numbers}
        new, old = scorer(version), scorer(holder)
        groups = {set_name: groups for set_name, groups in scorer.groups().items() if set_name not in dev_sets()}
        ruled = decide(old, new, groups, scorer.evaluate, scorer.register, attempt=attempt)
    except RunError:
        # It passes, and says nothing of the two models.
        raise
    except (UserError, ValueError) as error:
        return False, f"it cannot be compared with the champion, version {champion}: {error}", decision
    decision |= {
        "differences": {
            name: {key: _numbers(value) for key, value in found.items()} for name, found in ruled.differences.items()
        },
        "checks": [asdict(check) for check in ruled.checks],
        "weights": weights,
        "attempt": attempt,
        "warning": ruled.warning,
    }
    return ruled.promoted, ruled.reason, decision


def _veto(seen: History, number: int, weights: str) -> str | None:
    """Why the rule is not applied to a version: a rollback ended the last time its weights were champion. None otherwise.

    The user had a reason for the rollback that the rule does not see. Running the pipeline again, or registering the same weights
    as another version, does not change that reason.
    """
    if weights not in seen.rolled_back:
        return None
    same, rollback = seen.rolled_back[weights]
    which = "it was" if same == number else f"version {same}, which has the same weights, was"
    return f"{which} rolled back ({rollback.reason}); promote it with --force if that is over"


def _numbers(difference: Difference) -> dict[str, float | None]:
    return {key: value if math.isfinite(value) else None for key, value in asdict(difference).items()}
