"""What happens to versions: registered, promoted by the rule or by force, rolled back, compared."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient
from numpy.typing import NDArray

from pipeline.bootstrap import Difference
from pipeline.errors import UserError
from pipeline.files import SUMS, sha256_file
from pipeline.model_folder import content_digest
from pipeline.params import EvaluateParams, RegisterParams
from pipeline.promotion import DEV, Judged, decide, differences
from pipeline.registry.history import CHALLENGER, CHAMPION, Change, History, enter, mend, read
from pipeline.registry.versions import add_version, find_version, is_missing, quiet, same_version
from pipeline.tracking import Tracker, mlflow_errors


class Judging(Protocol):
    """What `pipeline.registry.judge.Judge` does."""

    register: RegisterParams
    evaluate: EvaluateParams

    def __call__(self, version: ModelVersion) -> Judged: ...

    def inputs(self) -> dict[str, Any]: ...

    def groups(self) -> Mapping[str, NDArray[Any]]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """What registering an encoder came to."""

    name: str
    version: int
    alias: str | None
    """`champion` or `challenger`; None for one that has neither any more."""
    champion_version: int
    """The champion now; `version` itself if it became or already was the champion."""
    reason: str
    """Why, one sentence."""
    model_uri: str
    """models:/NAME/VERSION, which stays true when the aliases move on."""
    dev_pr_auc: float
    """Of this version, in per cent."""
    previous_champion_pr_auc: float | None
    """Of the champion it was held against, on the same pairs; None if there was none, or none other than this version."""
    decision: Mapping[str, Any] | None
    """All that the rule looked at; None where there was nobody to hold it against."""


def register_model(
    tracker: Tracker,
    name: str,
    encoder_dir: Path,
    run_id: str,
    tags: Mapping[str, str],
    dev_pr_auc: float,
    judge: Judging,
) -> Registration:
    """Log an encoder as a version of a registered model and apply the rule of promotion to it.

    The first of a model is champion; a later one is challenger, and takes the champion's place if the rule says so. Called again
    for the same encoder and run (or pipeline digest), it makes no second version, and no second entry where nothing else changed.

    Args:
        tracker: where.
        name: of the registered model.
        encoder_dir: written by `GaussianEncoder.save_pretrained`.
        run_id: the run that made it.
        tags: further tags of the version.
        dev_pr_auc: PR-AUC on the development set, in per cent.
        judge: scores versions.

    Raises:
        UserError: the folder is damaged, the score is not finite, or MLflow refuses or cannot be reached.
    """
    if not math.isfinite(dev_pr_auc):
        raise UserError(f"{encoder_dir}: development PR-AUC is {dev_pr_auc}: not registered")
    # What it computes decides whether it is the same model; the digest of all its files is what is checked when it is loaded.
    content = content_digest(encoder_dir)
    digests = {"content_digest": content, "model_digest": sha256_file(encoder_dir / SUMS)}
    every = {**tags, **digests, "dev_pr_auc": repr(float(dev_pr_auc))}
    with mlflow_errors(tracker.uri), quiet():
        client = tracker.client
        version = same_version(client, name, run_id, every) or add_version(tracker, name, encoder_dir, run_id, every)
        number = int(version.version)
        adopt(client, name)
        history = enter(client, name, lambda seen: _by_the_rule(client, seen, version, judge, challenger=number))
        about = history.of(number)
        assert about is not None
        held = about.change.decision
        old = held["differences"][DEV]["pr_auc"]["old"] if held and held["differences"] else None
        aliases = {history.champion: CHAMPION, history.challenger: CHALLENGER}
        assert history.champion is not None
        return Registration(
            name=name,
            version=number,
            alias=aliases.get(number),
            champion_version=history.champion,
            reason=about.change.reason,
            model_uri=f"models:/{name}/{number}",
            dev_pr_auc=float(dev_pr_auc),
            previous_champion_pr_auc=old,
            decision=held,
        )


def promote(tracker: Tracker, name: str, number: int, judge: Judging, *, by_force: str | None = None) -> History:
    """Make a version champion, if the rule says so or somebody takes it upon himself.

    Args:
        by_force: the reason for which the rule is not asked.

    Raises:
        UserError: no such version, it is the champion already, or it cannot be scored.
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
            return _promoted(seen, number, by_force, forced=True)

        return enter(client, name, change)


