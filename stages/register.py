"""Stage register: the best seed by development PR-AUC becomes a version of the registered model, and champion by the rule."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from pipeline.check import load_project
from pipeline.errors import run_stage
from pipeline.files import read_json, write_json
from pipeline.project import EVALUATE, MODELS, PROFILE, REGISTER, TRAIN, data_digests, git_commit, pipeline_digest


def main() -> None:
    """Pick the best seed, register it, apply the promotion rule, write results/register.json."""
    root = Path.cwd()
    p, execution = load_project()
    # These take seconds to import: not before the parameters are known to be right.
    from pipeline import tracking
    from pipeline.calibration import Calibration
    from pipeline.job import installed
    from pipeline.lineage import data_sets
    from pipeline.model_card import About
    from pipeline.places import Places
    from pipeline.registry import register_model
    from pipeline.registry.judge import Judge
    from pipeline.registry.publishing import published
    from pipeline.summary import flatten, read_outcomes

    per_seed = read_json(EVALUATE / "per_seed.json")
    # The evaluated score, not the one seen in training: it is computed without autocast, the same way for every model.
    trial, outcome = max(
        read_outcomes(TRAIN / "outcomes.json"), key=lambda pair: per_seed[f"seed-{pair[0].seed}"]["dev"]["pr_auc"]
    )
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
    )
    calibration = Calibration(
        threshold=numbers["dev"]["threshold"],
        entailment_if=p.evaluate.entailment_if,
        swept_on="dev",
        pairs=digests["dev"],
        accuracy=numbers["dev"]["accuracy"],
    )
    tracker, parent = tracking.enter_pipeline(p, execution.tracking, root)
    with (
        tracking.stage_of(tracker, parent),
        Places.of_project(root, execution.cluster.storage) as places,
        published(MODELS / f"seed-{trial.seed}", about, calibration) as folder,
    ):
        run_id = tracking.ensure_trial(tracker, parent, trial, outcome)
        done = register_model(
            tracker,
            p.register_.name,
            folder,
            run_id,
            {
                tracking.DIGEST_TAG: pipeline_digest(p),
                "pipeline_run": parent,
                "trial": trial.digest,
                "seed": str(trial.seed),
                **{f"{name}_digest": value for name, value in digests.items()},
                "git_commit": commit,
                **{f"param.{key}": str(value) for key, value in trial.parameters().items()},
                **{key: f"{value:.4f}" for key, value in flatten(numbers).items() if key.endswith((".pr_auc", ".sim"))},
            },
            dev_pr_auc=numbers["dev"]["pr_auc"],
            judge=Judge(
                register=p.register_,
                evaluate=p.evaluate,
                objective=p.objective,
                root=root,
                places=places,
                tracking_uri=tracker.uri,
            ),
        )
    write_json(REGISTER, asdict(done))
    print(f"register: {done.name} version {done.version} is {done.alias or 'neither champion nor challenger'}: {done.reason}")


if __name__ == "__main__":
    run_stage(main)
