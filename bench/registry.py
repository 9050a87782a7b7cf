"""The registry by number of versions: the commands that read it, a version more, a promotion, what `gausscse serve` asks."""

from __future__ import annotations

import io
import json
import os
import shutil
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import requests
from mlflow.tracking import MlflowClient

from bench.measure import ROOT, Row, grown_mb, started
from pipeline.cli import registry
from pipeline.registry import fetching
from pipeline.registry.alias_log import CHALLENGER, Change, enter, read
from pipeline.registry.following import ChampionWatch
from pipeline.registry.versions import CONTENT_TAG, TRIAL_TAG, WEIGHTS_TAG, create_model, same_version
from pipeline.tracking.server import client_of

NAME = "gausscse"
SETS, METRICS = 6, 8


def run(quick: bool) -> list[Row]:
    """A row for each question and number of versions."""
    rows: list[Row] = []
    for versions in (20,) if quick else (1_000, 10_000):
        with tempfile.TemporaryDirectory() as name, _registry(Path(name), versions) as uri:
            rows += _rows(uri, versions)
    return rows


def _rows(uri: str, versions: int) -> list[Row]:
    client = client_of(uri)
    seen, new = read(client, NAME), versions + 1
    forced = Change(action="promoted by force", version=2, reason="measured")
    questions: dict[str, Callable[[], object]] = {
        "registry history": lambda: registry.main(["history"]),
        "registry status": lambda: registry.main(["status"]),
        "what gausscse gc asks": fetching.referred_to,
        "is a model registered": lambda: same_version(client, NAME, "run", {CONTENT_TAG: _digest(new)}),
        "a version more": lambda: add(client, new),
        "a promotion": lambda: enter(client, NAME, lambda _: forced),
        "which attempt this is": lambda: seen.attempt(decision(new)["weights"], inputs()),
        "what serve asks": ChampionWatch(NAME, uri, 10.0).now,
    }
    return [measured(f"{name}, {versions} versions", question) for name, question in questions.items()]


@contextmanager
def _registry(folder: Path, versions: int) -> Iterator[str]:
    """The address of an MLflow server in whose registry version 1 is champion and the rule has refused all others."""
    for file in ("params.yaml", "execution.yaml"):
        shutil.copyfile(ROOT / file, folder / file)
    fill(folder / "mlflow.db", versions)
    before = Path.cwd()
    with mlflow_server(folder) as uri:
        os.chdir(folder)
        os.environ["MLFLOW_TRACKING_URI"] = uri
        try:
            yield uri
        finally:
            os.chdir(before)
            del os.environ["MLFLOW_TRACKING_URI"]


@contextmanager
def mlflow_server(folder: Path) -> Iterator[str]:
    """The address of an MLflow server whose database is in a folder."""
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", f"sqlite:///{folder}/mlflow.db"]
    env = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with started([*command, "--workers", "2", "--port"], "/health", folder / "log", 240, env) as (port, _):
        yield f"http://127.0.0.1:{port}"


def measured(name: str, work: Callable[[], object]) -> Row:
    """The row of work that asks MLflow: its seconds, its memory, and the number of its requests."""
    sent: list[str] = []
    send = requests.Session.send

    def counted(session: requests.Session, request: Any, **options: Any) -> Any:
        sent.append(request.path_url)
        return send(session, request, **options)

    requests.Session.send = counted
    try:
        with redirect_stdout(io.StringIO()):
            start = time.perf_counter()
            memory = grown_mb(work)
            seconds = time.perf_counter() - start
    finally:
        requests.Session.send = send
    return Row(name=name, ours=seconds, unit="s", peak_mb=memory, note=f"{len(sent):,} requests to MLflow")


def fill(database: Path, versions: int) -> None:
    """Fill a registry: version 1 is champion, and the rule has refused the others.

    MLflow writes versions 1 and 2 and their entries of the history. The rest are copies with other numbers, since ten thousand
    calls take minutes.
    """
    client = client_of(f"sqlite:///{database}")
    create_model(client, NAME)
    for number in (1, 2):
        add(client, number)
        enter(client, NAME, lambda _, number=number: change(number))
    with closing(sqlite3.connect(database)) as held, held:
        for table in ("model_versions", "model_version_tags"):
            names = [column for _, column, *_ in held.execute(f"pragma table_info({table})")]
            rows = held.execute(f"select * from {table} where version = 2").fetchall()
            into = f"insert into {table} values ({', '.join('?' * len(names))})"
            for number in range(3, versions + 1):
                held.executemany(into, [[_renumbered(*cell, number) for cell in zip(names, row, strict=True)] for row in rows])
    client.set_registered_model_alias(NAME, CHALLENGER, str(versions))


def _renumbered(column: str, cell: Any, number: int) -> Any:
    if column == "version":
        return number
    if cell == _digest(2):
        return _digest(number)
    if column == "value" and str(cell).startswith("{"):
        entry = json.loads(cell)
        change = entry["change"] | {"version": number, "weights": _digest(number), "decision": decision(number)}
        return json.dumps(entry | {"before": number - 1, "change": change})
    return cell


def add(client: MlflowClient, number: int) -> None:
    """Register a version, with a card as long as MLflow allows."""
    tags = dict.fromkeys((CONTENT_TAG, WEIGHTS_TAG, TRIAL_TAG), _digest(number))
    client.create_model_version(NAME, "s3://bucket/model", tags={**tags, "dev_pr_auc": "90.1"}, description="card " * 900)


def change(number: int) -> Change:
    """The entry of a version in the history."""
    if number == 1:
        return Change(action="promoted", version=1, reason="there was no champion yet", weights=_digest(1))
    return Change(action="kept", version=number, reason="no gain", weights=_digest(number), decision=decision(number))


def decision(number: int) -> dict[str, Any]:
    """A decision about a version, as large as one on six sets: 9 kB."""
    value = dict.fromkeys(("old", "new", "gain", "low", "high", "error"), 12.345678901234567)
    found = {f"set {one}": {f"metric {other}": value for other in range(METRICS)} for one in range(SETS)}
    return {"weights": {"champion": _digest(1), "candidate": _digest(number)}, **inputs(), "differences": found}


def inputs() -> dict[str, Any]:
    """What each decision depends on besides the two models."""
    return {"pairs": {"dev": _digest(1), "promotion": _digest(2)}, "scorer": _digest(3), "register": {"metric": "pr_auc"}}


def _digest(number: int) -> str:
    return f"{number:064}"
