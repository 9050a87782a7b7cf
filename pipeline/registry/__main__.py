"""`python -m pipeline.registry status|promote|rollback|compare|history|serve`, from the project root."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.check import load_project
from pipeline.errors import UserError, run_stage
from pipeline.places import Places
from pipeline.registry import champions
from pipeline.registry.history import Event, History, read
from pipeline.registry.loading import serve
from pipeline.tracking import Tracker, mlflow_errors, open_tracker

if TYPE_CHECKING:
    from pipeline.registry.judge import Judge


def main() -> None:
    """One command of the registry."""
    asked = _parser().parse_args()
    root = Path.cwd()
    if asked.command == "serve":
        raise SystemExit(serve(asked.model, asked.options))
    params, execution = load_project()
    name = params.register_.name
    tracker = open_tracker(execution.tracking, root)

    @contextmanager
    def judge() -> Iterator[Judge]:
        # torch and transformers: not for who only wants to know how things stand.
        from pipeline.registry.judge import Judge

        with Places.of_project(root, execution.cluster.storage) as places:
            yield Judge(
                register=params.register_,
                evaluate=params.evaluate,
                objective=params.objective,
                root=root,
                places=places,
                tracking_uri=tracker.uri,
            )

    match asked.command:
        case "status":
            _status(tracker, name)
        case "history":
            _history(tracker, name, as_json=asked.json)
        case "rollback":
            _tell(champions.rollback(tracker, name, asked.reason))
        case "compare":
            with judge() as scoring:
                _compare(tracker, name, asked.a, asked.b, scoring)
        case _:
            if asked.force and not asked.reason:
                raise UserError('promote --force: say why, --reason "…"; it goes into the history')
            if asked.reason and not asked.force:
                raise UserError("promote --reason goes with --force; else the rule gives the reason")
            with judge() as scoring:
                history = champions.promote(tracker, name, asked.version, scoring, by_force=asked.reason)
            _tell(history)
            if history.champion != asked.version:
                raise UserError(f"{name} version {asked.version} was not promoted")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m pipeline.registry", description="Who is champion, and why.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("status", help="the versions, their aliases, and what had to be set right")
    one = commands.add_parser("promote", help="make a version champion, if the rule (section register of params.yaml) says so")
    one.add_argument("version", type=int)
    one.add_argument("--force", action="store_true", help="without the rule; needs --reason")
    one.add_argument("--reason")
    back = commands.add_parser("rollback", help="make the champion before this one champion again")
    back.add_argument("--reason", required=True)
    two = commands.add_parser("compare", help="every metric of two versions on the same pairs, with intervals")
    two.add_argument("a", type=int)
    two.add_argument("b", type=int)
    every = commands.add_parser("history", help="what was champion when, and why")
    every.add_argument("--json", action="store_true", help="with all that each decision looked at")
    server = commands.add_parser("serve", help="`mlflow models serve` of a version whose files are checked before its code runs")
    server.add_argument("model", help="models:/NAME@ALIAS or models:/NAME/VERSION")
    server.add_argument("options", nargs=argparse.REMAINDER, help="of `mlflow models serve`, such as --port 5001")
    return parser


def _status(tracker: Tracker, name: str) -> None:
    history, mended, versions = champions.status(tracker, name)
    for line in mended:
        print(f"mended: {line}")
    for version in versions:
        number = int(version.version)
        alias = {history.champion: "champion", history.challenger: "challenger"}.get(number, "")
        score, commit = version.tags.get("dev_pr_auc"), version.tags.get("git_commit", "")
        told = history.of(number)
        said = f"{told.change.action}: {told.change.reason}" if told else f"never held against the champion: promote {number}"
        shown = f"{float(score):.2f}" if score else "?"
        print(f"{name} version {number:<4} {alias:<10}  dev PR-AUC {shown:<6} commit {commit[:12]:<12}  {said}")


def _history(tracker: Tracker, name: str, *, as_json: bool) -> None:
    with mlflow_errors(tracker.uri):
        history = read(tracker.client, name)
    if as_json:
        print(json.dumps([asdict(event) for event in history.events], indent=2))
        return
    if not history.events:
        raise UserError(f"{name} has no history yet; `dvc repro` begins one")
    for event in history.events:
        print(_line(event))


def _line(event: Event) -> str:
    at = datetime.fromtimestamp(event.at, UTC).strftime("%Y-%m-%d %H:%M:%S")
    change = event.change
    action = f"{change.action} by force" if change.forced else change.action
    was = "none" if event.previous is None else str(event.previous)
    return f"{at}  champion {was} → {change.champion}  version {change.version} {action}: {change.reason}  ({event.by})"


def _compare(tracker: Tracker, name: str, a: int, b: int, judge: Judge) -> None:
    found = champions.compare(tracker, name, a, b, judge)
    confidence = 100 * judge.register.confidence
    print(
        f"{name}: version {b} against version {a}, difference with its {confidence:g} % interval (paired bootstrap over premises)"
    )
    print(f"{'set':<20}{'metric':<22}{f'version {a}':>12}{f'version {b}':>12}{'difference':>12}{'from':>9}{'to':>9}")
    for set_name, metrics in found.items():
        for metric, value in metrics.items():
            print(
                f"{set_name:<20}{metric:<22}{value.old:>12.2f}{value.new:>12.2f}{value.gain:>+12.2f}"
                f"{value.low:>+9.2f}{value.high:>+9.2f}"
            )


def _tell(history: History) -> None:
    change = history.events[-1].change
    print(_line(history.events[-1]))
    if change.decision and change.decision.get("warning"):
        print(change.decision["warning"])


if __name__ == "__main__":
    run_stage(main)
