"""An MLflow server that wants a password, on sqlite or on a PostgreSQL of its own."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil
import pytest

from pipeline.config.execution import TrackingParams
from pipeline.tracking.server import open_tracker
from tests.console import free_port

_BIN = Path(sys.executable).parent
_AUTH = """[mlflow]
default_permission = NO_PERMISSIONS
database_uri = sqlite:///{folder}/users.db
admin_username = admin
authorization_function = mlflow.server.auth:authenticate_request_basic_auth
auth_cache_ttl_seconds = 60
"""


@dataclass(frozen=True)
class Server:
    """Where it is, and who may."""

    uri: str
    user: str
    password: str


@contextmanager
def served(folder: Path, database: str) -> Iterator[Server]:
    """`mlflow server` with basic authentication; artifacts go through it."""
    (folder / "auth.ini").write_text(_AUTH.format(folder=folder), encoding="utf-8")
    password = secrets.token_urlsafe(18)
    env = {
        **os.environ,
        "MLFLOW_AUTH_CONFIG_PATH": str(folder / "auth.ini"),
        "MLFLOW_AUTH_ADMIN_PASSWORD": password,
        "MLFLOW_FLASK_SERVER_SECRET_KEY": secrets.token_hex(16),
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    }
    port = free_port()
    command = ["mlflow", "server", "--app-name", "basic-auth", "--host", "127.0.0.1", "--port", str(port), "--workers", "2"]
    command += ["--backend-store-uri", database, "--artifacts-destination", str(folder / "artifacts")]
    with (folder / "server.log").open("ab") as log:
        process = subprocess.Popen([str(_BIN / command[0]), *command[1:]], cwd=folder, env=env, stdout=log, stderr=log)
    try:
        uri = f"http://127.0.0.1:{port}"
        answers(uri, folder / "server.log")
        yield Server(uri, "admin", password)
    finally:
        for child in [*psutil.Process(process.pid).children(recursive=True), process]:
            child.kill()
        process.wait()


@cache
def empty_database() -> bytes:
    """The file of a database of MLflow, which takes seconds to make."""
    with tempfile.TemporaryDirectory() as folder:
        open_tracker(TrackingParams(uri=f"sqlite:///{folder}/mlflow.db", experiment="another"), Path(folder))
        return Path(folder, "mlflow.db").read_bytes()


def postgres_programs() -> Path:
    """The folder of PostgreSQL's programs; the test is skipped where it is not installed, or fails where it has to be."""
    found = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin"))), None)
    if found is None:
        if os.environ.get("GAUSSCSE_REQUIRE_POSTGRES"):
            pytest.fail("GAUSSCSE_REQUIRE_POSTGRES is set, but there is no PostgreSQL: apt-get install postgresql")
        pytest.skip("there is no PostgreSQL: apt-get install postgresql")
    return found


@contextmanager
def postgres() -> Iterator[str]:
    """The address of a PostgreSQL that nobody else uses."""
    found = postgres_programs()
    # Not below pytest's folder, which nobody else may enter: as root it has to be run by somebody else.
    data = Path(tempfile.mkdtemp(prefix="gausscse-postgres-"))
    before: list[str] = []
    if os.geteuid() == 0:
        before = ["runuser", "-u", "postgres", "--"]
        shutil.chown(data, "postgres")
    port = free_port()
    control = [*before, str(found / "pg_ctl"), "-D", str(data), "-w", "-l", str(data / "log")]
    options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={data} -c fsync=off"
    setup = [*before, str(found / "initdb"), "-D", str(data), "--auth=trust", "--username=mlflow"]
    try:
        subprocess.run(setup, check=True, stdout=subprocess.DEVNULL, cwd="/")
        subprocess.run([*control, "-o", options, "start"], check=True, stdout=subprocess.DEVNULL, cwd="/")
        try:
            # The driver by name: SQLAlchemy's own choice has changed.
            yield f"postgresql+psycopg2://mlflow@127.0.0.1:{port}/postgres"
        finally:
            subprocess.run([*control, "-m", "immediate", "stop"], check=True, stdout=subprocess.DEVNULL, cwd="/")
    finally:
        shutil.rmtree(data)


def answers(uri: str, log: Path) -> None:
    """Wait until a server of MLflow's says that it is well."""
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        try:
            if urllib.request.urlopen(f"{uri}/health", timeout=2).status == 200:
                return
        except OSError:
            time.sleep(0.3)
    raise AssertionError(f"it does not answer: {log.read_text(encoding='utf-8')[-2000:]}")
