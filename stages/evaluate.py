"""Stage evaluate: every model on the development set and every test set; per-pair scores, numbers, curves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.check import load_project
from pipeline.data.tokens import open_store, read_pairs, read_sts, set_names
from pipeline.errors import run_stage
from pipeline.files import read_json, write_directory, write_json
from pipeline.params import ObjectiveParams
from pipeline.project import (
    DEV_TOKENS,
    EVALUATE,
    MODELS,
    PROFILE,
    TEST_TOKENS,
    TRAIN,
)

if TYPE_CHECKING:
    from pipeline.gaussian import Gaussian


def main() -> None:
    """Read models and token stores, score everything, write results/evaluate."""
    root = Path.cwd()
    p, execution = load_project()
    # These take seconds to import: not before the parameters are known to be right.
    from pipeline import cluster, tracking
    from pipeline.evaluation import nli_metrics, sts_metrics, sweep
    from pipeline.summary import flatten, headline, mean_and_sd, pr_curve_csv, read_outcomes

    outcomes = read_outcomes(TRAIN / "outcomes.json")
    tracker, parent = tracking.enter_pipeline(p, execution.tracking, root)
    with tracking.stage_of(tracker, parent), write_directory(EVALUATE) as out:
        seeds: dict[str, dict[str, dict[str, float]]] = {}
        curves: dict[str, pa.Table] = {}
        with cluster.session(execution.cluster) as on:
            for trial, outcome in outcomes:
                name = f"seed-{trial.seed}"
                print(f"evaluate: {name}", flush=True)
                dev, tests = cluster.encode_stores(root / MODELS / name, [root / DEV_TOKENS, root / TEST_TOKENS], on)
                tables = score_sets(dev, tests, p.objective)
                for set_name, table in tables.items():
                    folder = out / "scores" / set_name
                    folder.mkdir(parents=True, exist_ok=True)
                    pq.write_table(table, folder / f"{name}.parquet", compression="zstd")
                thresholds = {
                    on_set: sweep(tables[on_set], on_set, p.evaluate) for on_set in {"dev", *p.evaluate.threshold_on.values()}
                }
                seeds[name] = {
                    set_name: sts_metrics(table)
                    if "cosine" in table.column_names
                    else nli_metrics(table, thresholds[p.evaluate.threshold_on.get(set_name, "dev")], p.evaluate)
                    for set_name, table in tables.items()
                }
                curves |= {f"{set_name}/{name}": t for set_name, t in tables.items() if "label" in t.column_names}
                run_id = tracking.ensure_trial(tracker, parent, trial, outcome)
                tracking.log_metrics(tracker, run_id, flatten(seeds[name]))
        baseline = read_json(PROFILE)["hypothesis_only"]
        summary = mean_and_sd(seeds)
        write_json(out / "summary.json", {"sets": summary, "hypothesis_only": baseline})
        write_json(out / "metrics.json", headline(summary))
        write_json(out / "per_seed.json", seeds)
        (out / "pr_curves.csv").write_text(pr_curve_csv(curves), encoding="utf-8")
        tracking.log_metrics(tracker, parent, flatten({f"{k}.hypothesis_only": v for k, v in baseline.items()}))
        tracking.log_metrics(tracker, parent, flatten(summary))
    for set_name, numbers in summary.items():
        shown = {k: v for k, v in numbers.items() if k in ("pr_auc", "accuracy", "direction.sim", "spearman_cosine")}
        print(f"evaluate: {set_name}: " + ", ".join(f"{k} {v['mean']:.2f}" for k, v in shown.items()))


def score_sets(dev: Gaussian, tests: Gaussian, objective: ObjectiveParams) -> dict[str, pa.Table]:
    """Per-pair scores of the development set ("dev") and every test set, in the order of the token store."""
    from pipeline.evaluation import score_nli, score_sts
    from pipeline.objectives import make_objective

    chosen = make_objective(objective.name, objective.similarity, objective.temperature)
    kind = objective.similarity if chosen.uses_variance else None
    dev_store, test_store = open_store(DEV_TOKENS), open_store(TEST_TOKENS)
    nli, sts = set_names(TEST_TOKENS)
    tables = {"dev": score_nli(dev, dev_store, read_pairs(DEV_TOKENS, "dev"), chosen, kind)}
    tables |= {name: score_nli(tests, test_store, read_pairs(TEST_TOKENS, name), chosen, kind) for name in nli}
    tables |= {name: score_sts(tests, read_sts(TEST_TOKENS, name), kind) for name in sts}
    return tables


if __name__ == "__main__":
    run_stage(main)