def rollback(tracker: Tracker, name: str, reason: str) -> History:
    """Make the champion before this one champion again.

    Raises:
        UserError: there was none, or it is gone.
    """
    with mlflow_errors(tracker.uri), quiet():
        client = tracker.client
        adopt(client, name)

        def change(seen: History) -> Change:
            back = seen.before_champion
            if back is None:
                raise UserError(f"{name}: there is no champion before the present one to go back to")
            find_version(client, f"models:/{name}/{back}")
            challenger = None if seen.challenger == back else seen.challenger
            return Change(action="rolled back", version=back, champion=back, challenger=challenger, reason=reason)

        return enter(client, name, change)


def compare(tracker: Tracker, name: str, old: int, new: int, judge: Judging) -> dict[str, dict[str, Difference]]:
    """Every metric of two versions on the same pairs, with the interval of new − old.

    Raises:
        UserError: no such version, or one cannot be scored.
    """
    with mlflow_errors(tracker.uri), quiet():
        client = tracker.client
        first, second = (judge(find_version(client, f"models:/{name}/{number}")) for number in (old, new))
    return differences(first, second, judge.groups(), judge.evaluate, judge.register)


def status(tracker: Tracker, name: str) -> tuple[History, list[str], list[ModelVersion]]:
    """The history, what had to be set right, and every version.

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
        said = mend(client, name)
        versions = sorted(client.search_model_versions(f"name = '{name}'"), key=lambda version: int(version.version))
        return read(client, name), said, versions


def adopt(client: MlflowClient, name: str) -> None:
    """Begin the history of a model that has a champion and no history: it was registered before there was one, or by hand."""
    if read(client, name).events:
        return
    aliases = client.get_registered_model(name).aliases
    if CHAMPION not in aliases:
        return
    champion = int(aliases[CHAMPION])
    challenger = int(aliases[CHALLENGER]) if CHALLENGER in aliases else None
    reason = "it was champion when the history began"
    adopted = Change(action="adopted", version=champion, champion=champion, challenger=challenger, reason=reason)
    enter(client, name, lambda seen: None if seen.events else adopted)


def _by_the_rule(
    client: MlflowClient, seen: History, version: ModelVersion, judge: Judging, *, challenger: int | None, again: bool = False
) -> Change | None:
    """What the rule says of a version; None where it has said so before and nobody asks it `again`."""
    number, before = int(version.version), seen.of(int(version.version))
    if seen.champion is None:
        return _promoted(seen, number, "there was no champion yet")
    if seen.champion == number:
        return None
    taken = next((event for event in reversed(seen.events) if event.previous == number), None)
    if not again and taken is not None and taken.change.action == "rolled back":
        # Somebody had a reason that the rule does not see: a pipeline that runs once more does not know better.
        reason = f"it was rolled back ({taken.change.reason}); promote it by hand if that is over"
        if before is not None and before.change.reason == reason:
            return None
        return Change(action="kept", version=number, champion=seen.champion, challenger=challenger, reason=reason)
    decision: dict[str, Any] = {"champion": seen.champion, "candidate": number, "differences": {}, **judge.inputs()}
    try:
        new = judge(version)
        old = judge(find_version(client, f"models:/{seen.name}/{seen.champion}"))
        ruled = decide(old, new, judge.groups(), judge.evaluate, judge.register)
    except (UserError, ValueError) as error:
        if again:
            raise UserError(str(error)) from None
        promoted, reason = False, f"it cannot be held against the champion, version {seen.champion}: {error}"
    else:
        promoted, reason = ruled.promoted, ruled.reason
        decision["differences"] = {
            name: {key: _numbers(value) for key, value in d.items()} for name, d in ruled.differences.items()
        }
        decision["checks"] = [asdict(check) for check in ruled.checks]
        decision["models"] = {"champion": old.digest, "candidate": new.digest}
    if promoted:
        return _promoted(seen, number, reason, decision=decision)
    if before is not None and before.change.decision == decision and not again:
        return None
    return Change(action="kept", version=number, champion=seen.champion, challenger=challenger, reason=reason, decision=decision)


def _promoted(
    seen: History, number: int, reason: str, *, forced: bool = False, decision: Mapping[str, Any] | None = None
) -> Change:
    challenger = None if seen.challenger == number else seen.challenger
    return Change(
        action="promoted", version=number, champion=number, challenger=challenger, reason=reason, forced=forced, decision=decision
    )


def _numbers(difference: Difference) -> dict[str, float | None]:
    return {key: value if math.isfinite(value) else None for key, value in asdict(difference).items()}
