"""Stage register: registers the seed with the best development score as a model version and applies the promotion rule."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from pipeline.cluster.preflight import load_project
from pipeline.config.job_inputs import git_commit
from pipeline.config.paths import DEV_TOKENS, EVALUATE, MODELS, PROFILE, REGISTER, TRAIN
from pipeline.data.schema import DEV
from pipeline.identity.pipeline_run import data_digests, pipeline_digest
from pipeline.trials.course import MAIN
from pipeline.utils.atomic_io import read_json, write_json
from pipeline.utils.errors import UserError, run_stage
from pipeline.utils.logs import log

# Ends of the names of metrics that become tags of a version.
_TAGGED = ("pr_auc", ".sim", ".score", ".next_sentence", ".logistic", ".operator_mrr", ".exact")


def main() -> None:
    """Pick the best seed, register it, apply the promotion rule, write results/register.json."""
    root = Path.cwd()
    p, execution = load_project()
    # Imported only after the parameters are checked: these take seconds.
    from pipeline.config.job_inputs import installed
    from pipeline.evaluation.aggregate import flatten, read_outcomes
    from pipeline.models.relation_head import read_relation
    from pipeline.models.threshold import Calibration
    from pipeline.registry import register_model
    from pipeline.registry.card import About
    from pipeline.registry.promotion import set_of, undefined
    from pipeline.registry.publishing import published
    from pipeline.registry.version_scorer import Judge
    from pipeline.registry.versions import TRIAL_TAG
    from pipeline.tracking import mlflow_runs
    from pipeline.tracking.datasets import data_sets
    from pipeline.trials.store import TrialStore

    per_seed = read_json(EVALUATE / "per_seed.json")[MAIN]
    metric = p.register_.metric
    dev = set_of(metric, DEV)
    if not all(metric in numbers.get(dev, {}) for numbers in per_seed.values()):
        raise UserError(undefined(metric, dev))
    # The score from stage evaluate, not from training: it is computed without autocast, the same way for every model.
    trial, outcome = max(read_outcomes(TRAIN / "outcomes.json"), key=lambda pair: per_seed[f"seed-{pair[0].seed}"][dev][metric])
    numbers = per_seed[f"seed-{trial.seed}"]
    profile, commit, digests = read_json(PROFILE), git_commit(root), data_digests()
    about = About(
        name=p.register_.name,
        trial=trial,
        numbers=numbers,
        hypothesis_only=profile["hypothesis_only"],
        data=data_sets(profile),
        commit=commit,
        versions=installed(),
        relation=head.scale if (head := read_relation(MODELS / f"seed-{trial.seed}")) else None,
    )
    calibration = None
    if DEV in numbers:
        calibration = Calibration(
            threshold=numbers[DEV]["threshold"],
            entailment_if=p.evaluate.entailment_if,
            swept_on=DEV,
            pairs=digests[DEV],
            accuracy=numbers[DEV]["accuracy"],
        )
    tracker, parent = mlflow_runs.enter_pipeline(p, execution.tracking, root)
    with (
        mlflow_runs.stage_of(tracker, parent),
        TrialStore.of_project(root, execution.cluster.storage) as store,
        published(MODELS / f"seed-{trial.seed}", about, calibration, DEV_TOKENS) as folder,
    ):
        run_id = mlflow_runs.ensure_trial(tracker, parent, trial, outcome)
        registration = register_model(
            tracker,
            p.register_.name,
            folder,
            run_id,
            {
                mlflow_runs.DIGEST_TAG: pipeline_digest(p),
                "pipeline_run": parent,
                TRIAL_TAG: trial.digest,
                "seed": str(trial.seed),
                **{f"{name}_digest": value for name, value in digests.items()},
                "git_commit": commit,
                **{f"param.{key}": str(value) for key, value in trial.parameters().items()},
                **{key: f"{value:.4f}" for key, value in flatten(numbers).items() if key.endswith(_TAGGED)},
            },
            dev_score=numbers[dev][metric],
            judge=Judge(p.register_, p.evaluate, p.objective, root, store, tracker.uri),
        )
    write_json(REGISTER, asdict(registration))
    log.info(
        f"register: {registration.name} version {registration.version} is "
        f"{registration.alias or 'neither champion nor challenger'}: {registration.reason}"
    )


if __name__ == "__main__":
    run_stage(main)
