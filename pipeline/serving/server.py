"""Runs the front and follows the champion, until the process is asked to end."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import uvicorn
from ray import serve

from pipeline.cluster.session import Session, session, standing
from pipeline.config.execution import ClusterParams
from pipeline.serving.api import create_app
from pipeline.serving.champion import ChampionFollower
from pipeline.serving.connections import BURST, BoundedHttp, Connections
from pipeline.serving.guard import Guard
from pipeline.serving.limits import Limits
from pipeline.serving.metrics import Metrics
from pipeline.serving.replica import Scale
from pipeline.utils.errors import UserError
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
    limits: Limits


def run(settings: Settings, cluster: ClusterParams) -> None:
    """Serve until SIGTERM or Ctrl-C; requests in progress are answered first.

    Raises:
        UserError: Ray does not start, or the port is taken.
    """
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    # First, so that a port that is taken is noticed at once. Connections wait until the front runs.
    listening = _listening(settings.host, settings.port)
    # How many replicas fit is seen when they start; the number of training workers does not matter here.
    cluster = cluster.model_copy(update={"workers": 1, "min_workers": None})
    # Ray gives its processes a low priority (nice 15), but here people wait for them. A Ray that runs has its own setting.
    os.environ.setdefault("RAY_worker_niceness", "0")
    with listening, session(cluster) as on:
        scale = Scale.on(on, settings.least, settings.most, private=not standing(cluster))
        # No proxies: Ray Serve's own front loses the requests of a replica that dies, and cannot limit a request's size.
        serve.start(proxy_location="Disabled", logging_config={"log_level": "WARNING"})
        try:
            asyncio.run(_serve(settings, on, scale, listening))
        except KeyboardInterrupt:
            # Ctrl-C and SIGTERM, once all requests are answered.
            raise KeyboardInterrupt("all requests were answered") from None
        finally:
            # A thread of its handles outlives the Ray that ends now; otherwise it may log a traceback, because Ray has ended.
            logging.getLogger("ray.serve").setLevel(logging.CRITICAL)


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


async def _serve(settings: Settings, on: Session, scale: Scale, listening: socket.socket) -> None:
    metrics, limits = Metrics(), settings.limits
    champion = ChampionFollower(
        settings.name, settings.tracking_uri, on, scale, settings.corpora, metrics, limits.seconds, settings.every
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
