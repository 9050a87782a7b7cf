"""Hosts on one machine: network namespaces with an address each, joined by a switch, each with mounts and processes of its own.

Every host has its link as `eth0`, its own /tmp/ray and /dev/shm, and shares the rest of the file system: that is the folder all
nodes of a cluster see. Only root may make them.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

_BIN = Path(sys.executable).parent
_GCS, _DASHBOARD = 6379, 8265


def needed(*programs: str, variable: str = "GAUSSCSE_REQUIRE_HOSTS", reason: str = "") -> None:
    """Skip if a program is not installed, or for another reason; fail where the variable is set."""
    missing = [name for name in programs if shutil.which(name) is None]
    if why := f"not installed: {', '.join(missing)}" if missing else reason:
        if os.environ.get(variable):
            pytest.fail(f"{variable} is set, but {why}")
        pytest.skip(why)


def hosts_can_be_made() -> None:
    """Skip where they cannot, or fail where they have to be: only root may make them."""
    needed("ip", "unshare", "nsenter")
    tried = "ip link add name sw0 type bridge && mount -t tmpfs none /mnt"
    done = subprocess.run(["unshare", "--mount", "--net", "sh", "-c", tried], capture_output=True, text=True)
    needed(reason=f"this machine makes no network namespaces: {done.stderr}" if done.returncode else "")


@dataclass
class Host:
    """A host: what runs on it is started with `command` before it, in the root folder."""

    name: str
    address: str
    namespace: str
    port: str
    """Its end of the cable at the switch."""
    switch: str
    anchor: subprocess.Popen[bytes]
    env: dict[str, str] = field(default_factory=dict)

    @property
    def command(self) -> list[str]:
        return ["nsenter", f"--target={self.anchor.pid}", "--mount", "--net", "--uts"]

    def start(self, *arguments: str, cwd: Path, env: Mapping[str, str] | None = None, log: Path) -> subprocess.Popen[bytes]:
        """Start a command on the host; its output goes to the end of a file."""
        with log.open("ab") as out:
            return subprocess.Popen(
                # nsenter goes to the root of the host's mounts.
                [*self.command, "env", f"--chdir={cwd}", *arguments],
                env={**self.env, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    def run(self, *arguments: str, cwd: Path, env: Mapping[str, str] | None = None, timeout: float = 300) -> str:
        """Run a command on the host, which succeeds; what it said."""
        done = self.attempt(*arguments, cwd=cwd, env=env, timeout=timeout)
        assert done.returncode == 0, f"{arguments} on {self.name}: {done.returncode}\n{done.stdout[-4000:]}"
        return done.stdout

    def attempt(
        self, *arguments: str, cwd: Path, env: Mapping[str, str] | None = None, timeout: float = 300
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the host to its end."""
        return subprocess.run(
            [*self.command, "env", f"--chdir={cwd}", *arguments],
            env={**self.env, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
        )

    def processes(self) -> list[psutil.Process]:
        """Everything that runs on the host, its anchor aside."""
        listed = subprocess.run(["ip", "netns", "pids", self.namespace], capture_output=True, text=True, check=True)
        found: list[psutil.Process] = []
        for number in listed.stdout.split():
            with suppress(psutil.NoSuchProcess):
                if int(number) != self.anchor.pid:
                    found.append(psutil.Process(int(number)))
        return found

    def named(self, part: str) -> list[psutil.Process]:
        """Processes of the host with `part` in their command line."""
        found: list[psutil.Process] = []
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                if part in " ".join(process.cmdline()):
                    found.append(process)
        return found

    def end(self, part: str) -> None:
        """Kill the processes of the host with `part` in their command line, if there are any."""
        for process in self.named(part):
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def received(self) -> int:
        """Bytes that came over its cable."""
        shown = subprocess.run(
            ["ip", "-n", self.namespace, "-json", "-stats", "link", "show", "eth0"], capture_output=True, text=True, check=True
        )
        return int(json.loads(shown.stdout)[0]["stats64"]["rx"]["bytes"])

    def kill(self) -> None:
        """The power goes: everything on it dies at once."""
        while left := self.processes():
            for process in left:
                with suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGKILL)
            time.sleep(0.05)

    def seal(self, disk: Path, *, sealed: bool) -> None:
        """Make a disk read-only for this host alone, or writable again."""
        if not sealed:
            subprocess.run([*self.command, "umount", "--lazy", str(disk)], check=True)
            return
        # A read-only view is mounted over it: the disk itself cannot be made read-only while files on it are open.
        subprocess.run([*self.command, "mount", "--bind", str(disk), str(disk)], check=True)
        subprocess.run([*self.command, "mount", "-o", "remount,bind,ro", str(disk)], check=True)

    @contextmanager
    def small_disk(self, folder: Path, size: str) -> Iterator[Path]:
        """While the block runs, a folder is a disk of this host alone, which only this user can use.

        Args:
            size: as `mount` writes it.

        Yields:
            the folder, as a process outside the host reaches it.
        """
        root = Path("/")
        self.run("mkdir", "-p", str(folder), cwd=root)
        self.run("mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "none", str(folder), cwd=root)
        try:
            yield Path(f"/proc/{self.anchor.pid}/root") / folder.relative_to("/")
        finally:
            self.run("umount", "--lazy", str(folder), cwd=root)

    @contextmanager
    def poor_link(self, lost: int, speed: str) -> Iterator[None]:
        """While the block runs, packets to this host are dropped at random, and what it sends goes out slowly.

        Args:
            lost: of a hundred packets.
            speed: as `tc` writes it; what waits longer than 400 ms to be sent is dropped, too.
        """
        rules = (
            "add table inet poor",
            "add chain inet poor input { type filter hook input priority 0; }",
            f'add rule inet poor input iifname "eth0" numgen random mod 100 < {lost} counter drop',
        )
        root = Path("/")
        with ExitStack() as stack:
            stack.callback(self.run, "nft", "delete table inet poor", cwd=root)
            self.run("nft", "; ".join(rules), cwd=root)
            queue = ("tbf", "rate", speed, "burst", "32kb", "latency", "400ms")
            self.run("tc", "qdisc", "add", "dev", "eth0", "root", *queue, cwd=root)
            stack.callback(self.run, "tc", "qdisc", "del", "dev", "eth0", "root", cwd=root)
            yield

    def lost(self) -> int:
        """Packets that its poor link has lost so far."""
        listed = json.loads(self.run("nft", "--json", "list", "table", "inet", "poor", cwd=Path("/")))["nftables"]
        (rule,) = (entry["rule"]["expr"] for entry in listed if "rule" in entry)
        return next(part["counter"]["packets"] for part in rule if "counter" in part)

    def cable(self, *, plugged: bool) -> None:
        """Pull the network cable, or put it back."""
        state = "up" if plugged else "down"
        subprocess.run(["ip", "-n", self.switch, "link", "set", self.port, state], check=True)


@contextmanager
def network(names: Sequence[str], env: Mapping[str, str]) -> Iterator[dict[str, Host]]:
    """Hosts of these names, joined by a switch; removed with all that runs on them.

    Args:
        env: the environment of what is started on them.
    """
    tag = f"gausscse-{secrets.token_hex(3)}"
    switch = f"{tag}-switch"

    def ip(*arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True, capture_output=True)

    with ExitStack() as stack:
        ip("netns", "add", switch)
        stack.callback(ip, "netns", "del", switch)
        ip("-n", switch, "link", "add", "name", "sw0", "type", "bridge")
        ip("-n", switch, "link", "set", "sw0", "up")
        hosts: dict[str, Host] = {}
        for number, name in enumerate(names, start=1):
            namespace, port, address = f"{tag}-{name}", f"port{number}", f"10.213.7.{number}"
            ip("netns", "add", namespace)
            stack.callback(ip, "netns", "del", namespace)
            ip("link", "add", port, "netns", switch, "type", "veth", "peer", "name", "eth0", "netns", namespace)
            ip("-n", switch, "link", "set", port, "master", "sw0", "up")
            ip("-n", namespace, "address", "add", f"{address}/24", "dev", "eth0")
            ip("-n", namespace, "link", "set", "eth0", "up")
            ip("-n", namespace, "link", "set", "lo", "up")
            anchor = _anchor(namespace)
            stack.callback(_end, anchor)
            host = Host(name, address, namespace, port, switch, anchor, dict(env))
            stack.callback(host.kill)
            hosts[name] = host
        yield hosts


def _anchor(namespace: str) -> subprocess.Popen[bytes]:
    """A process that holds a host's network, and mounts and a name of its own; the name is this machine's until it is changed."""
    mounts = "mkdir -p /tmp/ray && mount -t tmpfs none /tmp/ray && mount -t tmpfs none /dev/shm"
    anchor = subprocess.Popen(
        [
            "nsenter",
            f"--net=/run/netns/{namespace}",
            "unshare",
            "--mount",
            "--uts",
            "sh",
            "-c",
            f"{mounts} && echo ready && exec sleep infinity",
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    assert anchor.stdout is not None
    assert anchor.stdout.readline() == b"ready\n"
    return anchor


def _end(anchor: subprocess.Popen[bytes]) -> None:
    anchor.kill()
    anchor.wait()
    if anchor.stdout is not None:
        anchor.stdout.close()


class Cluster:
    """A standing Ray cluster on hosts: the head runs what drives jobs, the others the workers. Token authentication is on."""

    def __init__(self, hosts: Mapping[str, Host], head: str, folder: Path) -> None:
        self.hosts, self.head, self._folder = hosts, hosts[head], folder
        token = folder / "token"
        token.write_text(secrets.token_hex(32), encoding="ascii")
        token.chmod(0o600)
        self.env = {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            "RAY_USAGE_STATS_ENABLED": "0",
            # To the S3 server of a test.
            "AWS_ACCESS_KEY_ID": "an-id",
            "AWS_SECRET_ACCESS_KEY": "a-secret",
            # A job that is told to stop gets time for its checkpoints.
            "RAY_JOB_STOP_WAIT_TIME_S": "40",
        }

    @property
    def address(self) -> str:
        """Where jobs are sent."""
        return f"http://{self.head.address}:{_DASHBOARD}"

    @property
    def gcs(self) -> str:
        """Where a process on one of the hosts joins."""
        return f"{self.head.address}:{_GCS}"

    def start(self, name: str, cpus: int, **env: str) -> None:
        """Start Ray on a host, also where it has ended.

        Args:
            env: more of its environment.
        """
        self.hosts[name].run(*self.command(name, cpus), cwd=self._folder, env={**self.env, **env})

    def command(self, name: str, cpus: int) -> list[str]:
        """What starts Ray on a host."""
        host = self.hosts[name]
        where = (
            ["--head", f"--port={_GCS}", f"--dashboard-host={host.address}", f"--dashboard-port={_DASHBOARD}"]
            if host is self.head
            else [f"--address={self.gcs}"]
        )
        return [
            *(str(_BIN / "ray"), "start", *where, f"--node-ip-address={host.address}", f"--num-cpus={cpus}"),
            *("--object-store-memory=100000000", "--disable-usage-stats"),
        ]
