"""Stages as Ray jobs on a standing cluster: sent, followed, left to themselves, found again, fetched."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import hashlib
import logging
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import aiohttp
import ray
from ray.exceptions import RayError
from ray.job_submission import JobStatus, JobSubmissionClient
from requests.exceptions import RequestException

from pipeline.errors import Terminated, UserError, escaped
from pipeline.execution import Execution
from pipeline.job import INPUTS_VARIABLE, Inputs, installed, to_text
from pipeline.package import PACKAGE, pack
from pipeline.project import git_commit, home
from pipeline.storage import Storage
from pipeline.uris import URI_VARIABLE, uri_of_environment
from pipeline.work import Left, Work, left

T = TypeVar("T")

# Seconds without an answer from the cluster after which nobody goes on listening.
_PATIENCE = 300.0
_PAUSE = 2.0
# What the client raises where nobody answers, or the connection breaks; a refusal is a RuntimeError too.
_UNREACHED = (ConnectionError, RequestException, aiohttp.ClientError, RuntimeError, OSError, RayError)


def run_as_job(stage: str, execution: Execution) -> None:
    """Have a stage's work done as a job, follow its log, and fetch what it leaves; work that was done before is fetched only.

    Raises:
        UserError: the cluster cannot be reached, refuses, or the job fails.
        KeyboardInterrupt: with a word on what becomes of the job.
    """
    root = Path.cwd()
    address = str(execution.cluster.address).rstrip("/")
    work = Work.of(stage, root)
    storage = Storage.open(execution.cluster.storage, home(root))
    client = _client(address)
    digests = {path: storage.put(root / path) for path in work.inputs}
    key = work.key(digests, root)
    try:
        there = _fetched(work, key, storage, root)
    except UserError as error:
        print(f"warning: {error}; {stage} is done again", file=sys.stderr, flush=True)
        there = None
    if there is not None:
        print(f"{stage}: fetched from {storage.name}, where a job left it", flush=True)
        there.tell_reuse(stage)
        return
    job = _Job(client, f"gausscse-{stage}-{_owner(root)}-{key[:16]}", address)
    if job.running():
        print(f"{stage}: job {job.name} is at it on {address}; its log:", flush=True)
    else:
        beside = {path: storage.put(root / path) for path in work.beside if (root / path).is_file()}
        job.submit(stage, Inputs(objects={**digests, **beside}, commit=git_commit(root), versions=installed()), root)
        print(f"{stage}: sent to {address} as job {job.name}; its log:", flush=True)
    try:
        job.follow()
    except KeyboardInterrupt as interrupt:
        job.leave_or_stop(ask=not isinstance(interrupt, Terminated))
    if _fetched(work, key, storage, root) is None:
        raise UserError(
            f"{stage}: job {job.name} ended well but left nothing in {storage.name}: is cluster.storage (execution.yaml) "
            "the same place for this machine and for the cluster's nodes?"
        )


def _fetched(work: Work, key: str, storage: Storage, root: Path) -> Left | None:
    """Bring what a job left into its place; None where none has left anything.

    Raises:
        UserError: part of it is gone or damaged, or there is no room here.
    """
    done = left(storage, key)
    if done is None or set(done.outs) != set(work.outs):
        return None
    for path, digest in done.outs.items():
        storage.get(digest, root / path)
    return done


def _client(address: str) -> JobSubmissionClient:
    # What it sends and when it closes a connection are told in lines of its own.
    for name in ("ray.dashboard.modules", "ray._private.runtime_env"):
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        client = JobSubmissionClient(address)
        theirs = client._server_ray_version
    except _UNREACHED as error:
        raise UserError(f"execution.yaml: cluster.address: no Ray cluster answers at {address!r} ({_words(error)})") from None
    if theirs != ray.__version__:
        raise UserError(f"{address}: the cluster runs Ray {theirs}, here is {ray.__version__}; use the same on both")
    return client


def _owner(root: Path) -> str:
    """Names this user's checkout: equal work of two people is two jobs, so that neither stops the other's."""
    return hashlib.sha256(f"{getpass.getuser()}@{platform.node()}:{root.resolve()}".encode()).hexdigest()[:8]


class _Job:
    """A job on a cluster, and those before it that did the same work and failed: they differ in the number behind the name."""

    def __init__(self, client: JobSubmissionClient, work: str, address: str) -> None:
        self._client, self._work, self._address = client, work, address
        self.name = f"{work}-1"
        # Characters of its log that were printed.
        self._seen = 0

    def running(self) -> bool:
        """Whether there is such a job that has not ended; if not, `name` is that of the next."""
        last = 0
        for known in self._asked(self._client.list_jobs):
            work, _, number = (known.submission_id or "").rpartition("-")
            if work == self._work and number.isdecimal():
                if not known.status.is_terminal():
                    self.name = f"{work}-{number}"
                    return True
                last = max(last, int(number))
        self.name = f"{self._work}-{last + 1}"
        return False

    def submit(self, stage: str, inputs: Inputs, root: Path) -> None:
        """Send the project's code, and have the stage run there."""
        env = {INPUTS_VARIABLE: to_text(inputs)}
        if uri := uri_of_environment():
            env[URI_VARIABLE] = uri
        with TemporaryDirectory(prefix="gausscse-") as temporary:
            # Not the folder itself: the other files in it must not be sent.
            archive = Path(temporary) / PACKAGE
            pack(root, archive)
            self._asked(
                lambda: self._client.submit_job(
                    entrypoint=f"python -m stages.{stage}",
                    submission_id=self.name,
                    runtime_env={"working_dir": str(archive), "env_vars": env},
                    metadata={"gausscse.stage": stage, "gausscse.commit": inputs.commit, "gausscse.user": getpass.getuser()},
                )
            )

    def follow(self) -> None:
        """Print the job's log until it ends; a connection that breaks is made anew.

        Raises:
            UserError: the job failed or was stopped; or nobody has answered for minutes.
        """
        told, answered = False, time.monotonic()
        while True:
            try:
                asyncio.run(self._tail())
                status = self._client.get_job_status(self.name)
                told, answered = False, time.monotonic()
                if status.is_terminal():
                    break
            except _UNREACHED as error:
                if "does not exist" in str(error):
                    raise UserError(
                        f"job {self.name} is not known to {self._address} any more, as after its head was started anew; finished "
                        "work is kept, run the same command again to go on"
                    ) from None
                if time.monotonic() - answered > _PATIENCE:
                    raise UserError(
                        f"{self._address}: no answer for {_PATIENCE:g} seconds ({_words(error)}); if job {self.name} lives it "
                        "goes on, and the same command finds it again"
                    ) from None
                if not told:
                    print(f"warning: connection to {self._address} lost ({_words(error)}); trying again", file=sys.stderr)
                told = True
            time.sleep(_PAUSE)
        if status != JobStatus.SUCCEEDED:
            how = "was stopped" if status == JobStatus.STOPPED else f"failed: {self._why()}"
            raise UserError(f"job {self.name} {how}")

    def leave_or_stop(self, *, ask: bool) -> None:
        """After Ctrl-C: leave the job to itself, or stop it, as whoever sits there says; nobody there, it is left.

        Raises:
            KeyboardInterrupt: always, with what became of the job.
        """
        if ask and _wants_it_stopped(self.name):
            self._asked(lambda: self._client.stop_job(self.name))
            with contextlib.suppress(UserError):
                self.follow()
            raise KeyboardInterrupt(f"job {self.name} was stopped; finished work is kept, run the same command again to go on")
        raise KeyboardInterrupt(f"job {self.name} goes on without us at {self._address}; run the same command again to follow it")

    async def _tail(self) -> None:
        at = 0
        async for text in self._client.tail_job_logs(self.name):
            new = text[max(0, self._seen - at) :]
            at += len(text)
            self._seen = max(self._seen, at)
            # A line that a job overwrites becomes several.
            sys.stdout.write(escaped(new.replace("\r\n", "\n").replace("\r", "\n"), keep="\n\t"))
            sys.stdout.flush()

    def _why(self) -> str:
        """The line in which the job's stage says what is wrong, or else what Ray says of it."""
        lines = self._asked(lambda: self._client.get_job_logs(self.name)).splitlines()
        told = [line for line in lines if line.startswith("error: ")]
        if told:
            return told[-1].removeprefix("error: ")
        message = self._asked(lambda: self._client.get_job_info(self.name)).message or ""
        return " ".join(message.split())[:1000] or "no reason is known; see its log"

    def _asked(self, what: Callable[[], T]) -> T:
        try:
            return what()
        except _UNREACHED as error:
            raise UserError(f"{self._address}: {_words(error)}") from None


def _wants_it_stopped(name: str) -> bool:
    """Ask on the terminal, once; a second Ctrl-C, or no terminal, is no."""
    try:
        with Path("/dev/tty").open("w", encoding="utf-8") as out, Path("/dev/tty").open(encoding="utf-8") as answers:
            out.write(f"\njob {name}: [d]etach and let it go on, or [s]top it? [d] ")
            out.flush()
            return answers.readline().strip().lower().startswith("s")
    except (OSError, KeyboardInterrupt):
        return False


def _words(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:500] if lines else type(error).__name__
