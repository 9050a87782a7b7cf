"""What the stages that train or score share: the pipeline's run in MLflow, the trial store, and a session on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.cluster.encoding import compute_where_encoded, encode_stores
from pipeline.cluster.grid_search import run_trials
from pipeline.cluster.session import Session, session_on_demand
from pipeline.config.execution import ClusterParams, TrackingParams
from pipeline.config.params import EvaluateParams, Params, RelationHeadKind, RelationParams
from pipeline.evaluation.aggregate import Summary, flat_headlines, pr_curve_rows, write_evaluated
from pipeline.evaluation.encoding import Compute, Encode
from pipeline.evaluation.score_cache import Model, numbers_of, read_hard, score_models, write_scores
from pipeline.families.family import families, part
from pipeline.tracking import mlflow_runs
from pipeline.tracking.server import Tracker
from pipeline.trials.recipe_run import RecipeRun
from pipeline.trials.store import TrialStore
from pipeline.trials.trial import EarlyStopping, Outcome, Timing, Trial, TrialResult, name_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Final(Model):
    """A final model to score."""

    recipe: str
    trial: Trial
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRun:
    """What a stage works with while it runs."""

    root: Path
    tracker: Tracker
    parent: str
    """Id of the pipeline's run in MLflow."""
    store: TrialStore
    session: Callable[[], Session]
    named: Callable[[Trial], str]
    """Gives a trial's name on the terminal and in MLflow."""
    encode: Encode
    compute: Compute

    def train(self, trials: list[Trial], early_stopping: EarlyStopping | None) -> list[TrialResult]:
        """`run_trials`, with what this stage works with."""
        return run_trials(trials, self.store, self.session, self.tracker, self.parent, early_stopping, self.named)

    def timings(self, recipe_runs: Sequence[RecipeRun]) -> dict[str, Timing]:
        """The timings of the final trials, by digest."""
        return {trial.digest: self.store.folder(trial).timing() for recipe_run in recipe_runs for trial, _ in recipe_run.finished}

    def relation(self, name: str, trial: Trial, asked: RelationHeadKind, params: RelationParams) -> Path | None:
        """The folder of the relation head of a finished trial's model; None if none is asked for (`model.relation_head`).

        Args:
            name: the model's name on the terminal.
        """
        if asked == "none":
            return None
        owner = next(family for family in families() if family.labelled)
        fit, kind = part(owner, "relation_store").relation_for, trial.objective.gaussian_similarity or "cosine"
        return fit(name, self.store.folder(trial).model, kind, params, trial.seed, self.root, self.store, self.compute)

    def score(self, finals: Sequence[Final], params: EvaluateParams, out: Path) -> Summary:
        """Score the models on every set, log their metrics, and write everything into folder `out`; returns the summary."""
        per_seed: dict[str, dict[str, Any]] = {}
        curves: list[dict[str, Any]] = []
        scored = score_models(finals, self.root, self.store, self.encode, search=params.transfer_search)
        for final, scores in zip(finals, scored, strict=True):
            seed = f"seed-{final.trial.seed}"
            write_scores(scores.folder, out / "scores" / final.recipe, seed)
            numbers = per_seed.setdefault(final.recipe, {})[seed] = numbers_of(
                scores.tables, params, read_hard(self.root, scores.tables)
            )
            rows = [row for name, table in scores.tables.items() for row in pr_curve_rows(name, seed, table)]
            curves += [{"variant": final.recipe, **row} for row in rows]
            run_id = mlflow_runs.ensure_trial(self.tracker, self.parent, final.trial, final.outcome, self.named(final.trial))
            mlflow_runs.log_metrics(self.tracker, run_id, flat_headlines(numbers))
        return write_evaluated(out, per_seed, curves)


@contextmanager
def stage_run(
    params: Params, tracking: TrackingParams, cluster: ClusterParams, root: Path, named: Callable[[Trial], str] = name_of
) -> Iterator[StageRun]:
    """Run a stage's work under the pipeline's run in MLflow; however it ends, no run stays RUNNING."""
    tracker, parent = mlflow_runs.enter_pipeline(params, tracking, root)
    with (
        mlflow_runs.stage_of(tracker, parent),
        TrialStore.of_project(root, cluster.storage) as store,
        session_on_demand(cluster) as session,
    ):
        encode = partial(encode_stores, params=cluster, session=session)
        compute = partial(compute_where_encoded, params=cluster, session=session)
        yield StageRun(
            root=root, tracker=tracker, parent=parent, store=store, session=session, named=named, encode=encode, compute=compute
        )
