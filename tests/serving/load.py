"""Clients that ask all the time, each time about other sentences, and what they were answered."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.serving.server import Server

WORDS = ("dog", "child", "woman", "horse", "singer", "pilot", "teacher", "bird")


@dataclass
class Load:
    """The answers so far: sentences, status, body."""

    answers: list[tuple[str, str, int, Any]] = field(default_factory=list)
    faults: list[BaseException] = field(default_factory=list)
    sent: int = 0

    def number(self) -> int:
        return len(self.answers)


@contextmanager
def load(server: Server, clients: int) -> Iterator[Load]:
    """Ask while the block runs; at its end, all clients have their last answer."""
    taken, over = Load(), threading.Event()

    def client(own: int) -> None:
        count = 0
        while not over.is_set():
            a, b = f"The {WORDS[count % 8]} number {own * 1_000_000 + count} runs.", f"Somebody with number {count} moves."
            count += 1
            taken.sent += 1
            try:
                status, body = server.ask("/similarity", {"a": [a], "b": [b]})
            except BaseException as error:
                taken.faults.append(error)
                return
            taken.answers.append((a, b, status, body))

    threads = [threading.Thread(target=client, args=(own,)) for own in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield taken
    finally:
        over.set()
        for thread in threads:
            thread.join()
