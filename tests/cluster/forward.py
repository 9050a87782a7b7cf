"""Forwards TCP connections, as Docker does for the ports that it publishes: forward.py HOST:PORT=HOST:PORT …"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress

# The event loop alone does not keep them.
_RUNNING: set[asyncio.Task[object] | None] = set()
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await source.read(65536):
            target.write(data)
            await target.drain()
        target.write_eof()


def _to(host: str, port: int) -> Handler:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        _RUNNING.add(task)
        with suppress(OSError):
            there, back = await asyncio.open_connection(host, port)
            await asyncio.gather(_copy(reader, back), _copy(there, writer))
            back.close()
        writer.close()
        _RUNNING.discard(task)

    return handle


async def main() -> None:
    servers: list[asyncio.Server] = []
    for pair in sys.argv[1:]:
        (here, port), (host, target) = (end.rsplit(":", 1) for end in pair.split("="))
        servers.append(await asyncio.start_server(_to(host, int(target)), here, int(port)))
    await asyncio.gather(*(server.serve_forever() for server in servers))


if __name__ == "__main__":
    asyncio.run(main())
