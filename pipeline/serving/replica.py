"""The Ray Serve application of one version: replicas that hold its encoder and answer requests in batches."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import ray
import torch
from numpy.typing import NDArray
from ray import serve
from ray.serve.config import AutoscalingConfig
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from ray.serve.schema import ApplicationStatus

from pipeline.cluster.session import Session, check_this_node
from pipeline.gaussian.distribution import Gaussian
from pipeline.models.encoder import GaussianEncoder
from pipeline.storage.object_store import found
from pipeline.utils.errors import UserError, last_line

CALLS = 2
"""Calls that a replica is sent at once: it computes one while the other waits, so it is never idle in between."""
# How many the autoscaler wants a replica to have: a second call that always waits asks for another replica.
_TARGET = 1.5
_DEPLOYMENT = "encoder"


class Job(NamedTuple):
    """What one request asks of a model."""

    operation: str
    """encode, query, means, similarity, score, relation, or one of `GaussianEncoder.operations`."""
    first: list[str]
    second: list[str] = []  # noqa: RUF012 (never changed)
    write: bool = False
    """Whether the model writes what the output says."""


class Gaussians(NamedTuple):
    """Answer to encode: (n, D) each."""

    mean: NDArray[np.float32]
    log_var: NDArray[np.float32]


class Means(NamedTuple):
    """Answer to means: (n, D), and the tokens of all sentences together."""

    mean: NDArray[np.float32]
    tokens: int


class Operated(NamedTuple):
    """Answer to an operation of the model: (n, D), and what it writes for them."""

    mean: NDArray[np.float32]
    texts: list[str] | None


class Answered(NamedTuple):
    """The answer to a request, and how its texts were read."""

    value: Answer
    cut: int
    """Texts that were longer than the model reads."""
    unknown: int
    """Texts with many words or characters that the model does not know."""


Answer = Gaussians | Gaussian | Means | Operated | list[float] | list[list[float]]
"""Gaussians, the Gaussian of a query with its token vectors, Means, Operated, (n,) similarities sim(first‖second) or scores of
"first entails second", or (n, 4) probabilities of the relations."""


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
    def on(session: Session, least: int, most: int, *, private: bool) -> Scale:
        """What replicas may take, such that a second model fits while it replaces the first.

        On a private Ray, the machine is ours, so no cores are reserved. A GPU is shared by replicas of both models. A standing
        cluster must have cores for both.
        """
        gpus = ray.cluster_resources().get("GPU", 0.0)
        return Scale(
            least=least,
            most=most,
            threads=max(1, session.cores // most) if private else session.params.threads(1),
            cpus=0.0 if private else session.params.reserved_cpus,
            # A replica's share is on one GPU, so with 3 GPUs and 4 replicas some GPU holds two.
            gpus=1 / math.ceil(2 * most / gpus) if session.use_gpu else 0.0,
            patience=session.params.placement_timeout_s,
        )


class Replica:
    """One process with a model."""

    def __init__(self, folder: str, threads: int, device: str, versions: Mapping[str, str] | None = None) -> None:
        # Ray Serve may start it on a node that joined since.
        check_this_node(versions, use_gpu=device == "cuda")
        torch.set_num_threads(threads)
        # Compares all files with their sums, also when Ray Serve replaces a dead replica.
        self._encoder = GaussianEncoder.from_pretrained(found(folder)).to(device)
        self._free = asyncio.Lock()

    async def answers(self, jobs: list[Job]) -> list[Answered]:
        """Answer all requests of a batch with one call of the encoder."""
        async with self._free:
            # In a thread, so that the next batch arrives meanwhile.
            return await asyncio.to_thread(self._answers, jobs)

    @torch.inference_mode()
    def _answers(self, jobs: list[Job]) -> list[Answered]:
        encoder = self._encoder
        encoded, reading = encoder.encode_counted([text for job in jobs for text in (*job.first, *job.second)])
        answers: list[Answered] = []
        start = 0
        for job in jobs:
            middle = start + len(job.first)
            stop = middle + len(job.second)
            seen = reading.of(slice(start, stop))
            value = self._answer(job, encoded[start:middle], encoded[middle:stop], int(seen.tokens.sum()))
            answers.append(Answered(value, int(seen.cut.sum()), seen.strange))
            start = stop
        return answers

    def _answer(self, job: Job, first: Gaussian, second: Gaussian, tokens: int) -> Answer:
        encoder = self._encoder
        match job.operation:
            case "encode":
                return Gaussians(first.mean.numpy(), first.log_var.numpy())
            case "query":
                # Copies: torch sends the whole batch that a part belongs to.
                vectors = first.tokens and first.tokens.packed()
                return Gaussian(first.mean.clone(), first.log_var.clone(), tokens=vectors)
            case "means":
                return Means(first.mean.numpy(), tokens)
            case "similarity":
                return encoder.similarity(first, second).tolist()
            case "score":
                return encoder.score(first, second).tolist()
            case "relation":
                return torch.stack(encoder.relation(first, second), 1).tolist()
            case operation:
                output = encoder.operate(operation, *((first, second) if job.second else (first,)))
                return Operated(output.numpy(), encoder.write(output) if job.write else None)


def deploy(
    name: str, folder: str, scale: Scale, device: str, versions: Mapping[str, str] | None, *, stopping: Callable[[], bool]
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
    app = serve.RunTarget(target=deployment.bind(folder, scale.threads, device, versions), name=name, route_prefix=None)
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


def replicas_of(name: str) -> int:
    """Replicas of an application that run now."""
    app = serve.status().applications.get(name)
    states: Any = app.deployments[_DEPLOYMENT].replica_states if app is not None and _DEPLOYMENT in app.deployments else {}
    return int(states.get("RUNNING", 0))
