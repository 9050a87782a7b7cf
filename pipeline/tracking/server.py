"""The MLflow server: its address, its errors as one line each, and how long to wait for it."""

from __future__ import annotations

import itertools
import logging
import os
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote, urlparse

from mlflow.exceptions import MlflowException
from mlflow.store.entities import PagedList
from mlflow.tracking import MlflowClient
from sqlalchemy.exc import SQLAlchemyError

from pipeline.config.execution import TrackingParams
from pipeline.config.paths import home
from pipeline.utils.errors import RunError, UserError, first_line
from pipeline.utils.logs import log
from pipeline.utils.uris import uri_of_environment, without_password

T = TypeVar("T")
# Default passwords from examples by MLflow and others, past and present.
_KNOWN = ("password", "password1234", "admin", "mlflow", "changeme")
# By default, MLflow waits four minutes per call for a server that does not answer; with these settings about five seconds.
_IMPATIENT = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "20"}


def every(page: Callable[[str | None], PagedList[T]]) -> Iterator[T]:
    """All that a search of MLflow's finds, a page in memory at a time: `page` gets the token of the next one."""
    token = None
    while token != "":
        yield from (some := page(token))
        token = some.token or ""


def tracking_uri(params: TrackingParams, root: Path) -> str:
    """MLflow's URI: the environment's MLFLOW_TRACKING_URI, else the parameter, else sqlite in the project's home (absolute)."""
    if uri := uri_of_environment() or params.uri:
        return uri
    database = (home(root) / "mlflow.db").resolve()
    if database.is_file() and (artifacts := database.with_name("mlartifacts")).is_dir():
        _renew_paths(database, artifacts)
    return f"sqlite:///{database}"


def _renew_paths(database: Path, artifacts: Path) -> None:
    """Change the paths in a project's database if the project was moved or copied: MLflow stores absolute ones.

    A copy would otherwise load the original's models. A folder that somebody chose for the artifacts stays.

    Raises:
        UserError: the database cannot be changed now.
    """
    here = artifacts.resolve().as_uri()

    def of_a_project(location: str) -> bool:
        folder = Path(unquote(urlparse(location).path))
        return not folder.exists() or folder.with_name(database.name).is_file()

    with closing(sqlite3.connect(database)) as held:
        try:
            found = held.execute("select distinct artifact_location from experiments").fetchall()
        except sqlite3.Error:
            # MLflow itself reports a file that it cannot read.
            return
        places = [place for (place,) in found if str(place).startswith("file:") and place.endswith(f"/{artifacts.name}")]
        former = [place for place in places if place != here and of_a_project(place)]
        if not former:
            return
        try:
            columns = held.execute(
                "select m.name, p.name from sqlite_master m join pragma_table_info(m.name) p where m.type = 'table'"
                " and p.name in ('artifact_location', 'artifact_uri', 'source', 'storage_location')"
            ).fetchall()
            with held:
                for old, (table, column) in itertools.product(former, columns):
                    held.execute(
                        f'update "{table}" set "{column}" = ?1 || substr("{column}", length(?2) + 1)'
                        f' where "{column}" = ?2 or substr("{column}", 1, length(?2) + 1) = ?2 || \'/\'',
                        (here, old),
                    )
        except sqlite3.Error as error:
            raise UserError(f"{database}: the project was moved or copied, but its paths cannot be renewed: {error}") from None
    log.warning(f"{database.name}: the project was moved or copied, so the paths of its runs and models were renewed")


def client_of(uri: str) -> MlflowClient:
    """A client of an MLflow server. From then on, this process shows only MLflow's warnings: no remarks and no progress bars."""
    # The migrations of a new sqlite database are logged line by line.
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # This logger repeats what MLflow raises, with traceback and SQL; `mlflow_errors` reports it once.
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    return MlflowClient(tracking_uri=uri, registry_uri=uri)


