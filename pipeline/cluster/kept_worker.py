"""A trial of one worker on this machine, in a process that is kept for the next trial.

A new process imports torch for seconds, and Ray Train starts a second one beside it. A short trial trains no longer than that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from pipeline.cluster.failures import given_up, worker_reason
from pipeline.config.execution import ClusterParams
from pipeline.utils.errors import RunError, StorageError, TransientStorageError, UserError

if TYPE_CHECKING:
    from pipeline.trials.trial_folder import TrialFolder

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
    """
    cluster = ClusterParams(**config["cluster"])
    attempts = cluster.max_failures + 1
    for attempt in range(1, attempts + 1):
        try:
            _train(config, cluster)
            return None
        except RayError as error:
            _end()
            raised = error.cause or error if isinstance(error, RayTaskError) else error
            if isinstance(raised, UserError) and not isinstance(raised, TransientStorageError):
                if isinstance(raised, RunError):
                    raise raised from None
                return str(raised)
            if attempt == attempts:
                if isinstance(raised, TransientStorageError):
                    raise StorageError(given_up(str(raised), cluster)) from None
                return given_up(worker_reason(0, raised, folder.crash_log), cluster)
    raise AssertionError


def _train(config: dict[str, Any], cluster: ClusterParams) -> None:
    """Have the worker train, and look now and then whether it still answers."""
    worker = _started(config, cluster)
    done = worker.train.remote(config)
    while not ray.wait([done], timeout=cluster.hang_timeout_s)[0]:
        ray.get(worker.ping.remote(), timeout=cluster.hang_timeout_s)
    ray.get(done)


def _started(config: dict[str, Any], cluster: ClusterParams) -> Any:
    global _kept
    if _kept is None:
        _kept = (
            ray.remote(TrialWorker)
            .options(
                num_cpus=cluster.cpus_per_worker,
                num_gpus=int(config["use_gpu"]),
                # One thread trains, the other answers.
                max_concurrency=2,
                # Not among the resources of the trial, which are the driver's.
                scheduling_strategy=PlacementGroupSchedulingStrategy(None),  # type: ignore[arg-type]
            )
            .remote()
        )
        ray.get(_kept.ping.remote(), timeout=cluster.placement_timeout_s)
    return _kept


def _end() -> None:
    global _kept
    if _kept is not None:
        ray.kill(_kept)
        _kept = None
