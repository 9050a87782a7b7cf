"""A version that runs, and a champion that was kept out."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field

from pipeline.inference.entailment_index import Searchable
from pipeline.models.canaries import Canaries
from pipeline.models.relation_head import ScoreKind
from pipeline.models.threshold import Calibration
from pipeline.serving.batches import Batches


@dataclass(slots=True)
class Served:
    """A version that runs."""

    number: int
    model: str
    """NAME/VERSION, as answers name it."""
    app: str
    """Its application in Ray Serve."""
    batches: Batches
    kind: ScoreKind
    directed: bool
    """True if its similarity says which sentence entails which."""
    has_relation: bool
    calibration: Calibration | None
    """The threshold of its score."""
    operations: Mapping[str, int]
    """`GaussianEncoder.operations`."""
    writes: bool
    """Whether it writes sentences."""
    find_corpus: Callable[[], Searchable | None]
    """Reads the corpus that the model has encoded; None if it has encoded none of them."""
    canaries: Canaries
    files: ExitStack
    """Holds the folder of the model, which replicas that start later read."""
    share: Callable[[], object]
    """Puts the folder where they find it on any node (`Session.share`)."""
    replicas: int
    """Those that ran when they were last counted."""
    note: str = ""
    """A sentence for the people who ask it (`note_of`)."""
    shared_at: float = field(default_factory=time.monotonic)
    """Time of the last call of `share`, by the monotonic clock."""
    since: float = 0.0
    """Time since which it answers, in seconds since 1970."""
    in_flight: int = 0
    ended: bool = False
    """True if another one has taken its place, or the server ends."""
    corpus: Searchable | None = None
    no_corpus: str = ""
    """The reason why it has no corpus to search in."""
    corpus_at: float = 0.0
    """Time of the next attempt at the earliest, by the monotonic clock."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A champion that was kept out."""

    number: int
    reason: str
    at: float
    final: bool
    """True if it is tried again only after the alias has moved."""
