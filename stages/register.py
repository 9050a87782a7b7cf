"""Stage register: registers the seed with the best development score as a model version and applies the promotion rule."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import asdict
from math import isfinite, nan
from pathlib import Path

from pipeline.cluster.preflight import load_project
from pipeline.config.job_inputs import git_commit, installed
from pipeline.config.paths import DEV_TOKENS, EVALUATE, MODELS, PROFILE, REGISTER, TRAIN
from pipeline.data.schema import DEV
from pipeline.families.family import families, part
from pipeline.identity.pipeline_run import data_digests, pipeline_digest
from pipeline.trials.recipe_run import MAIN
from pipeline.utils.atomic_io import read_json, write_json
from pipeline.utils.errors import UserError, run_stage
from pipeline.utils.logs import log


def main() -> None:
    """Pick the best seed, register it, apply the promotion rule, write results/register.json.

    DVC runs this stage every time: the registry may have changed. If it has not, nothing is loaded or scored.
    """
    root = Path.cwd()
    p, execution = load_project()
    # Imported only after the parameters are checked: these take a second.
    from pipeline.evaluation.aggregate import flat_headlines, read_outcomes
    from pipeline.registry.alias_log import CHAMPION
    from pipeline.registry.champions import register_model
    from pipeline.registry.promotion import set_of, undefined
    from pipeline.registry.version_scorer import VersionScorer
    from pipeline.registry.versions import TRIAL_TAG
    from pipeline.tracking import mlflow_runs
    from pipeline.trials.store import TrialStore

    per_seed = read_json(EVALUATE / "per_seed.json")[MAIN]
    metric = p.register_.metric
    dev = set_of(metric, DEV)
    if not all(isfinite(numbers.get(dev, {}).get(metric, nan)) for numbers in per_seed.values()):
        raise UserError(undefined(metric, dev))
    # The score from stage evaluate, not from training: it is computed without autocast, the same way for every model.
    outcomes = read_outcomes(TRAIN / "outcomes.json")
    trial, _ = max(outcomes, key=lambda pair: per_seed[f"seed-{pair[0].seed}"][dev][metric])
    numbers = per_seed[f"seed-{trial.seed}"]
    encoder, commit, digests = MODELS / f"seed-{trial.seed}", git_commit(root), data_digests()

    def publish() -> AbstractContextManager[Path]:
        # Imported only for a new version, because it takes seconds.
        from pipeline.models.relation_head import read_relation
        from pipeline.registry.publishing import About, published
        from pipeline.tracking.datasets import data_sets

        profile = read_json(PROFILE)
        about = About(
            name=p.register_.name,
            trial=trial,
            numbers=numbers,
            hypothesis_only=profile.get("hypothesis_only", {}),
            generated=profile["source"] == "generated",
            data=data_sets(profile),
            commit=commit,
            versions=installed(),
            relation=head.scale if (head := read_relation(encoder)) else None,
        )
        owners = [part(family, "calibration") for family in families() if family.labelled]
        calibration = next((one.calibration_of(numbers, p.evaluate, digests[DEV]) for one in owners), None)
        return published(encoder, about, calibration, DEV_TOKENS)

    tracker, parent = mlflow_runs.enter_pipeline(p, execution.tracking, root)
    with mlflow_runs.stage_of(tracker, parent), TrialStore.of_project(root, execution.cluster.storage) as store:
        # MLflow lacks the runs of these trials if stages train and evaluate came from DVC's cache.
        runs = {one.digest: mlflow_runs.ensure_trial(tracker, parent, one, outcome) for one, outcome in outcomes}
        for one, _ in outcomes:
            mlflow_runs.log_metrics(tracker, runs[one.digest], flat_headlines(per_seed[f"seed-{one.seed}"]))
        registration = register_model(
            tracker,
            p.register_.name,
            encoder,
            runs[trial.digest],
            {
                mlflow_runs.DIGEST_TAG: pipeline_digest(p),
                "pipeline_run": parent,
                TRIAL_TAG: trial.digest,
                "seed": str(trial.seed),
                **{f"{name}_digest": value for name, value in digests.items()},
                "git_commit": commit,
                **{key: f"{value:.4f}" for key, value in flat_headlines(numbers).items()},
            },
            dev_score=numbers[dev][metric],
            scorer=VersionScorer(p.register_, p.evaluate, root, store, tracker.uri),
            published=publish,
        )
    write_json(REGISTER, asdict(registration))
    champion = "" if registration.alias == CHAMPION else f" (version {registration.champion_version} is champion)"
    log.info(
        f"register: {registration.name} version {registration.version} is "
        f"{registration.alias or 'neither champion nor challenger'}{champion}: {registration.reason}"
    )
    if registration.rollback:
        log.info(f"register: this version was champion before; to make it champion again: {registration.rollback}")


if __name__ == "__main__":
    run_stage(main)
