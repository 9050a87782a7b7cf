"""A connection to Ray: a private cluster for one stage, or the cluster at `cluster.address`."""

from __future__ import annotations

import math
import os
import re
import secrets
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from pipeline.cluster.capacity import nodes, on_device, wait_for_places
from pipeline.cluster.failures import one_line, reason_of
from pipeline.cluster.package import PACKAGE, pack
from pipeline.cluster.ray_private import forget_token, listen_to_others
from pipeline.config.execution import ClusterParams
from pipeline.config.job_inputs import in_job, inputs_of, installed, standing
from pipeline.storage.object_store import private_folder, share
from pipeline.utils.cores import cores, machine_cores
from pipeline.utils.errors import RunError, UserError, last_line
from pipeline.utils.logs import log

T = TypeVar("T")

# The secret of all private clusters of this process.
_OWN_TOKEN = secrets.token_hex(32)
_QUIET: Any = {"logging_level": "ERROR", "log_to_driver": False}


@dataclass(frozen=True, slots=True)
class Session:
    """A connection to Ray and what its nodes offer."""

    params: ClusterParams
    """As in execution.yaml, with fewer workers if `device` is auto and there are fewer GPUs."""
    use_gpu: bool
    concurrent: int
    """Number of training runs that can run at the same time."""
    cores: int
    """Cores that all workers together may use as threads: those of this machine, or OMP_NUM_THREADS; 1 on a cluster, where only
    what is reserved is ours."""
    in_driver: bool
    """Whether the driver process of a trial trains it: with one worker on a private Ray."""

    @property
    def device(self) -> str:
        """The device that the workers compute on."""
        return "cuda" if self.use_gpu else "cpu"

    @property
    def versions(self) -> dict[str, str] | None:
        """The package versions that each node must have; None on a private Ray, which runs in this environment."""
        return versions_sent() if standing(self.params) else None

    def share(self, path: Path) -> str:
        """A name for a file or folder; `found(name)` gives its path on any node."""
        return share(path, self.params.storage) if standing(self.params) else str(path)


