"""The containers of deploy/compose.yaml as hosts, each with a root, a name and an environment of its own, and its own command.

What Docker does is done here. Names of services and aliases resolve by /etc/hosts. Configs and volumes are mounted at their
targets. A service starts once those it depends on are healthy by their own checks. The laptop's 127.0.0.1 forwards what is
published. The programs are this machine's and not an image's, so they run as root, and what they take of cores and memory has no
limit. The containers see the other files of this machine, too, except those of folders that are empty in each of them.

Two images are neither Debian's nor PyPI's. In place of PostgreSQL's, Debian's PostgreSQL is set up as the image's entrypoint does
it. In place of Versity's gateway, moto's server answers at the same name and port. It takes any key.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

from tests.cluster.hosts import Host
from tests.cluster.lab import BIN
from tests.conftest import ROOT
from tests.deploy.composed import FOLDER
from tests.registry.servers import postgres_programs

# A root of the host's own: this machine's, with copies of /etc, an empty /run, and what is mounted in a container.
_ROOT = """
root=$1 shm=$2 name=$3 hosts=$4
shift 4
mount -t tmpfs -o mode=755 none "$root"
for entry in /*; do
    case $entry in
    /run) mkdir "$root/run" ;;
    /etc) cp -a /etc "$root/etc" ;;
    *)
        if [ -d "$entry" ] && [ ! -L "$entry" ]; then
            mkdir "$root$entry"
            mount --rbind "$entry" "$root$entry"
        else
            cp -a "$entry" "$root$entry"
        fi
        ;;
    esac
done
install -d -o postgres "$root/run/postgresql"
mount -o "remount,size=$shm" "$root/dev/shm"
cp "$hosts" "$root/etc/hosts"
: > "$root/etc/resolv.conf"
while [ $# -gt 0 ]; do
    source=$1 target=$2 parent=$(dirname "$2")
    shift 2
    case $parent in
    / | /etc/*) mkdir -p "$root$parent" ;;
    *) mount -t tmpfs -o mode=755 none "$root$parent" ;;
    esac
    if [ -d "$source" ]; then mkdir "$root$target"; else : > "$root$target"; fi
    mount --bind "$source" "$root$target"
done
mkdir "$root/.machine"
pivot_root "$root" "$root/.machine"
cd /
umount --lazy /.machine
rmdir /.machine
hostname "$name"
"""

# What the entrypoint of the image `postgres` does with an empty volume.
_POSTGRES = """
set -e
cd /
initdb --username="$POSTGRES_USER" --pwfile=<(printf '%s\\n' "$POSTGRES_PASSWORD") > /dev/null
echo 'host all all all scram-sha-256' >> "$PGDATA/pg_hba.conf"
pg_ctl --options="-c listen_addresses=''" --wait start
[ "$POSTGRES_DB" = postgres ] || createdb --username="$POSTGRES_USER" "$POSTGRES_DB"
pg_ctl --mode=fast --wait stop
exec postgres -c listen_addresses='*'
"""
LAPTOP = "laptop"
"""The machine on which Docker would run: the ports are published here."""


def containers_of(compose: Mapping[str, Any], *profiles: str) -> dict[str, str]:
    """Container → its service, of all that `docker compose up` starts with these profiles."""
    made: dict[str, str] = {}
    for name, service in compose["services"].items():
        if not service.get("profiles") or set(profiles).intersection(service["profiles"]):
            count = service.get("deploy", {}).get("replicas")
            made |= {name: name} if count is None else {f"{name}-{number}": name for number in range(1, count + 1)}
    return made


def image_environment() -> dict[str, str]:
    """ENV of deploy/Dockerfile."""
    text = (FOLDER / "Dockerfile").read_text(encoding="utf-8")
    block = re.search(r"^ENV (?:.*\\\n)*.*$", text, re.MULTILINE)
    assert block is not None
    return dict(re.findall(r"(\w+)=(\S+)", block[0]))


def own_root(host: Host, folder: Path, names: str, *mounts: str, shm: str = "50%") -> None:
    """Give a host a root and a name of its own, before anything runs on it.

    Args:
        folder: where something of it may be made.
        names: lines of its /etc/hosts, in addition to those of every machine.
        mounts: a file or folder and where it is mounted, and so on.
        shm: the size of its /dev/shm.
    """
    root, file = folder / f"{host.name}.root", folder / f"{host.name}.hosts"
    root.mkdir()
    file.write_text(f"127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n{names}", encoding="ascii")
    host.run("sh", "-ec", _ROOT, "sh", str(root), shm, host.name, str(file), *mounts, cwd=Path("/"))
    # Docker's networks have a gateway; without one, Ray takes 127.0.0.1 for the address of a node.
    subprocess.run(["ip", "-n", host.namespace, "route", "add", "default", "via", "10.213.7.254"], check=True)


@dataclass(frozen=True)
class _Container:
    name: str
    service: Mapping[str, Any]
    process: subprocess.Popen[bytes]
    log: Path


class Containers:
    """All that `docker compose up` starts, on hosts.

    Args:
        compose: deploy/compose.yaml with its values.
        of: container → its service.
        hosts: one for each container, and the laptop.
        folder: for volumes, homes and logs.
        empty: folders of this machine that each container has for itself, empty at first.
    """

    def __init__(
        self,
        compose: Mapping[str, Any],
        of: Mapping[str, str],
        hosts: Mapping[str, Host],
        folder: Path,
        empty: Sequence[Path] = (),
    ) -> None:
        self.hosts, self.folder, self._empty = hosts, folder, empty
        self._compose, self._of = compose, of
        self._services: Mapping[str, Mapping[str, Any]] = compose["services"]
        self._running: dict[str, list[_Container]] = {}

    def up(self, *services: str) -> None:
        """`docker compose up --wait SERVICE ...`, with what they depend on that does not run yet."""
        before = {name: set(self._services[name].get("depends_on", {})) for name in services}
        new = [service for service in TopologicalSorter(before).static_order() if service not in self._running]
        for service in new:
            for other, how in self._services[service].get("depends_on", {}).items():
                self._wait(other, how["condition"])
            self._start(service)
        for service in new:
            if "healthcheck" in self._services[service]:
                self._wait(service, "service_healthy")
            for container in self._running[service]:
                assert container.process.poll() in (None, 0), self._said(container)
        self._publish(new)

    def stop(self, container: str) -> int:
        """`docker compose stop`; the exit status, within the time after which Docker kills."""
        (running,) = (one for its in self._running.values() for one in its if one.name == container)
        running.process.terminate()
        return running.process.wait(int(str(running.service["stop_grace_period"]).removesuffix("s")))

    def environment(self, container: str) -> dict[str, str]:
        """The environment of a container: of its image, then of compose.yaml, and no other."""
        service = self._services[self._of[container]]
        home = self.folder / container
        home.mkdir(exist_ok=True)
        env = {"PATH": f"{BIN}:{postgres_programs()}:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(home)}
        if service["image"].startswith("gausscse"):
            # Ray lets everything else go before its workers. In its own container, that is nothing.
            env |= {**image_environment(), "RAY_worker_niceness": "0"}
            if service["image"] == "gausscse-serve":
                # The stage of the Dockerfile that installs the code.
                env["PYTHONPATH"] = str(ROOT)
        elif service["image"].startswith("postgres:"):
            env |= {"PGDATA": "/var/lib/postgresql/data", "LANG": "C.UTF-8"}
        else:
            # Or a name with dots is one of a bucket.
            env |= {"S3_IGNORE_SUBDOMAIN_BUCKETNAME": "true"}
        return env | {name: str(value) for name, value in service.get("environment", {}).items()}

    def run(self, container: str, *command: str, **env: str) -> subprocess.CompletedProcess[str]:
        """`docker compose exec`: a command with the environment of a container, and some more."""
        environment = {**self.environment(container), **env}
        return self.hosts[container].attempt(*command, cwd=self.folder / container, env=environment)

    def command(self, service: str) -> list[str]:
        """What is run for a service, in place of its image's entrypoint where that is not to be had."""
        image, command = self._services[service]["image"], list(self._services[service].get("command", []))
        if image.startswith("postgres:"):
            return ["runuser", "--user=postgres", "--", "bash", "-c", _POSTGRES]
        if image.startswith("versity/"):
            return ["moto_server", "--host=0.0.0.0", f"--port={command[command.index('--port') + 1].removeprefix(':')}"]
        assert image.startswith("gausscse")
        return command

    def _root(self, container: str) -> None:
        """Give a host what a container has of its own."""
        service = self._services[self._of[container]]
        mounts: list[str] = []
        for config in service.get("configs", []):
            mounts += [str(FOLDER / self._compose["configs"][config["source"]]["file"]), config["target"]]
        for volume in service.get("volumes", []):
            name, _, target = volume.partition(":")
            source = self.folder / "volumes" / name
            source.mkdir(parents=True)
            if service["image"].startswith("postgres:"):
                shutil.chown(source, "postgres")
            mounts += [str(source), target]
        shm = str(service.get("shm_size", "64mb")).removesuffix("b")
        own_root(self.hosts[container], self.folder, self._names(), *mounts, shm=shm)
        for folder in self._empty:
            self.hosts[container].run("mount", "-t", "tmpfs", "-o", "mode=700", "none", str(folder), cwd=Path("/"))

    def _names(self) -> str:
        lines: list[str] = []
        for container, service in self._of.items():
            aliases = self._services[service].get("networks", {}).get("default", {}).get("aliases", [])
            names = dict.fromkeys([container, service, *aliases])
            lines.append(f"{self.hosts[container].address} {' '.join(names)}\n")
        return "".join(lines)

    def _start(self, service: str) -> None:
        running = self._running.setdefault(service, [])
        for container in (name for name, its in self._of.items() if its == service):
            self._root(container)
            log, env = self.folder / f"{container}.log", self.environment(container)
            process = self.hosts[container].start(*self.command(service), cwd=self.folder / container, env=env, log=log)
            running.append(_Container(container, self._services[service], process, log))

    def _wait(self, service: str, condition: str) -> None:
        for container in self._running[service]:
            if condition == "service_completed_successfully":
                assert container.process.wait(300) == 0, self._said(container)
            else:
                assert condition == "service_healthy"
                self._wait_until_healthy(container)

    def _wait_until_healthy(self, container: _Container) -> None:
        check = container.service["healthcheck"]
        kind, *command = check["test"]
        if kind == "CMD-SHELL":
            command = ["/bin/sh", "-c", *command]
        if container.service["image"].startswith("versity/"):
            # The check of the gateway is at an address of its own.
            command = [word.replace("/health", "/moto-api/") for word in command]
        deadline = time.monotonic() + int(check["interval"].removesuffix("s")) * check["retries"]
        while self.run(container.name, *command).returncode:
            assert container.process.poll() is None, self._said(container)
            assert time.monotonic() < deadline, f"{check} does not come true\n{self._said(container)}"
            time.sleep(1)

    def _publish(self, services: Sequence[str]) -> None:
        pairs: list[str] = []
        for container, service in self._of.items():
            for port in self._services[service].get("ports", []) if service in services else []:
                here, _, there = port.rpartition(":")
                pairs.append(f"{here}={self.hosts[container].address}:{there}")
        script = str(Path(__file__).with_name("forward.py"))
        env = {"PATH": os.environ["PATH"]}
        self.hosts[LAPTOP].start(sys.executable, script, *pairs, cwd=self.folder, env=env, log=self.folder / "ports.log")

    def _said(self, container: _Container) -> str:
        return f"{container.name}: {container.log.read_text(encoding='utf-8', errors='replace')[-4000:]}"
