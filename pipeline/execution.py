"""The sections of execution.yaml: keys that change where and how fast it is computed, and nothing of what comes out.

What each key means stands beside it in the file.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from pipeline.key_errors import WrongKey
from pipeline.params import Section
from pipeline.values import Address, Interface, Positive, PositiveFloat, Text, TrackingUri, WholeAboveOne

EXECUTION_FILE = "execution.yaml"


class ClusterParams(Section):
    """Where the work runs."""

    address: Address | None
    workers: Positive
    min_workers: Positive | None
    cpus_per_worker: Annotated[PositiveFloat, WholeAboveOne]
    device: Literal["auto", "cpu", "cuda"]
    interface: Interface | None
    storage: Text
    max_failures: Annotated[int, Field(ge=0, lt=2**31)]
    hang_timeout_s: PositiveFloat
    grace_s: PositiveFloat
    placement_timeout_s: PositiveFloat
    object_store_mb: Annotated[int, Field(ge=80, lt=2**31)]

    @model_validator(mode="after")
    def _no_more_than_all(self) -> ClusterParams:
        if self.min_workers is not None and self.min_workers > self.workers:
            raise WrongKey("min_workers", self.min_workers, f"is more than cluster.workers ({self.workers}); lower it")
        return self

    @property
    def by_jobs(self) -> bool:
        """Whether stages that compute do so as jobs that are sent to the cluster's dashboard."""
        return self.address is not None and self.address.startswith(("http://", "https://"))


class TrackingParams(Section):
    """The MLflow server."""

    uri: TrackingUri | None
    experiment: Text


class Execution(Section):
    """All execution keys."""

    cluster: ClusterParams
    tracking: TrackingParams
