"""The Ray Serve application of one version: replicas that hold its encoder and answer requests in batches."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import torch
from ray import serve
from ray.exceptions import RayError, RayTaskError
from ray.serve.config import AutoscalingConfig
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from ray.serve.schema import ApplicationStatus

from pipeline.cluster.session import Session, check_this_node, session
from pipeline.config.execution import ClusterParams
from pipeline.config.job_inputs import standing
from pipeline.models.model_dir import Engine, check_engine
from pipeline.serving.model import Answered, Job, Model
from pipeline.serving.runtime import CALLS, ReplicaDied, Send
from pipeline.storage.object_store import found
from pipeline.utils.errors import UserError, last_line

# How many the autoscaler wants a replica to have: a second call that always waits asks for another replica.
_TARGET = 1.5
_DEPLOYMENT = "encoder"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How many replicas a model may have, and what each takes."""

    least: int
    most: int
    threads: int
    """torch threads of a replica."""
    cpus: float
    gpus: float
    """Cores and GPUs that Ray reserves for a replica."""
    patience: float
    """Seconds in which a model must have started."""

    @staticmethod
    def on(session: Session, least: int, most: int, *, private: bool, threads: int | None = None) -> Scale:
        """What replicas may take, such that a second model fits while it replaces the first.

        On a private Ray, the machine is ours, so no cores are reserved. A GPU is shared by replicas of both models. A standing
        cluster must have cores for both.

        Args:
            threads: torch threads of a replica; by default those of all cores together, or of the cores that are reserved.
        """
        gpus = ray.cluster_resources().get("GPU", 0.0)
        return Scale(
            least=least,
            most=most,
            threads=threads or (max(1, session.cores // most) if private else session.params.threads(1)),
            cpus=0.0 if private else session.params.reserved_cpus,
            # A replica's share is on one GPU, so with 3 GPUs and 4 replicas some GPU holds two.
            gpus=1 / math.ceil(2 * most / gpus) if session.use_gpu else 0.0,
            patience=session.params.placement_timeout_s,
        )


class Replica:
    """One process with a model."""

    def __init__(
        self, folder: str, threads: int, device: str, versions: Mapping[str, str] | None = None, engine: Engine = "torch"
    ) -> None:
        # Ray Serve may start it on a node that joined since.
        check_this_node(versions, use_gpu=device == "cuda")
        torch.set_num_threads(threads)
        self._model = Model(found(folder), device, engine)
        self._free = asyncio.Lock()

    async def answers(self, jobs: list[Job]) -> list[Answered]:
        """Answer all requests of a batch with one call of the encoder."""
        async with self._free:
            # In a thread, so that the next batch arrives meanwhile.
            return await asyncio.to_thread(self._model.answers, jobs)


def deploy(
    name: str,
    folder: str,
    scale: Scale,
    device: str,
    versions: Mapping[str, str] | None,
    *,
    stopping: Callable[[], bool],
    engine: Engine = "torch",
) -> DeploymentHandle:
    """Start the application `name` with a model and wait until it runs.

    Args:
        folder: the model's folder, by the name that `Session.share` gives it.
        device: `Session.device`.
        versions: `Session.versions`.
        stopping: whether the server ends meanwhile.

    Raises:
        UserError: it did not start in time, its replicas fail, or the server ends.
    """
    deployment: Any = serve.deployment(
        Replica,
        name=_DEPLOYMENT,
        ray_actor_options={"num_cpus": scale.cpus, "num_gpus": scale.gpus},
        max_ongoing_requests=CALLS,
        # A dead replica is noticed and replaced after at most this time, and one that hangs after three of those.
        health_check_period_s=1,
        health_check_timeout_s=5,
        max_constructor_retry_count=3,
        graceful_shutdown_wait_loop_s=0.1,
        autoscaling_config=AutoscalingConfig(
            min_replicas=scale.least,
            max_replicas=scale.most,
            target_ongoing_requests=_TARGET,
            upscale_delay_s=3,
            downscale_delay_s=60,
            look_back_period_s=15,
        ),
    )
    bound = deployment.bind(folder, scale.threads, device, versions, engine)
    app = serve.RunTarget(target=bound, name=name, route_prefix=None)
    try:
        (handle,) = serve.run_many([app], wait_for_applications_running=False)
        deadline = time.monotonic() + scale.patience
        while (status := serve.status().applications[name]).status != ApplicationStatus.RUNNING:
            overview = status.deployments.get(_DEPLOYMENT)
            # It may hold a traceback, whose last line says what is wrong.
            message = (overview or status).message
            reason = last_line(RuntimeError(message)) if message else "Ray Serve does not say why"
            # Ray Serve starts another replica in place of one that died after its start.
            being_replaced = overview is not None and overview.status_trigger == "HEALTH_CHECK_FAILED"
            if status.status in (ApplicationStatus.DEPLOY_FAILED, ApplicationStatus.UNHEALTHY) and not being_replaced:
                raise UserError(f"its replicas do not start: {reason}")
            if stopping():
                raise UserError("the server ends")
            if time.monotonic() > deadline:
                raise UserError(
                    f"it did not start within {scale.patience:g} s (cluster.placement_timeout_s in execution.yaml): {reason}; "
                    "is there room for another replica?"
                )
            time.sleep(0.1)
    except BaseException as error:
        # A server that ends is gone before Ray Serve has heard of it, and on a standing cluster its replicas would stay.
        serve.delete(name, _blocking=stopping())
        if isinstance(error, RayServeException | RuntimeError):
            raise UserError(str(error)) from None
        raise
    return handle


def sender(call: Callable[[list[Job]], Awaitable[list[Answered]]]) -> Send:
    """A call of a replica that raises `ReplicaDied` for what Ray raises when the replica is gone.

    An exception of our own code comes as RayTaskError, and would only repeat.
    """

    async def send(jobs: list[Job]) -> list[Answered]:
        try:
            return await call(jobs)
        except RayTaskError:
            raise
        except (RayError, RayServeException) as error:
            # It died, cannot be reached, or was killed for memory.
            raise ReplicaDied from error

    return send


class RayServe:
    """Models as applications of Ray Serve (`pipeline.serving.runtime.Runtime`)."""

    def __init__(self, session: Session, scale: Scale, engine: Engine) -> None:
        self.least = scale.least
        self.engine: Engine = engine
        self.patience = scale.patience
        self._session = session
        self._scale = scale

    def share(self, folder: Path) -> str:
        """Put a folder where all nodes find it."""
        return self._session.share(folder)

    def start(self, name: str, folder: str, stopping: Callable[[], bool]) -> Send:
        """Deploy an application."""
        on = self._session
        handle = deploy(name, folder, self._scale, on.device, on.versions, stopping=stopping, engine=self.engine)
        return sender(handle.answers.remote)

    def running(self, name: str) -> int:
        """Replicas that run."""
        app = serve.status().applications.get(name)
        states: Any = app.deployments[_DEPLOYMENT].replica_states if app is not None and _DEPLOYMENT in app.deployments else {}
        return int(states.get("RUNNING", 0))

    def end(self, name: str) -> None:
        """Delete an application."""
        serve.delete(name)


@contextmanager
def ray_serve(cluster: ClusterParams, least: int, most: int, threads: int | None, engine: Engine) -> Iterator[RayServe]:
    """Start Ray Serve on a private Ray or on the cluster at `cluster.address`.

    Raises:
        UserError: Ray does not start.
    """
    logger = logging.getLogger("ray.serve")
    logger.setLevel(logging.WARNING)
    # How many replicas fit is seen when they start; the number of training workers does not matter here.
    cluster = cluster.model_copy(update={"workers": 1, "min_workers": None})
    # Ray gives its processes a low priority (nice 15), but here people wait for them. A Ray that runs has its own setting.
    os.environ.setdefault("RAY_worker_niceness", "0")
    with session(cluster) as on:
        check_engine(engine, gpu=on.use_gpu)
        # No proxies: Ray Serve's own front loses the requests of a replica that dies, and cannot limit a request's size.
        serve.start(proxy_location="Disabled", logging_config={"log_level": "WARNING"})
        try:
            yield RayServe(on, Scale.on(on, least, most, private=not standing(cluster), threads=threads), engine)
        finally:
            # A thread of its handles outlives the Ray that ends now; otherwise it may log a traceback, because Ray has ended.
            logger.setLevel(logging.CRITICAL)
