"""`gausscse registry status|promote|rollback|compare|history|follow|serve`: the model registry."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.cluster.preflight import load_place, load_project
from pipeline.data.schema import DEV
from pipeline.families.family import deciding_metrics
from pipeline.registry import champions
from pipeline.registry.alias_log import Event, History, read
from pipeline.registry.following import VERSION, follow
from pipeline.tracking.server import Tracker, mlflow_errors, open_tracker
from pipeline.trials.store import TrialStore
from pipeline.utils.errors import UserError, escaped
from pipeline.utils.parser import Parser, above_zero

if TYPE_CHECKING:
    from pipeline.registry.version_scorer import VersionScorer


def main(arguments: Sequence[str]) -> None:
    """Run one of the registry commands."""
    options = _parser().parse_args(arguments)
    root = Path.cwd()
    name, execution = load_place()
    tracker = open_tracker(execution.tracking, root)
    match options.command:
        case "follow":
            command = options.words[1:] if options.words[:1] == ["--"] else options.words
            if not command:
                raise UserError("registry follow: name a command, such as -- gausscse encode …")
            follow(name, tracker.uri, command, options.every)
        case "status":
            _status(tracker, name)
        case "history":
            _history(tracker, name, as_json=options.json)
        case "rollback":
            _tell(champions.rollback(tracker, name, options.reason, options.to))
        case _:
            if options.command == "promote" and options.force != bool(options.reason):
                raise UserError(
                    'promote: --force and --reason "…" go together; without them, the rule decides and gives the reason'
                )
            # Imported here: this needs torch and transformers, which the other commands do not.
            from pipeline.registry.version_scorer import VersionScorer

            params, _ = load_project()
            with TrialStore.of_project(root, execution.cluster.storage) as store:
                scorer = VersionScorer(params.register_, params.evaluate, root, store, tracker.uri)
                if options.command == "compare":
                    _compare(tracker, name, options.a, options.b, scorer)
                    return
                history = champions.promote(tracker, name, options.version, scorer, by_force=options.reason)
            _tell(history)
            if history.champion != options.version:
                raise UserError(f"{name} version {options.version} was not promoted")


def _parser() -> Parser:
    parser = Parser(prog="gausscse registry", description="Show or change which version is champion.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("status", help="list the versions with their aliases, and repair wrong aliases")
    promote = commands.add_parser(
        "promote", help="make a version champion if the rule allows it (section register of params.yaml)"
    )
    promote.add_argument("version", type=int)
    promote.add_argument("--force", action="store_true", help="promote even if the rule refuses; needs --reason")
    promote.add_argument("--reason")
    rollback = commands.add_parser("rollback", help="make the previous champion the champion again")
    rollback.add_argument("--reason", required=True)
    rollback.add_argument("--to", type=int, metavar="VERSION", help="go back to this earlier champion, over those between")
    compare = commands.add_parser("compare", help="compare all metrics of two versions on the same pairs, with intervals")
    compare.add_argument("a", type=int)
    compare.add_argument("b", type=int)
    history = commands.add_parser("history", help="list which version was champion when, and why")
    history.add_argument("--json", action="store_true", help="as JSON, with everything that each decision used")
    follower = commands.add_parser("follow", help="run a command for the champion, and for each new one")
    follower.add_argument("--every", type=above_zero, default=10.0, metavar="SECONDS", help="between two looks; default: 10")
    follower.add_argument(
        "words", nargs=argparse.REMAINDER, metavar="-- COMMAND", help=f"the command; {VERSION} becomes the champion's number"
    )
    return parser


def _status(tracker: Tracker, name: str) -> None:
    history, repaired, versions = champions.status(tracker, name)
    for line in repaired:
        print(escaped(f"repaired: {line}"))
    aliases = {history.champion: "champion", history.challenger: "challenger"}
    last = {event.version: event for event in history.events}
    for version in versions:
        number = int(version.version)
        alias = aliases.get(number, "")
        commit = version.tags.get("git_commit", "")
        # The metric that its project registers by (register.metric).
        known = deciding_metrics()
        metric = next((name for name in known if f"{DEV}_{name}" in version.tags), next(iter(known)))
        score = version.tags.get(f"{DEV}_{metric}")
        event = last.get(number)
        verdict = f"{event.action}: {event.reason}" if event else f"never compared with the champion: promote {number}"
        shown = f"{float(score):.2f}" if score else "?"
        line = f"{name} version {number:<4} {alias:<10}  dev {known[metric]} {shown:<6} commit {commit[:12]:<12}  {verdict}"
        print(escaped(line))


def _history(tracker: Tracker, name: str, *, as_json: bool) -> None:
    with mlflow_errors(tracker.uri):
        history = read(tracker.client, name)
    if as_json:
        print(json.dumps([asdict(event) for event in history.events], indent=2))
        return
    if not history.events:
        raise UserError(f"{name} has no history yet; `dvc repro` starts one")
    for event in history.events:
        print(_line(event))


def _line(event: Event) -> str:
    time = datetime.fromtimestamp(event.at, UTC).strftime("%Y-%m-%d %H:%M:%S")
    previous = "none" if event.previous is None else str(event.previous)
    change = f"champion {previous} → {event.champion}  version {event.version}"
    return escaped(f"{time}  {change} {event.action}: {event.reason}  ({event.by})")


def _compare(tracker: Tracker, name: str, a: int, b: int, scorer: VersionScorer) -> None:
    differences = champions.compare(tracker, name, a, b, scorer)
    confidence = 100 * scorer.register.confidence
    print(
        f"{name}: version {b} against version {a}, difference with its {confidence:g} % interval (paired bootstrap over premises)"
    )
    print(f"{'set':<20}{'metric':<22}{f'version {a}':>12}{f'version {b}':>12}{'difference':>12}{'from':>9}{'to':>9}")
    for set_name, metrics in differences.items():
        for metric, value in metrics.items():
            print(
                f"{escaped(set_name):<20}{metric:<22}{value.old:>12.2f}{value.new:>12.2f}{value.gain:>+12.2f}"
                f"{value.low:>+9.2f}{value.high:>+9.2f}"
            )


def _tell(history: History) -> None:
    event = history.events[-1]
    print(_line(event))
    if event.decision and event.decision.get("warning"):
        print(escaped(str(event.decision["warning"])))
