"""Ray: a session, trials as Tune over Train, encoding spread over workers. Nothing else of the library imports ray.

Finished trials are kept in our own ledger, one folder a trial under `<storage>/trials`, named by the trial's digest: a trial
found there is not run again, whoever asks for it. Ray's own experiment state is never read back.

Every process of a training run imports this package, three or four of them a trial: torch, transformers, ray.tune and mlflow are
imported where they are used, which halves the time a trial takes to start.
"""

from pipeline.cluster.bulk import encode_parts
from pipeline.cluster.encoding import encode_stores
from pipeline.cluster.session import Session, session, session_on_demand
from pipeline.cluster.trials import TrialResult, run_trials, warn_failures
from pipeline.places import Places

__all__ = [
    "Places",
    "Session",
    "TrialResult",
    "encode_parts",
    "encode_stores",
    "run_trials",
    "session",
    "session_on_demand",
    "warn_failures",
]
