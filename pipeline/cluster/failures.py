"""Turns what Ray raises into one line that says why a training run failed. It reads attributes only, so ray is not imported."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pipeline.config.execution import ClusterParams
from pipeline.utils.errors import RunError, UserError, counted, last_line

_SHORTAGE = re.compile(
    r"\(IP: (\S+), ID: (\w+)\).*?Memory usage (\d+)B exceeded threshold of (\d+)B \([\d.]+% of (\d+)B limit\)", re.DOTALL
)
KEPT = "what is finished is kept, the next run goes on with the rest"
"""End of a line about a run that cannot continue."""


@dataclass(frozen=True, slots=True)
class Shortage:
    """A node ran out of memory, and Ray killed processes there. Sizes are in bytes."""

    node: str
    """Ray's id of the node."""
    threshold: int
    """Ray kills processes while more than this is in use."""
    limit: int
    """The memory of the node, or of its container."""
    killed: int
    """What the killed processes used."""
    words: str
    """What happened, and the largest processes."""


def shortage_in(error: BaseException) -> Shortage | None:
    """The lack of memory because of which Ray killed a process, if this is the reason for an error of Ray."""
    for text in map(str, _all_in(error)):
        if (match := _SHORTAGE.search(text)) is not None:
            address, node, used, threshold, limit = match.groups()
            killed = sum(map(float, re.findall(r"Selected to kill: .*actual memory used=([\d.]+)GB", text)))
            # Without the folder of the program.
            largest = re.findall(r"^(\d+)\t([\d.]+)\t(?:\S*/)?(.+)$", text, re.MULTILINE)[:3]
            processes = ", ".join(f"{command[:60]} (process {pid}, {size} GB)" for pid, size, command in largest)
            in_use = f"{int(used) / 2**30:.1f} of {int(limit) / 2**30:.1f} GB in use"
            words = f"node {address} ran out of memory ({in_use}; largest processes: {processes})"
            return Shortage(node, int(threshold), int(limit), int(killed * 2**30), words)
    return None


def one_line(error: BaseException) -> UserError | None:
    """An exception of Ray, or one that was raised because of it, as an error of one line; None for other exceptions."""
    if not any(map(_kind_of_ray, _all_in(error))):
        return None
    return user_error_in(error) or RunError(f"Ray: {reason_of(error)}; {KEPT}")


def _kind_of_ray(error: BaseException) -> bool:
    return any(kind.__module__.partition(".")[0] == "ray" for kind in type(error).__mro__)


def _all_in(error: BaseException) -> list[BaseException]:
    """The exception, and all that it was raised for."""
    found = [error]
    for exception in found:
        inner = [getattr(exception, name, None) for name in ("controller_failure", "cause", "health_check_failure", "__cause__")]
        inner += (getattr(exception, "worker_failures", None) or {}).values()
        # By identity: some exceptions compare their own fields with those of any other.
        found += [one for one in inner if isinstance(one, BaseException) and all(one is not known for known in found)]
    return found


def reason_of(error: BaseException, *, in_driver: bool = False) -> str:
    """The root cause of an exception from `trainer.fit()`, or from Tune for a trial's driver process.

    Args:
        in_driver: whether the driver process is the trial's only worker.
    """
    if (shortage := shortage_in(error)) is not None:
        return f"its processes were killed because {shortage.words}"
    workers: dict[int, BaseException] = getattr(error, "worker_failures", None) or {}
    if in_driver:
        # Ray's own kind of error holds what the process raised.
        workers = {0: getattr(error, "cause", None) or error}
    if workers:
        # When a process dies, the others lose their connections to it. Those errors are not the cause.
        rank, cause = min(workers.items(), key=lambda worker: (_rank_of_cause(worker[1]), worker[0]))
        return f"worker {rank} {_what_happened(cause)}"
    inner = getattr(error, "controller_failure", None) or error
    if _dead(inner):
        return f"its driver process {_what_happened(inner)}"
    return last_line(inner)


def user_error_in(error: BaseException) -> UserError | None:
    """The `UserError` that a worker or a trial's driver process raised, if any; a `RunError` (which ends a run) comes first."""
    # Ray gives its own kind of error, whose text is a traceback, the kind of its cause as well.
    ours = [one for one in _all_in(error) if isinstance(one, UserError) and not _kind_of_ray(one)]
    return min(ours, key=lambda one: not isinstance(one, RunError), default=None)


def given_up(reason: str, params: ClusterParams) -> str:
    """The reason with the number of attempts added."""
    return f"{reason} (given up after {counted(params.max_failures + 1, 'attempt')})"


def _rank_of_cause(error: BaseException) -> int:
    if _dead(error):
        return 0
    return 2 if re.search("gloo|nccl|connection (closed|reset)", str(error), re.IGNORECASE) else 1


def _dead(error: BaseException) -> bool:
    names = {kind.__name__ for kind in type(_inner(error)).__mro__}
    return bool(names & {"RayActorError", "OutOfMemoryError", "NodeDiedError"}) or "worker process has died" in str(error)


def _inner(error: BaseException) -> BaseException:
    """The error inside Ray Train's wrapper for a failed health check, if there is one."""
    return getattr(error, "health_check_failure", None) or error


def _what_happened(error: BaseException) -> str:
    if type(error).__name__ == "GetTimeoutError":
        return "did not answer for cluster.hang_timeout_s"
    if not _dead(error):
        text = last_line(error) if "Traceback (most recent call last)" in str(error) else " ".join(str(error).split())[:1000]
        return f"raised {type(error).__name__}: {text}"
    text = str(_inner(error))
    pid_match = re.search(r"^\s*pid: (\d+)$", text, re.MULTILINE)
    address_match = re.search(r"^\s*ip: (\S+)$", text, re.MULTILINE)
    process = f"(process {pid_match[1]}{f' on {address_match[1]}' if address_match else ''}) " if pid_match else ""
    if "connection error code 2" in text:
        # Ray recognises SIGTERM and exit codes. The trace of a crash is in Ray's log of the process.
        return f"{process}was killed (SIGKILL) or crashed; this happens when memory runs out"
    detail = text.partition("Worker exit detail:")[2].strip()
    return f"{process}died: {' '.join((detail or last_line(_inner(error))).split())}"
