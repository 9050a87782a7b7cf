"""The sections of execution.yaml: keys that change where and how fast it is computed, and nothing of what comes out.

What each key means stands beside it in the file.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from pipeline.params import Section
from pipeline.values import Address, Positive, PositiveFloat, Text, TrackingUri, WholeAboveOne

EXECUTION_FILE = "execution.yaml"


class ClusterParams(Section):
    """Where the work runs."""

    address: Address | None
    workers: Positive
    cpus_per_worker: Annotated[PositiveFloat, WholeAboveOne]
    device: Literal["auto", "cpu", "cuda"]
    storage: Text
    max_failures: Annotated[int, Field(ge=0, lt=2**31)]
    grace_s: PositiveFloat
    placement_timeout_s: PositiveFloat
    object_store_mb: Annotated[int, Field(ge=80, lt=2**31)]


class TrackingParams(Section):
    """The MLflow server."""

    uri: TrackingUri | None
    experiment: Text


class Execution(Section):
    """All execution keys."""

    cluster: ClusterParams
    tracking: TrackingParams
