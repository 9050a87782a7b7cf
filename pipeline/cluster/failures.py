"""Turns what Ray raises into one line that says why a training run failed. It reads attributes only, so ray is not imported."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from pipeline.config.execution import ClusterParams
from pipeline.utils.errors import RunError, UserError, first_line, last_line


def reason_of(error: BaseException, crash_log: Callable[[int], Path] | None = None) -> str:
    """The root cause of an exception from `trainer.fit()`, or from Tune for a trial's driver process.

    Args:
        crash_log: rank → the file into which a worker writes why it crashed.
    """
    workers: dict[int, BaseException] = getattr(error, "worker_failures", None) or {}
    if workers:
        # When a process dies, the others lose their connections to it. Those errors are not the cause.
        rank, cause = min(workers.items(), key=lambda worker: (_rank_of_cause(worker[1]), worker[0]))
        return worker_reason(rank, cause, crash_log)
    inner = getattr(error, "controller_failure", None) or error
    if _dead(inner):
        return f"its driver process {_what_happened(inner, None)}"
    return last_line(inner)


def worker_reason(rank: int, error: BaseException, crash_log: Callable[[int], Path] | None = None) -> str:
    """What happened to worker `rank`, as one line: what it raised, or how its process ended."""
    return f"worker {rank} {_what_happened(error, crash_log(rank) if crash_log else None)}"


def user_error_in(error: BaseException) -> UserError | None:
    """The `UserError` that a worker or a trial's driver process raised, if any; a `RunError` (which ends a run) comes first."""
    raised: list[BaseException] = [error, *(getattr(error, "worker_failures", None) or {}).values()]
    for exception in raised:
        raised += [
            inner
            for name in ("controller_failure", "cause")
            if isinstance(inner := getattr(exception, name, None), BaseException)
        ]
    user_errors = [exception for exception in raised if isinstance(exception, UserError)]
    return next(
        (exception for exception in user_errors if isinstance(exception, RunError)), user_errors[0] if user_errors else None
    )


def given_up(reason: str, params: ClusterParams) -> str:
    """The reason with the number of attempts added."""
    tries = params.max_failures + 1
    return f"{reason} (given up after {tries} attempt{'s' if tries > 1 else ''})"


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


def _what_happened(error: BaseException, crash: Path | None) -> str:
    if type(error).__name__ == "GetTimeoutError":
        return "did not answer for cluster.hang_timeout_s"
    if not _dead(error):
        text = last_line(error) if "Traceback (most recent call last)" in str(error) else " ".join(str(error).split())[:1000]
        return f"raised {type(error).__name__}: {text}"
    text = str(_inner(error))
    pid_match = re.search(r"^\s*pid: (\d+)$", text, re.MULTILINE)
    address_match = re.search(r"^\s*ip: (\S+)$", text, re.MULTILINE)
    process = f"(process {pid_match[1]}{f' on {address_match[1]}' if address_match else ''}) " if pid_match else ""
    word = crash.read_text(encoding="utf-8").strip() if crash is not None and crash.is_file() else None
    if word:
        return f"{process}crashed: {word.splitlines()[0].removeprefix('Fatal Python error: ')}"
    if "connection error code 2" in text:
        # Ray recognises SIGTERM and exit codes. A worker with an empty crash log did not crash, which leaves only SIGKILL.
        killed = "was killed by SIGKILL" if word is not None else "was killed (SIGKILL) or crashed"
        return f"{process}{killed}; this happens when memory runs out"
    detail = text.partition("Worker exit detail:")[2].strip()
    if not detail:
        # The first line says that the node ran out of memory; pages of figures follow it.
        detail = first_line(_inner(error)) if "low on memory" in text else last_line(_inner(error))
    return f"{process}died: {' '.join(detail.split())}"
