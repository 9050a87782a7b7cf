"""Why a training run failed, in one line for people, out of what Ray raises. (By its attributes: Ray need not be imported.)"""

from __future__ import annotations

import re
from pathlib import Path

from pipeline.errors import RunError, UserError

# In a trial's folder while a worker runs: what its crash handler wrote, by rank. Empty where the worker did not crash.
CRASH = "crash-{rank}.log"


def reason_of(error: BaseException, folder: Path) -> str:
    """The first cause of what `trainer.fit()`, or Tune for the trial's driver process, raised.

    Args:
        folder: the trial's, with what crashed workers left.
    """
    workers: dict[int, BaseException] = getattr(error, "worker_failures", None) or {}
    if workers:
        # When a process dies, the others' connections to it break: that is no cause.
        rank, cause = min(workers.items(), key=lambda one: (_rank_of_cause(one[1]), one[0]))
        return f"worker {rank} {_what_happened(cause, folder / CRASH.format(rank=rank))}"
    inner = getattr(error, "controller_failure", None) or error
    if _dead(inner):
        return f"a process that drives it {_what_happened(inner, None)}"
    return last_line(inner)


def user_error_in(error: BaseException) -> UserError | None:
    """The error for people that a worker, or Tune's process for a trial, raised; one that ends a run before others."""
    raised: list[BaseException] = [error, *(getattr(error, "worker_failures", None) or {}).values()]
    for one in raised:
        raised += [
            inner for name in ("controller_failure", "cause") if isinstance(inner := getattr(one, name, None), BaseException)
        ]
    found = [one for one in raised if isinstance(one, UserError)]
    return next((one for one in found if isinstance(one, RunError)), found[0] if found else None)


def _rank_of_cause(error: BaseException) -> int:
    if _dead(error):
        return 0
    return 2 if re.search("gloo|nccl|connection (closed|reset)", str(error), re.IGNORECASE) else 1


def _dead(error: BaseException) -> bool:
    names = {kind.__name__ for kind in type(_inner(error)).__mro__}
    return bool(names & {"RayActorError", "OutOfMemoryError", "NodeDiedError"}) or "worker process has died" in str(error)


def _inner(error: BaseException) -> BaseException:
    """Without Ray Train's wrapping of a failed health check."""
    return getattr(error, "health_check_failure", None) or error


def _what_happened(error: BaseException, crash: Path | None) -> str:
    if not _dead(error):
        return f"raised {type(error).__name__}: {' '.join(str(error).split())[:1000]}"
    text = str(_inner(error))
    found = re.search(r"^\s*pid: (\d+)$", text, re.MULTILINE)
    where = re.search(r"^\s*ip: (\S+)$", text, re.MULTILINE)
    process = f"(process {found[1]}{f' on {where[1]}' if where else ''}) " if found else ""
    word = crash.read_text(encoding="utf-8").strip() if crash is not None and crash.is_file() else None
    if word:
        return f"{process}crashed: {word.splitlines()[0].removeprefix('Fatal Python error: ')}"
    if "connection error code 2" in text:
        # Ray knows of SIGTERM and of exit codes; of a worker that could have said that it crashes, only SIGKILL is left.
        killed = "was killed by SIGKILL" if word is not None else "was killed (SIGKILL) or crashed"
        return f"{process}{killed}; the system does so when memory runs out"
    detail = text.partition("Worker exit detail:")[2].strip()
    if not detail:
        # Pages of figures follow the line that says that the node ran out of memory.
        detail = text.splitlines()[0] if "low on memory" in text else last_line(_inner(error))
    return f"{process}died: {' '.join(detail.split())}"


def last_line(error: BaseException) -> str:
    """What an exception says, where it says it in the end."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # Our own errors speak for themselves.
    return lines[-1].removeprefix("pipeline.errors.UserError: ") if lines else type(error).__name__
