"""Runs the front and follows the champion, until the process is asked to end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import uvicorn

from pipeline.config.execution import ClusterParams
from pipeline.config.job_inputs import standing
from pipeline.models.model_dir import Engine, check_engine
from pipeline.serving.api import create_app
from pipeline.serving.champion import ChampionFollower
from pipeline.serving.connections import BURST, BoundedHttp, Connections
from pipeline.serving.guard import Guard
from pipeline.serving.limits import Limits
from pipeline.serving.metrics import Metrics
from pipeline.serving.runtime import InProcess, Runtime
from pipeline.utils.cores import cores
from pipeline.utils.errors import UserError, counted
from pipeline.utils.logs import log

# Connections that may wait to be accepted.
_BACKLOG = 2048


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of the command line."""

    name: str
    """The registered model."""
    tracking_uri: str
    host: str
    port: int
    tokens: Sequence[str]
    every: float
    """Seconds between two looks at the alias."""
    corpora: Sequence[str]
    least: int
    most: int
    threads: int | None
    """Threads of a replica."""
    engine: Engine
    limits: Limits


def run(settings: Settings, cluster: ClusterParams) -> None:
    """Serve until SIGTERM or Ctrl-C; requests in progress are answered first.

    Raises:
        UserError: Ray does not start, or the port is taken.
    """
    # First, so that a port that is taken is noticed at once. Connections wait until the front runs.
    with _listening(settings.host, settings.port) as listening, _runtime(settings, cluster) as runtime:
        try:
            asyncio.run(_serve(settings, runtime, listening))
        except KeyboardInterrupt:
            # Ctrl-C and SIGTERM, once all requests are answered.
            raise KeyboardInterrupt("all requests were answered") from None


@contextmanager
def _runtime(settings: Settings, cluster: ClusterParams) -> Iterator[Runtime]:
    """The models in this process if there is one replica, on the processor of this machine; otherwise Ray Serve's."""
    gpu = cluster.device == "cuda" or (cluster.device == "auto" and torch.cuda.is_available())
    check_engine(settings.engine, gpu=gpu)
    if settings.most > 1 or gpu or standing(cluster):
        # Ray takes seconds to import, and memory.
        from pipeline.serving.replica import ray_serve

        with ray_serve(cluster, settings.least, settings.most, settings.threads, settings.engine) as runtime:
            yield runtime
    else:
        threads = settings.threads or cores()
        log.info(f"serve: the model runs in this process by {settings.engine}, {counted(threads, 'thread')} (--threads)")
        yield InProcess(threads, cluster.placement_timeout_s, settings.engine)


class _Server(uvicorn.Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start; asyncio has taken the number that it accepts at once for the number that may wait, too."""
        await super().startup(sockets)
        for listening in sockets or ():
            listening.listen(_BACKLOG)


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise UserError(f"--port {port}: cannot be opened at {host} ({error.strerror or error}); is it taken?") from None
    # Connections inherit it. asyncio sets it only on sockets that it makes itself. Without it, the body of an answer waits 40 ms
    # until the client acknowledges its headers.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


async def _serve(settings: Settings, runtime: Runtime, listening: socket.socket) -> None:
    metrics, limits = Metrics(), settings.limits
    champion = ChampionFollower(
        settings.name, settings.tracking_uri, runtime, settings.corpora, metrics, limits.seconds, settings.every
    )
    app = create_app(champion, limits, metrics, token=bool(settings.tokens))
    connections = Connections(limits)
    protocol: Any = partial(BoundedHttp, connections)
    config = uvicorn.Config(
        Guard(app, app.openapi()["paths"], limits, settings.tokens, metrics),
        http=protocol,
        ws="none",
        # Its warnings are about malformed requests, and clients could fill the disk with them.
        log_level="error",
        backlog=BURST,
        access_log=False,
        server_header=False,
        # Longer than proxies keep a connection that they do not use (60 s in nginx and AWS), so that it is they who close it. A
        # request that meets a server that just closed is lost.
        timeout_keep_alive=75,
        timeout_graceful_shutdown=limits.seconds,
    )
    following, watching = asyncio.create_task(champion.follow()), asyncio.create_task(connections.watch())
    host, port = listening.getsockname()[:2]
    log.info(f"serve: {settings.name}@champion at http://{f'[{host}]' if ':' in host else host}:{port}, its API at /docs")
    try:
        await _Server(config).serve([listening])
    finally:
        watching.cancel()
        champion.stop()
        # Together: `follow` may be fetching a model's files, which takes long and cannot be stopped. If this process is killed
        # meanwhile, its replicas on a standing cluster stay.
        await _uncancelled(asyncio.gather(following, champion.close()))


async def _uncancelled(work: asyncio.Future[Any]) -> None:
    """Do the work to its end. uvicorn passes Ctrl-C on to asyncio, which cancels the task that is about to clean up."""
    cancelled = False
    while not work.done():
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError
