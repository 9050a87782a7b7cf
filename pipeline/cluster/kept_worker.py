"""A trial of one worker on this machine, in a process that is kept for the next trial.

Starting a process and importing torch takes seconds, and Ray Train starts a controller as well. A short trial takes
no longer to train.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayError, RayTaskError

from pipeline.cluster.failures import given_up, shortage_in, worker_reason
from pipeline.config.execution import ClusterParams
from pipeline.utils.errors import RunError, TransientStorageError, UserError

if TYPE_CHECKING:
    from pipeline.trials.trial_folder import TrialFolder

# Seconds between two questions to the worker.
_ASK = 2.0
# Ray Tune has a driver process run one trial after another; so this process, and no other, uses the worker.
_kept: Any = None


class TrialWorker:
    """The kept process."""

    def train(self, config: dict[str, Any]) -> None:
        """Train one trial.

        Args:
            config: as Ray Tune gives it to the driver.
        """
        from pipeline.cluster.worker import train_as_worker

        train_as_worker(config, 0)

    def ping(self) -> None:
        """Answer, also while another thread trains."""


def fit(config: dict[str, Any], folder: TrialFolder) -> str | None:
    """Train a trial; returns the reason if it failed after all restarts, else None.

    After any error the worker is ended, and the next attempt has a new one.

    Raises:
        RunError: the storage, or other code on this machine, ended the last attempt. The trial is not to blame.
        OutOfMemoryError: Ray killed the worker for lack of memory. The process that runs the search waits for memory.
    """
    cluster = ClusterParams(**config["cluster"])
    failures = 0
    while True:
        try:
            _train(config, cluster, folder)
            return None
        except RayError as error:
            _end()
            raised = error.cause or error if isinstance(error, RayTaskError) else error
            if isinstance(raised, UserError) and not isinstance(raised, TransientStorageError):
                if isinstance(raised, RunError):
                    raise raised from None
                return str(raised)
            if shortage_in(raised) is not None:
                raise
            failures += 1
            if failures > cluster.max_failures:
                if isinstance(raised, TransientStorageError):
                    raise RunError(given_up(str(raised), cluster)) from None
                return given_up(worker_reason(0, raised, folder.crash_log), cluster)


def _train(config: dict[str, Any], cluster: ClusterParams, folder: TrialFolder) -> None:
    """Have the worker train, and ask now and then whether it still answers."""
    worker = _worker(config, cluster, folder)
    done = worker.train.remote(config)
    while not ray.wait([done], timeout=min(_ASK, cluster.hang_timeout_s))[0]:
        ray.get(worker.ping.remote(), timeout=cluster.hang_timeout_s)
    ray.get(done)


def _worker(config: dict[str, Any], cluster: ClusterParams, folder: TrialFolder) -> Any:
    """The kept worker if it still answers, else a new one."""
    global _kept
    if _kept is not None:
        try:
            ray.get(_kept.ping.remote(), timeout=cluster.hang_timeout_s)
        except RayError:
            # It died between two trials. That does not count as a failure of this one.
            _end()
    if _kept is None:
        _kept = (
            ray.remote(TrialWorker)
            .options(
                num_cpus=cluster.reserved_cpus,
                num_gpus=int(config["use_gpu"]),
                # One thread trains, the other answers.
                max_concurrency=2,
                # Outside the trial's placement group, which has no core.
                scheduling_strategy="DEFAULT",
            )
            .remote()
        )
        started = _kept.ping.remote()
        if not ray.wait([started], timeout=cluster.placement_timeout_s)[0]:
            folder.note("no room for the worker; waiting for it")
        ray.get(started)
    return _kept


def _end() -> None:
    global _kept
    if _kept is not None:
        ray.kill(_kept)
        _kept = None
