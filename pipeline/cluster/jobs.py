"""Stages as Ray jobs on a running cluster: submit, follow, detach, find again, fetch the results."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import aiohttp
from ray.exceptions import RayError
from ray.job_submission import JobStatus, JobSubmissionClient

from pipeline.cluster import backbone_files
from pipeline.cluster.dispatch import Left, Work, left
from pipeline.cluster.package import PACKAGE, pack
from pipeline.cluster.ray_private import quiet_client
from pipeline.config.execution import Execution
from pipeline.config.job_inputs import INPUTS_VARIABLE, Inputs, git_commit, installed, owner
from pipeline.config.params import ModelParams
from pipeline.config.paths import home
from pipeline.identity.digests import BACKBONE
from pipeline.storage.object_store import Storage
from pipeline.utils.errors import UserError, escaped, first_line
from pipeline.utils.logs import log
from pipeline.utils.uris import URI_VARIABLE, uri_of_environment
from pipeline.utils.users import user_name

T = TypeVar("T")

# Seconds without an answer from the cluster after which we stop following a job.
_PATIENCE = 300.0
# What the client raises if nothing answers or the connection breaks. A refused request is a RuntimeError too.
_UNREACHED = (aiohttp.ClientError, RuntimeError, OSError, RayError)


def run_as_job(stage: str, model: ModelParams, execution: Execution) -> None:
    """Run a stage as a job, follow its log and fetch its outputs. If the work was done before, only fetch the outputs.

    Raises:
        UserError: the cluster cannot be reached or refuses the job, or the job fails.
        KeyboardInterrupt: its message says what becomes of the job.
    """
    storage = Storage.open(execution.cluster.storage, home(Path.cwd()))
    root = Path.cwd()
    address = str(execution.cluster.address).rstrip("/")
    work = Work.of(stage, root)
    client = _client(address)
    digests = {path: storage.put(root / path) for path in work.inputs}
    key = work.key(digests, root)
    log.debug(f"{stage}: its outputs are stored under {key}")
    try:
        if (record := _fetched(work, key, storage, root)) is not None:
            log.info(f"{stage}: fetched from {storage.name}, where a job left it")
            record.tell_reuse(stage)
            return
    except UserError as error:
        log.warning(f"{error}; {stage} is done again")
    # Two people with the same work get two jobs, so that neither can stop the other's.
    job = _Job(client, f"gausscse-{stage}-{owner(root)}-{key[:16]}", address)
    if job.running():
        log.info(f"{stage}: job {job.name} is already running on {address}; its log:")
    else:
        extras = {path: storage.put(root / path) for path in work.also_read if (root / path).is_file()}
        if BACKBONE.as_posix() in work.inputs:
            extras |= backbone_files.send(model, storage)
        sent = Inputs(objects={**digests, **extras}, commit=git_commit(root), versions=installed(), owner=owner(root))
        job.submit(stage, sent, root)
        log.info(f"{stage}: sent to {address} as job {job.name}; its log:")
    try:
        job.follow()
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"job {job.name} continues at {address}; run the same command again to follow it; "
            f"`ray job stop --address {address} {job.name}` stops it"
        ) from None
    if _fetched(work, key, storage, root) is None:
        raise UserError(
            f"{stage}: job {job.name} ended well but left nothing in {storage.name}: is cluster.storage (execution.yaml) "
            "the same place for this machine and for the cluster's nodes?"
        )


def _fetched(work: Work, key: str, storage: Storage, root: Path) -> Left | None:
    """Fetch the outputs of finished work into the project; None if there are none yet.

    Raises:
        UserError: an output is gone or damaged, or there is no room here.
    """
    record = left(storage, key)
    if record is None or set(record.outs) != set(work.outs):
        return None
    for path, digest in record.outs.items():
        storage.get(digest, root / path)
    return record


def _client(address: str) -> JobSubmissionClient:
    quiet_client()
    try:
        return JobSubmissionClient(address)
    except _UNREACHED as error:
        raise UserError(
            f"execution.yaml: cluster.address: no Ray cluster answers at {address!r} ({first_line(error, 500)})"
        ) from None


class _Job:
    """A job on a cluster. If earlier jobs for the same work have failed, their names differ only in the number at the end."""

    def __init__(self, client: JobSubmissionClient, work: str, address: str) -> None:
        self._client, self._work, self._address = client, work, address
        self.name = f"{work}-1"
        # Number of characters of its log that were printed.
        self._seen = 0

    def running(self) -> bool:
        """Whether a job for this work is still running. `name` becomes its name, or else the name of the next job."""
        jobs = {job.submission_id or "": job for job in self._asked(self._client.list_jobs)}
        own = {int(match[1]): jobs[match[0]] for match in map(re.compile(rf"{self._work}-(\d+)").fullmatch, jobs) if match}
        running = [number for number, job in own.items() if not job.status.is_terminal()]
        self.name = f"{self._work}-{running[0] if running else max(own, default=0) + 1}"
        return bool(running)

    def submit(self, stage: str, inputs: Inputs, root: Path) -> None:
        """Send the project's code and start the stage as a job."""
        env = {INPUTS_VARIABLE: inputs.model_dump_json()}
        if uri := uri_of_environment():
            env[URI_VARIABLE] = uri
        with TemporaryDirectory(prefix="gausscse-") as temporary:
            # An archive instead of the folder, whose other files must not be sent.
            archive = Path(temporary) / PACKAGE
            pack(root, archive)
            self._asked(
                lambda: self._client.submit_job(
                    entrypoint=f"python -m stages.{stage}",
                    submission_id=self.name,
                    runtime_env={"working_dir": str(archive), "env_vars": env},
                    metadata={"gausscse.stage": stage, "gausscse.commit": inputs.commit, "gausscse.user": user_name()},
                )
            )

    def follow(self) -> None:
        """Print the job's log until the job ends; reconnect if the connection breaks.

        Raises:
            UserError: the job failed or was stopped, is unknown to the cluster, or the cluster has not answered for minutes.
        """
        warned, queued, answered = False, False, time.monotonic()
        began = answered
        while True:
            try:
                # Usually a job is started sooner.
                late = not queued and time.monotonic() > began + 10.0
                if late and (job := self._client.get_job_info(self.name)).status == JobStatus.PENDING:
                    queued = True
                    why = " ".join((job.message or "").split())[:500]
                    log.info(f"job {self.name} waits to be started{f': {why}' if why else ''}")
                asyncio.run(self._tail())
                status = self._client.get_job_status(self.name)
                warned, answered = False, time.monotonic()
                if status.is_terminal():
                    break
            except _UNREACHED as error:
                if "does not exist" in str(error):
                    raise UserError(
                        f"{self._address} does not know job {self.name} any more, perhaps because the head node was restarted; "
                        "finished work is kept, run the same command again to go on"
                    ) from None
                if time.monotonic() - answered > _PATIENCE:
                    raise UserError(
                        f"{self._address}: no answer for {_PATIENCE:g} seconds ({first_line(error, 500)}); job "
                        f"{self.name} may still be running, and the same command finds it again"
                    ) from None
                if not warned:
                    log.warning(f"connection to {self._address} lost ({first_line(error, 500)}); trying again")
                warned = True
            time.sleep(2.0)
        if status != JobStatus.SUCCEEDED:
            how = "was stopped" if status == JobStatus.STOPPED else f"failed: {self._why()}"
            raise UserError(f"job {self.name} {how}")

    async def _tail(self) -> None:
        position = 0
        async for text in self._client.tail_job_logs(self.name):
            new = text[max(0, self._seen - position) :]
            position += len(text)
            self._seen = max(self._seen, position)
            # A line that the job overwrites (\r) becomes several lines.
            sys.stdout.write(escaped(new.replace("\r\n", "\n").replace("\r", "\n"), keep="\n\t"))
            sys.stdout.flush()

    def _why(self) -> str:
        """The error line that the job's stage printed, or else Ray's message."""
        lines = self._asked(lambda: self._client.get_job_logs(self.name)).splitlines()
        errors = [line for line in lines if line.startswith("error: ")]
        if errors:
            return errors[-1].removeprefix("error: ")
        message = self._asked(lambda: self._client.get_job_info(self.name)).message or ""
        return " ".join(message.split())[:1000] or "the reason is unknown; see its log"

    def _asked(self, what: Callable[[], T]) -> T:
        try:
            return what()
        except _UNREACHED as error:
            raise UserError(f"{self._address}: {first_line(error, 500)}") from None
