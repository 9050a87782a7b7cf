"""The sections of execution.yaml: keys that change where and how fast the work runs, but not its results.

Each key has a docstring; docs/parameters.md and the JSON schema are generated from these.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from pipeline.config.messages import WrongKey
from pipeline.config.types import Address, Interface, Positive, PositiveFloat, Section, Text, TrackingUri, whole_above_one

EXECUTION_FILE = "execution.yaml"


class ClusterParams(Section):
    """Where the work runs. The defaults are the values of the committed execution.yaml."""

    address: Address | None = None
    """Where the work runs. null: this machine, with a private Ray cluster while a stage trains. http://host:port, the dashboard
    of a standing cluster: tune, train, evaluate and experiment run there as Ray jobs, and prepare and tokenize of much data
    (docs/cluster.md). host:port or "auto": join a cluster of which this machine is a node."""
    workers: Positive = 1
    """Processes over which a training run is spread (DDP). With 1, as many runs go on side by side as there is room for, which is
    faster for a grid of small trials."""
    min_workers: Positive | None = None
    """With how many workers a training run may continue when the cluster has no room for all, for the same global batch and the
    same gradients (to float tolerance); null: with all of them or not at all."""
    cpus_per_worker: Annotated[PositiveFloat, AfterValidator(whole_above_one)] | None = None
    """Processor cores reserved for each worker; also its torch thread count. null: one core is reserved, and on this machine (no
    `address`) the workers of the runs that go on side by side share all cores as threads, so a run that is alone uses them all
    (or OMP_NUM_THREADS). The number of threads changes sums in their last digits. Scoring on one machine uses all cores."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: cuda if there is a GPU, with fewer workers where there are fewer GPUs (a line says so), else cpu. cuda reserves one
    GPU a worker and uses NCCL; cpu uses gloo."""
    interface: Interface | None = None
    """Network interface between the workers (GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME), with the same name on every node. If null,
    gloo takes the one with the address by which Ray knows the node, and NCCL chooses itself."""
    storage: Text = ".gausscse"
    """Storage that every node can see: finished trials, checkpoints to resume from, data on its way to a cluster. A folder
    (relative paths start at the project root; for a queued DVC experiment, which runs in a copy, at the root of the project
    itself), or s3://bucket/prefix?region=...&endpoint_override=host:port. Jobs need an absolute path or s3."""
    shard_cache_gb: PositiveFloat | None = None
    """GB (10⁹ bytes) of token shards of training data that a node keeps, for all of your runs on it together. A run fetches the
    shards of its batches a few steps ahead, and those that are not needed soon make room. With a limit below the whole store, set
    train.block_rows (params.yaml). null: no limit; where all nodes see the storage as a folder, nothing is copied then."""
    max_failures: Annotated[int, Field(ge=0, lt=2**31)] = 2
    """How often a training run is restarted from its latest checkpoint after a worker died, its node ran out of memory, or the
    storage failed for longer than its retries last, and how often a part of a corpus is encoded again. A storage that fails once
    more than that ends the stage, not the trial."""
    hang_timeout_s: PositiveFloat = 60.0
    """Seconds after which a worker counts as dead and the run starts again from its latest checkpoint: one that no longer answers
    (stopped, swapped out, its host gone), or one for which the others wait in the middle of a step (it hangs). Longer than the
    slowest step of a worker. While one worker alone reads or writes the storage, the others wait for up to half an hour."""
    grace_s: PositiveFloat = 20.0
    """Seconds that a stage gives its training runs to write a checkpoint when it is asked to end (Ctrl-C, SIGTERM). It may be
    the second: one that is being written is completed first."""
    placement_timeout_s: PositiveFloat = 120.0
    """Seconds to wait for a cluster that is too small for the workers to grow, before the stage gives up with a message. (It
    waits for one that is large enough and busy.) Also the seconds to wait for memory on a node that ran out of it. A model of
    `gausscse serve` must have started in as many seconds; it is tried again after that."""
    object_store_mb: Annotated[int, Field(ge=80, lt=2**31)] = 200
    """Shared-memory object store of the private cluster, MB. Ray's default takes gigabytes; the pipeline moves little through
    it."""
    price_per_hour: PositiveFloat | None = None
    """Price of one machine for an hour, in your currency, such as that of a spot instance. MLflow then has `machine_hours` and
    `price` of each trial and of the whole run. Each machine (node of the cluster) with a worker of a trial counts, from the
    trial's first report to its end or the stage's, with restarts and waits in between; trials that share a machine share its
    time. Not counted: the start of Ray and of a trial until its first report, machines without a worker, scoring, and up to a
    minute if the stage is killed. null: nothing is recorded."""

    @model_validator(mode="after")
    def _no_more_than_all(self) -> ClusterParams:
        if self.min_workers is not None and self.min_workers > self.workers:
            raise WrongKey("min_workers", self.min_workers, f"is more than cluster.workers ({self.workers}); lower it")
        return self

    @property
    def reserved_cpus(self) -> float:
        """Cores that Ray reserves for a worker."""
        return 1.0 if self.cpus_per_worker is None else self.cpus_per_worker

    def threads(self, cores: int, runs: int = 1) -> int:
        """torch threads of a worker, when `runs` training runs that go on at a time may use `cores` cores together."""
        return max(1, cores // (self.workers * runs) if self.cpus_per_worker is None else int(self.cpus_per_worker))

    @property
    def by_jobs(self) -> bool:
        """True if compute stages run as jobs that are submitted to the cluster's dashboard."""
        return self.address is not None and self.address.startswith(("http://", "https://"))


class TrackingParams(Section):
    """The MLflow server."""

    uri: TrackingUri | None
    """MLflow tracking and registry server; null is sqlite (mlflow.db) and artifacts (mlartifacts/) in the project root. The
    environment variable MLFLOW_TRACKING_URI, when set, wins over this key."""
    experiment: Text
    """Name of the MLflow experiment that all runs of this project belong to."""


class Execution(Section):
    """All execution keys."""

    cluster: ClusterParams
    tracking: TrackingParams
