"""Stage register: the best seed by development PR-AUC becomes a version of the registered model."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from pipeline.check import load_project
from pipeline.data.tokens import digest
from pipeline.errors import run_stage
from pipeline.files import read_json, write_json
from pipeline.project import DEV_TOKENS, EVALUATE, MODELS, REGISTER, TRAIN, git_commit, pipeline_digest


def main() -> None:
    """Pick the best seed, register it, apply the promotion rule, write results/register.json."""
    root = Path.cwd()
    p, execution = load_project()
    # These take seconds to import: not before the parameters are known to be right.
    from pipeline import registry, tracking
    from pipeline.summary import flatten, read_outcomes

    per_seed = read_json(EVALUATE / "per_seed.json")
    # The evaluated score, not the one seen in training: it is computed without autocast, the same way for every model.
    trial, outcome = max(
        read_outcomes(TRAIN / "outcomes.json"), key=lambda pair: per_seed[f"seed-{pair[0].seed}"]["dev"]["pr_auc"]
    )
    numbers = per_seed[f"seed-{trial.seed}"]
    tracker, parent = tracking.enter_pipeline(p, execution.tracking, root)
    with tracking.stage_of(tracker, parent):
        run_id = tracking.ensure_trial(tracker, parent, trial, outcome)
        done = registry.register_model(
            tracker,
            p.register_.name,
            MODELS / f"seed-{trial.seed}",
            run_id,
            {
                tracking.DIGEST_TAG: pipeline_digest(p),
                "trial": trial.digest,
                "seed": str(trial.seed),
                "train_digest": trial.train_tokens,
                "git_commit": git_commit(root),
                **{key: f"{value:.4f}" for key, value in flatten(numbers).items() if key.endswith((".pr_auc", ".sim"))},
            },
            dev_pr_auc=numbers["dev"]["pr_auc"],
            dev_digest=digest(DEV_TOKENS),
        )
    write_json(REGISTER, asdict(done))
    print(f"register: {done.name} version {done.version} is {done.alias}: {done.reason}")


if __name__ == "__main__":
    run_stage(main)
