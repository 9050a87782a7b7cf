"""The services of deploy/compose.yaml on hosts of their own: the same commands, environments, files and names, without Docker.

What Docker would do is done here: names of services and aliases in /etc/hosts, configs and volumes as mounts, ports of the
machine forwarded to the containers. Two programs are not those of the images: PostgreSQL is the machine's own, set up as the
image does it, and moto's S3 server takes the place of Versity's gateway, which is in no package registry.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from gates import wait_for

from tests.cluster.hosts import Host, network
from tests.registry.servers import postgres_programs

BIN = Path(sys.executable).parent
# Its first argument: where to listen; then a port and an address each.
_FORWARD = """
import asyncio, sys

async def pump(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()

async def serve(port, address):
    async def joined(reader, writer):
        there = await asyncio.open_connection(address, port)
        await asyncio.gather(pump(reader, there[1]), pump(there[0], writer), return_exceptions=True)
    return await asyncio.start_server(joined, sys.argv[1], port)

async def main():
    servers = [await serve(int(port), address) for port, address in zip(sys.argv[2::2], sys.argv[3::2])]
    await asyncio.gather(*(server.serve_forever() for server in servers))

asyncio.run(main())
"""


class Containers:
    """Hosts with the services of a compose file, and a laptop; `up` starts the services in the order of their dependencies."""

    def __init__(self, composition: Mapping[str, Any], hosts: Mapping[str, Host], folder: Path, files: Path) -> None:
        self.services: Mapping[str, Any] = composition["services"]
        self.hosts, self.folder, self._composition, self._files = hosts, folder, composition, files

    def of(self, service: str) -> list[Host]:
        return [self.hosts[name] for name in containers_of(service, self.services[service])]

    def up(self, services: Sequence[str]) -> None:
        started: set[str] = set()
        while waiting := [name for name in services if name not in started]:
            name = next(name for name in waiting if set(self.services[name].get("depends_on", {})) <= started)
            for host in self.of(name):
                self._prepare(name, host)
                self.start(name, host)
            started.add(name)

    def start(self, name: str, host: Host) -> None:
        """Start a service's program, and wait as `docker compose up --wait` does."""
        service = self.services[name]
        env = {key: str(value) for key, value in service.get("environment", {}).items()}
        home, log = self.folder / host.name, self.folder / f"{host.name}.log"
        command: list[str] = service.get("command", [])
        if name == "postgres":
            command = self._postgres(host, env)
        if name == "s3":
            command = ["moto_server", "-H", "0.0.0.0", "-p", command[command.index("--port") + 1].lstrip(":")]
            # Or it takes the first part of its own name for a bucket.
            env["S3_IGNORE_SUBDOMAIN_BUCKETNAME"] = "true"
        if "healthcheck" not in service and any(
            self.services[other].get("depends_on", {}).get(name, {}).get("condition") == "service_completed_successfully"
            for other in self.services
        ):
            host.run(*command, cwd=home, env=env)
            return
        # PostgreSQL's user may not enter the other folder.
        cwd = Path("/") if name == "postgres" else home
        processes = [host.start(*command, cwd=cwd, env=env, log=log)]

        def healthy() -> bool:
            if processes[-1].poll() is not None:
                # On a machine that is too busy, Ray ends when a part of it was not up in half a minute; Docker starts it again.
                assert service["restart"] == "unless-stopped" and len(processes) < 4, log.read_text(encoding="utf-8")[-3000:]
                processes.append(host.start(*command, cwd=cwd, env=env, log=log))
            return self._healthy(name, host, env)

        wait_for(healthy, 300, f"{host.name} is well: see {log}", every=0.3)

    def _healthy(self, name: str, host: Host, env: Mapping[str, str]) -> bool:
        kind, *test = self.services[name].get("healthcheck", {}).get("test", ["CMD", "true"])
        if name == "s3":
            test[-1] = test[-1].removesuffix("/health") + "/moto-api/"
        command = ["sh", "-c", test[0]] if kind == "CMD-SHELL" else test
        return host.attempt(*command, cwd=self.folder / host.name, env=env).returncode == 0

    def _prepare(self, name: str, host: Host) -> None:
        """Mounts: the service's volumes and configs."""
        service = self.services[name]
        for volume in service.get("volumes", []):
            source, _, target = volume.partition(":")
            (self.folder / "volumes" / source).mkdir(parents=True, exist_ok=True)
            mount(host, self.folder / "volumes" / source, target)
        for config in service.get("configs", []):
            content = (self._files / self._composition["configs"][config["source"]]["file"]).read_text(encoding="utf-8")
            write(host, config["target"], content)

    def _postgres(self, host: Host, env: Mapping[str, str]) -> list[str]:
        """Set up an empty data folder as the image does; returns the command that serves it."""
        programs = postgres_programs()
        (volume,) = self.services["postgres"]["volumes"]
        data = volume.partition(":")[2]
        home = self.folder / host.name
        password = write(host, "/etc/postgres-password", env["POSTGRES_PASSWORD"])
        as_user = ["runuser", "-u", "postgres", "--"]
        host.run("chown", "postgres", data, password, cwd=home)
        sockets = self.folder / "sockets"
        sockets.mkdir()
        mount(host, sockets, "/run/postgresql")
        host.run("chown", "postgres", "/run/postgresql", cwd=home)
        setup = [f"--username={env['POSTGRES_USER']}", f"--pwfile={password}", "--auth-local=trust", "--auth-host=scram-sha-256"]
        host.run(*as_user, str(programs / "initdb"), "-D", data, *setup, cwd=Path("/"))
        host.run("sh", "-c", f"echo 'host all all all scram-sha-256' >> {data}/pg_hba.conf", cwd=home)
        # The image serves only itself while it makes the database.
        control = [*as_user, str(programs / "pg_ctl"), "-D", data, "-w", "-l", f"{data}/log"]
        host.run(*control, "-o", "-c listen_addresses=", "start", cwd=Path("/"))
        host.run(*as_user, "createdb", f"--username={env['POSTGRES_USER']}", env["POSTGRES_DB"], cwd=Path("/"))
        host.run(*control, "stop", cwd=Path("/"))
        return [*as_user, str(programs / "postgres"), "-D", data, "-c", "listen_addresses=*", "-c", "fsync=off"]


def containers_of(name: str, service: Mapping[str, Any]) -> list[str]:
    """The names of a service's containers."""
    replicas = int(service.get("deploy", {}).get("replicas", 1))
    return [name] if replicas == 1 else [f"{name}-{number}" for number in range(1, replicas + 1)]


def mount(host: Host, source: Path, target: str) -> None:
    """Show a folder of this machine at another place on a host."""
    host.run("mkdir", "-p", target, cwd=Path("/"))
    host.run("mount", "--bind", str(source), target, cwd=Path("/"))


def write(host: Host, path: str, content: str) -> str:
    """Write a file below /etc, which is the host's own."""
    host.run(
        "sh", "-c", f'mkdir -p "$(dirname {path})" && printf %s "$CONTENT" > {path}', cwd=Path("/"), env={"CONTENT": content}
    )
    return path


@contextmanager
def containers(
    composition: Mapping[str, Any], services: Sequence[str], folder: Path, files: Path, outside: str
) -> Iterator[Containers]:
    """Hosts for the containers of these services, and the laptop, on which the services' ports are forwarded.

    Args:
        files: the folder of the compose file.
        outside: the line of the laptop's /etc/hosts.
    """
    found: Mapping[str, Any] = composition["services"]
    names = [container for name in services for container in containers_of(name, found[name])]
    env = {"PATH": f"{BIN}:/usr/sbin:/usr/bin:/sbin:/bin", "MLFLOW_DISABLE_TELEMETRY": "true", "OMP_NUM_THREADS": "1"}
    env |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
    targets = [volume.partition(":")[2] for name in services for volume in found[name].get("volumes", [])]
    new = [Path(target) for target in targets if not Path(target).exists()]
    with ExitStack() as stack:
        hosts = stack.enter_context(network([*names, "laptop"], env))
        made = Containers(composition, hosts, folder, files)
        for path in new:
            stack.callback(lambda path=path: path.rmdir() if path.exists() else None)
        inside = ["127.0.0.1 localhost"]
        for name in services:
            aliases = found[name].get("networks", {}).get("default", {}).get("aliases", [])
            inside += [f"{host.address} {' '.join([name, *aliases])}" for host in made.of(name)]
        for host in hosts.values():
            home = folder / host.name
            home.mkdir()
            # Nothing of the home that the tests run in: tokens, caches.
            host.env["HOME"] = str(home)
            # Docker's networks have a gateway, by whose direction Ray finds out its own address.
            subprocess.run(["ip", "-n", host.namespace, "route", "add", "default", "dev", "eth0"], check=True)
            layers = folder / "layers" / host.name
            for layer in ("upper", "work"):
                (layers / layer).mkdir(parents=True)
            options = f"lowerdir=/etc,upperdir={layers / 'upper'},workdir={layers / 'work'}"
            host.run("mount", "-t", "overlay", "overlay", "-o", options, "/etc", cwd=Path("/"))
            write(host, "/etc/hosts", "\n".join(["127.0.0.1 localhost", outside] if host.name == "laptop" else inside) + "\n")
        ports = [(name, port.split(":")) for name in services for port in found[name].get("ports", [])]
        for address in {parts[0] for _, parts in ports}:
            pairs = [text for name, (_, port, _inner) in ports for text in (port, made.of(name)[0].address)]
            hosts["laptop"].start(sys.executable, "-c", _FORWARD, address, *pairs, cwd=folder, log=folder / "ports.log")
        yield made
        # Before the folders that they have mounted go.
        for host in hosts.values():
            host.kill()