@contextmanager
def session(params: ClusterParams) -> Iterator[Session]:
    """Start a private Ray on this machine, or join the cluster at `cluster.address`; disconnect at the end.

    Raises:
        UserError: the cluster cannot be reached, or is still too small for the workers after the placement timeout.
        RunError: an exception of Ray that nothing has handled.
    """
    # Ctrl-C must reach us: Tune's own handler would end the search early and report it as done.
    os.environ["TUNE_DISABLE_SIGINT_HANDLER"] = "1"
    env = _environment(params)
    for key, value in env.items():
        os.environ.setdefault(key, value)
    ours = signal.getsignal(signal.SIGTERM)
    private = not standing(params)
    if private:
        _start(params)
    else:
        _join(params, {key: os.environ[key] for key in env})
    # Ray replaces two of our signal handlers. With Ray's, SIGTERM aborts the process without any cleanup.
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, ours)
    try:
        if not private:
            wanted = versions_sent()
            if fault := _fault_of_a_node(lambda: _other_version(wanted), ray.nodes()):
                raise UserError(fault)
        params, use_gpu, notice = on_device(params, nodes(), _unusable_gpu(params), may_grow=not private)
        if notice:
            log.warning(notice)
        else:
            why = f", and Ray finds {'a' if use_gpu else 'no'} GPU" if params.device == "auto" else ""
            log.info(f"device: {'cuda' if use_gpu else 'cpu'} (cluster.device: {params.device}{why})")
        places = wait_for_places(params, use_gpu, patience=0.0 if private else params.placement_timeout_s)
        concurrent, in_driver = max(1, places // params.workers), private and params.workers == 1
        yield Session(params, use_gpu, concurrent, cores() if private else 1, in_driver)
    except Exception as error:
        if (line := one_line(error)) is None:
            raise
        log.debug(str(error))
        raise line from None
    finally:
        ray.shutdown()


def _environment(params: ClusterParams) -> dict[str, str]:
    """Environment variables that Ray and the collectives read in every process of a training run."""
    env = {
        "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
        # No tables of Tune and no messages of Train: we print progress from the progress files.
        "RAY_AIR_NEW_OUTPUT": "0",
        "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": str(params.placement_timeout_s),
        "RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S": str(params.hang_timeout_s),
        # The watcher warns a training loop that its node is about to be removed. Our workers look for themselves (`capacity`),
        # and a start of the workers takes seconds less without the watcher's process.
        "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
        # NCCL needs a worker to see all GPUs of its node.
        "TRAIN_ENABLE_SHARE_CUDA_VISIBLE_DEVICES": "1",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        # By default, threads that wait for the others of their process keep a core busy for long. Where anything else runs, a
        # training run of two threads then takes several times as long as one of one thread. Without any waiting, two threads are
        # no faster than one (docs/diary.md).
        "GOMP_SPINCOUNT": "20000",
    }
    if params.interface is not None:
        env |= {"GLOO_SOCKET_IFNAME": params.interface, "NCCL_SOCKET_IFNAME": params.interface}
    return env


def _start(params: ClusterParams) -> None:
    # Ray runs whatever it is sent, and other users of this machine reach its ports. So a private cluster accepts nothing without
    # a secret that only its own processes know. (RAY_AUTH_MODE=token is read when ray is imported: see stages/__init__.py.) Its
    # ports for metrics ask for none, and its folders are everybody's; hence no other interface, and a folder of ours around them.
    os.environ["RAY_AUTH_TOKEN"] = _OWN_TOKEN
    # This process may have asked a cluster before, with another token or none.
    forget_token()
    listen_to_others(False)
    try:
        ray.init(
            _temp_dir=None if "RAY_TMPDIR" in os.environ else str(private_folder(short=True) / "ray"),
            num_cpus=max(machine_cores(), math.ceil(params.workers * params.reserved_cpus)),
            object_store_memory=params.object_store_mb * 2**20,
            # Ray Train asks the dashboard whether a run's controller lives, and frees the places of a dead one.
            dashboard_host="127.0.0.1",
            include_dashboard=True,
            **_QUIET,
        )
    except Exception as error:
        # On a machine too busy to start within Ray's 30 s, Ray raises a plain Exception.
        reason = re.sub(
            r"^The last \d+ lines of (\S+) .*", r"a process of it ended without an error; its log is \1", last_line(error)
        )
        if "AF_UNIX" in reason:
            reason += "; set RAY_TMPDIR to a folder with a short path, such as /tmp"
        raise UserError(f"Ray does not start on this machine: {reason}") from error


def _join(params: ClusterParams, env: dict[str, str]) -> None:
    # Ray sets the variable in the driver of a job.
    address = os.environ["RAY_ADDRESS"] if in_job() else params.address
    listen_to_others(True)
    try:
        with TemporaryDirectory(prefix="gausscse-") as temporary:
            code: dict[str, str] = {}
            # A job's code is already on every node. For a checkout that joins the cluster, Ray sends the code.
            if not in_job():
                archive = Path(temporary) / PACKAGE
                pack(Path.cwd(), archive)
                code["working_dir"] = str(archive)
            ray.init(address=address, runtime_env={"env_vars": env, **code}, **_QUIET)
    except (ConnectionError, RuntimeError, ValueError, RayError) as error:
        raise UserError(f"execution.yaml: cluster.address: no Ray cluster answers at {address!r} ({last_line(error)})") from None


def _unusable_gpu(params: ClusterParams) -> str | None:
    """Why torch cannot use the GPU of a node, and what to do there; None if it can use all, or GPUs are not wanted.

    Raises:
        UserError: a node cannot run this project.
    """
    if params.device == "cpu":
        return None
    return _fault_of_a_node(_gpu_fault, [node for node in ray.nodes() if node["Resources"].get("GPU", 0)])


def _fault_of_a_node(ask: Callable[[], str | None], nodes: Iterable[Mapping[str, Any]]) -> str | None:
    """The first fault that one of these nodes finds on itself; None if none of those that live finds any.

    Args:
        ask: runs on the node; its answer has {node} in place of the node's address.
        nodes: as `ray.nodes` describes them.
    """
    addresses = {node["NodeID"]: node["NodeManagerAddress"] for node in nodes if node["Alive"]}
    return next((fault.format(node=name) for name, fault in on_nodes(ask, addresses) if fault is not None), None)


def _gpu_fault() -> str | None:
    """What keeps the torch of this node from training on its GPUs; None if nothing does."""
    import torch

    if not torch.cuda.is_available():
        return "torch finds no CUDA on node {node}; install a CUDA build of torch there"
    built = torch.cuda.get_arch_list()
    for number in range(torch.cuda.device_count()):
        if not has_kernels(built, torch.cuda.get_device_capability(number)):
            gpu = torch.cuda.get_device_name(number)
            return (
                f"torch on node {{node}} has no kernels for its {gpu} ({' '.join(built)}); install a build of torch that has them"
            )
    if not torch.distributed.is_nccl_available():
        return "torch on node {node} has no NCCL, which workers on GPUs need; install a build of torch that has it"
    return None


def has_kernels(built: Sequence[str], capability: tuple[int, int]) -> bool:
    """Whether a build of torch for these architectures (`torch.cuda.get_arch_list`) runs on a GPU of this compute capability.

    Code for a processor (sm_86) runs on GPUs of the same major version from its minor version on, or if it has a letter (sm_90a)
    only on its own. Intermediate code (compute_90) runs on all later GPUs. Names of other makers are not judged.
    """
    for name in built:
        match = re.fullmatch(r"(sm|compute)_(\d+)(\d)(\w?)", name)
        if match is None:
            return True
        kind, version = match[1], (int(match[2]), int(match[3]))
        later = not match[4] and version < capability and (kind == "compute" or version[0] == capability[0])
        if later or version == capability:
            return True
    return False


def on_nodes(what: Callable[[], T], addresses: Mapping[str, str], patience: float | None = None) -> Iterator[tuple[str, T]]:
    """Run a function on each of these nodes; yields (address, answer).

    Args:
        addresses: node id → its address.
        patience: seconds to wait for an answer; default no limit.

    Raises:
        UserError: a node cannot run the function, or does not answer in time.
    """
    task: Any = ray.remote(num_cpus=0)(what)
    pending = {
        name: task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote()
        for node, name in addresses.items()
    }
    for name, answer in pending.items():
        try:
            yield name, ray.get(answer, timeout=patience)
        except RayError as error:
            raise UserError(f"node {name} of the cluster cannot run this project: {reason_of(error)}") from None


def versions_sent() -> dict[str, str]:
    """The package versions that every node should have: those of the machine that sent this job, or of this machine.

    Raises:
        UserError: the job's inputs cannot be read.
    """
    return installed() if (sent := inputs_of(Path.cwd())) is None else sent.versions


def check_this_node(wanted: Mapping[str, str] | None, *, use_gpu: bool) -> None:
    """Check the node of a process that works for a session, as the node may have joined after `session` has asked all nodes.

    Args:
        wanted: `Session.versions`; None checks nothing.

    Raises:
        RunError: it has other package versions than the wanted ones, or torch cannot use its GPU; the message names the node.
    """
    if wanted is not None and (fault := _other_version(wanted) or (_gpu_fault() if use_gpu else None)) is not None:
        raise RunError(fault.format(node=ray.util.get_node_ip_address()))


def _other_version(wanted: Mapping[str, str]) -> str | None:
    """What this node has instead of one of the wanted package versions; None if it has them all."""
    found = installed()
    return next(
        (
            f"node {{node}} of the cluster has {package} {found.get(package, 'missing')}, this project was sent with {version}; "
            "use one image, or one constraints.txt, for all (docs/cluster.md)"
            for package, version in wanted.items()
            if found.get(package) != version
        ),
        None,
    )


@contextmanager
def session_on_demand(params: ClusterParams) -> Iterator[Callable[[], Session]]:
    """A function that opens a `session` on its first call and returns the same one after that; it is closed at the end.

    Starting Ray takes seconds. A stage starts it at most once, and not at all if the trial store holds everything.
    """
    with ExitStack() as stack:
        yield cache(lambda: stack.enter_context(session(params)))