@dataclass(frozen=True, slots=True)
class Tracker:
    """The server and experiment to log to; plain strings, so that it can be sent to a worker."""

    uri: str
    experiment_id: str

    @property
    def client(self) -> MlflowClient:
        """A client of the tracking server."""
        return client_of(self.uri)

    @contextmanager
    def calls(self) -> Iterator[MlflowClient]:
        """A client whose errors become one line (`mlflow_errors`)."""
        with mlflow_errors(self.uri):
            yield self.client


def open_tracker(params: TrackingParams, root: Path) -> Tracker:
    """Find or create the experiment.

    Raises:
        UserError: the server cannot be reached or refuses access.
    """
    uri = tracking_uri(params, root)
    if os.environ.get("MLFLOW_TRACKING_PASSWORD") in _KNOWN:
        raise UserError("MLFLOW_TRACKING_PASSWORD is a well-known default; change it on the server, then here")
    # Report a wrong address at once; later calls keep MLflow's patience with a server that is restarting.
    with mlflow_errors(uri), impatient():
        client = client_of(uri)
        experiment = client.get_experiment_by_name(params.experiment)
        if experiment is not None:
            if experiment.lifecycle_stage != "active":
                where = f"{params.experiment!r} at {without_password(uri)}"
                again = _restored("experiment", experiment.experiment_id, uri)
                raise UserError(f"MLflow experiment {where} is deleted; {again}, or name another one in tracking.experiment")
            return Tracker(uri, experiment.experiment_id)
        # A server proxies artifacts. With a plain database, they need a folder that does not depend on the working directory.
        location = (home(root) / "mlartifacts").resolve().as_uri() if uri.startswith("sqlite:") else None
        return Tracker(uri, client.create_experiment(params.experiment, artifact_location=location))


@contextmanager
def mlflow_errors(uri: str) -> Iterator[None]:
    """Turn errors that MLflow raises into one line that names the server."""
    try:
        yield
    except (MlflowException, SQLAlchemyError, ImportError) as error:
        # If a file is not a database or a database driver is missing, MLflow does not wrap the error.
        # SQLAlchemy puts the database's message on one line of many: (sqlite3.OperationalError) database or disk is full
        driver = re.search(r"^\(\w+(?:\.\w+)+\) (.+)$", str(error), re.MULTILINE)
        message = driver[1] if driver else first_line(error)
        # Without the user:password@ of the URI.
        message = message.replace("".join(uri.partition("://")[2].rpartition("@")[:2]), "")
        if re.search(r"error code 40[13]\b|not authenticated|Permission denied", message):
            who = os.environ.get("MLFLOW_TRACKING_USERNAME")
            message = f"it refuses {f'user {who!r}' if who else 'callers without a name'}; " + (
                "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD to those of a user with access"
            )
        remedy = "check tracking.uri or MLFLOW_TRACKING_URI"
        if deleted := re.search(r"(experiment|run) (\w+) must be in the 'active' state", message):
            remedy = _restored(deleted[1], deleted[2], uri)
        elif "mlflow db upgrade" in message:
            message = message.partition(". Take a backup")[0]
            remedy = f"copy the database, then run `mlflow db upgrade '{without_password(uri)}'` with the MLflow of this project"
        passing = re.search(r"failed with exception|error code (?:429|5\d\d)\b|database is locked", message)
        raise (RunError if passing else UserError)(f"MLflow at {without_password(uri)}: {message}; {remedy}") from error


def _restored(kind: str, number: str, uri: str) -> str:
    where = f"MLFLOW_TRACKING_URI='{without_password(uri)}'"
    return f"run `{where} mlflow {kind}s restore --{kind}-id {number}`"


@contextmanager
def impatient() -> Iterator[None]:
    """Use few and short HTTP retries, unless the environment sets them."""
    ours = {key: value for key, value in _IMPATIENT.items() if key not in os.environ}
    os.environ.update(ours)
    try:
        yield
    finally:
        for key in ours:
            os.environ.pop(key, None)
