"""What the hosts have in addition to Ray: an MLflow server, and a user's project."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.cluster.hosts import Host
from tests.gates import wait_for
from tests.stages.running import set_keys

BIN = Path(sys.executable).parent
# How often faults are repeated.
ROUNDS = int(os.environ.get("GAUSSCSE_ROUNDS", "1"))
assert 1 <= ROUNDS <= 3, "GAUSSCSE_ROUNDS: write 1, 2 or 3"
_MLFLOW = 5000


def small(backbone: Path) -> dict[str, Any]:
    """What makes params.yaml one of little data and few trials."""
    return {
        "data.generated": {"train": 1200, "dev": 240, "test": 240},
        "model.backbone": str(backbone),
        "tune.learning_rates": [2.0e-3],
        "tune.batch_sizes": [16],
        "tune.seeds": [1],
        "train.seeds": [1, 2],
        "train.precision": "fp32",
    }


class MlflowServer:
    """An MLflow server on a host, that can be stopped and started."""

    def __init__(self, host: Host, folder: Path) -> None:
        self.uri = f"http://{host.address}:{_MLFLOW}"
        self.database = f"sqlite:///{folder / 'mlflow.db'}"
        self.folder, self._host = folder, host

    def start(self) -> None:
        self._host.start(
            *(str(BIN / "mlflow"), "server", "--host", self._host.address, "--port", str(_MLFLOW), "--workers", "1"),
            *("--allowed-hosts", f"{self._host.address}:{_MLFLOW}"),
            *("--backend-store-uri", self.database, "--artifacts-destination", str(self.folder / "artifacts")),
            cwd=self.folder,
            env={"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
            log=self.folder / "server.log",
        )
        wait_for(self._answers, 60, f"MLflow's server: see {self.folder / 'server.log'}", every=0.3)

    def stop(self) -> None:
        for process in self._host.named("mlflow"):
            process.kill()

    def _answers(self) -> bool:
        code = f"import urllib.request; urllib.request.urlopen('{self.uri}/health', timeout=2)"
        return self._host.attempt(sys.executable, "-c", code, cwd=self.folder).returncode == 0


@dataclass(frozen=True)
class Project:
    """A project on the laptop that computes on the cluster."""

    root: Path
    storage: Path
    laptop: Host
    address: str
    env: Mapping[str, str]

    def repro(self, *arguments: str) -> str:
        return self.laptop.run(str(BIN / "dvc"), "repro", *arguments, cwd=self.root, env=self.env, timeout=600)

    def make(self, *arguments: str) -> str:
        """`make` without its first step, the environment: the hosts have the one that the tests run in."""
        return self.laptop.run("make", "-o", "setup", "-o", ".venv/.complete", *arguments, cwd=self.root, env=self.env)

    def set(self, file: str, changes: dict[str, Any]) -> None:
        set_keys(self.root, changes, file)

    def elsewhere(self, folder: Path) -> Project:
        """A copy with the same data and a storage of its own."""
        root = Path(shutil.copytree(self.root, folder / "project", symlinks=True))
        copy = replace(self, root=root, storage=folder / "storage")
        copy.set("execution.yaml", {"cluster.storage": str(copy.storage)})
        return copy


class Terminal:
    """A command on a terminal of its own, as somebody sees who sits there."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        self.code: int | None = None
        self._said = ""
        self._pid, self._end = pty.fork()
        if self._pid == 0:
            os.execvpe(command[0], list(command), dict(env))

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self.code is None:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
        os.close(self._end)

    def write(self, text: str) -> None:
        os.write(self._end, text.encode())

    def read_until(self, pattern: str | None, patience: float = 120) -> str:
        """What is said up to a pattern, or to the end of the command."""
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            if pattern is not None and (found := re.search(pattern, self._said)):
                said, self._said = self._said[: found.end()], self._said[found.end() :]
                return said
            if not select.select([self._end], [], [], 0.5)[0]:
                continue
            try:
                self._said += os.read(self._end, 65536).decode(errors="replace")
            except OSError:
                # Nobody has the other end any more.
                self.code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
                assert pattern is None, self._said
                return self._said
        raise AssertionError(f"{pattern!r} was not seen within {patience:g} seconds: {self._said}")
