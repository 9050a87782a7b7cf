"""`python -m bench.figures PROJECT --name NAME --out FILE`: the figures of a finished run, as docs/figures has them.

The scores of each seed of the main recipe and of the variants, how long they were trained, their shares of the probe and of
changed words in premises of the test sets, the everyday pairs of the tests, the average precision by the first dimensions, the
hypothesis-only baseline, and commit and versions. tests/test_results.py computes the tables of docs/results.md from such a file.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pipeline.cli.probe import shares
from pipeline.config.load import load_execution, load_params
from pipeline.config.paths import EVALUATE, EXPERIMENTS, MODELS, PROFILE, TEST_TOKENS, TRAIN, home
from pipeline.data.generated.probe import Item, probe
from pipeline.data.schema import DEV, ENTAILMENT, LABELS
from pipeline.data.token_sets import PairSet, read_pairs, set_names
from pipeline.evaluation.encoding import encode_here
from pipeline.evaluation.metrics import average_precision
from pipeline.families.pairs.real_probe import real_pairs
from pipeline.families.pairs.real_probe import shares as real_shares
from pipeline.families.pairs.scoring import in_blocks
from pipeline.gaussian.distribution import Gaussian, similarity
from pipeline.identity.digests import library_versions
from pipeline.models.encoder import GaussianEncoder
from pipeline.models.relation_head import likeliest_labels
from pipeline.trials.recipe_run import MAIN
from pipeline.trials.trial_folder import BEST
from pipeline.trials.variants import variants_of
from pipeline.utils.errors import UserError, run_stage

_ITEMS, _SEED = 200, 1
# Pairs of each kind of changed words, and dimensions.
_CHANGED, _DIMS = 60, (128,)
_EVERYDAY = Path(__file__).parents[1] / "tests/everyday.tsv"


def main() -> None:
    """Read a project in which `dvc repro` has run; write the file."""
    parser = argparse.ArgumentParser(prog="python -m bench.figures", description=__doc__)
    parser.add_argument("project", type=Path, help="a checkout in which `make repro` has run")
    parser.add_argument("--name", required=True, help="of the main recipe in the tables")
    parser.add_argument("--out", type=Path, required=True)
    for fact in ("command", "machine", "time"):
        parser.add_argument(f"--{fact}", default="", help="kept as it is given")
    parser.add_argument("--alternatives", type=Path, help="what bench.alternatives has written for the project")
    parser.add_argument("--head-core-seconds", type=float, help="for fitting one relation head, encoding included; as measured")
    options = parser.parse_args()
    project: Path = options.project
    head = subprocess.run(["git", "-C", str(project), "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    figures = {
        "command": options.command,
        "commit": head.stdout.strip(),
        "machine": options.machine,
        "time": options.time,
        "versions": library_versions(),
        "training_seconds": training_seconds(project, options.name),
        "per_seed": scores(project, options.name),
        "hypothesis_only": _read(project / PROFILE)["hypothesis_only"],
        "probe": probed(models := models_of(project, options.name)),
        **asked(project, models, _read(project / EVALUATE / "per_seed.json")[MAIN]),
    }
    if options.alternatives is not None:
        measured = _read(options.alternatives)
        figures |= {key: measured[key] for key in ("alternatives", "microseconds")}
    if options.head_core_seconds is not None:
        figures["head_core_seconds"] = options.head_core_seconds
    options.out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def scores(project: Path, name: str) -> dict[str, dict[str, dict[str, dict[str, float]]]]:
    """Recipe → "seed N" → set → metric → value, rounded to four decimals."""
    main_recipe = _read(project / EVALUATE / "per_seed.json")[MAIN]
    variants = _read(project / EXPERIMENTS / "per_seed.json")
    if name in variants:
        raise UserError(f"--name is {name}, which is also the name of a variant; choose another")
    recipes = {name: main_recipe, **variants}
    return {
        recipe: {
            seed.replace("-", " "): {
                set_name: {key: round(value, 4) for key, value in sorted(metrics.items())} for set_name, metrics in sets.items()
            }
            for seed, sets in seeds.items()
        }
        for recipe, seeds in recipes.items()
    }


def training_seconds(project: Path, name: str) -> dict[str, dict[str, float]]:
    """Recipe → "seed N" → seconds that its training took, without a relation head that is fitted afterwards."""
    (main_recipe,) = _read(project / TRAIN / "variants.json")
    recipes = {name: main_recipe, **{variant["name"]: variant for variant in _read(project / EXPERIMENTS / "variants.json")}}
    return {
        recipe: {f"seed {of_seed['seed']}": round(of_seed["seconds"], 1) for of_seed in variant["seeds"]}
        for recipe, variant in recipes.items()
    }


def models_of(project: Path, name: str) -> dict[str, dict[str, Path]]:
    """Recipe → "seed N" → folder of its model. Without variants that have a relation head, which is not in a trial's folder."""
    params, execution = load_params(project / "params.yaml"), load_execution(project / "execution.yaml")
    headless = {v.name for v in variants_of(params) if v.params.model.relation_head == "none"}
    trials = home(project) / execution.cluster.storage / "trials"
    models = {name: {folder.name.replace("-", " "): folder for folder in sorted((project / MODELS).glob("seed-*"))}}
    for variant in _read(project / EXPERIMENTS / "variants.json"):
        if variant["name"] in headless:
            models[variant["name"]] = {
                f"seed {of_seed['seed']}": trials / of_seed["trial"] / BEST for of_seed in variant["seeds"]
            }
    return models


def probed(models: dict[str, dict[str, Path]]) -> dict[str, dict[str, dict[str, float]]]:
    """Recipe → "seed N" → phenomenon → percent; a recipe with relation heads also by similarity alone."""
    items: list[Item] = list(probe(_ITEMS, _SEED))
    out: dict[str, dict[str, dict[str, float]]] = {}
    for recipe, seeds in models.items():
        for seed, folder in seeds.items():
            encoder = GaussianEncoder.from_pretrained(folder)
            out.setdefault(recipe, {})[seed] = _rounded(shares(encoder, items))
            if encoder.relation_head is not None:
                encoder.relation_head = None
                out.setdefault(f"{recipe} by similarity alone", {})[seed] = _rounded(shares(encoder, items))
    return out


def asked(project: Path, models: dict[str, dict[str, Path]], numbers: dict[str, dict[str, dict[str, float]]]) -> dict[str, Any]:
    """Recipe → "seed N" → figures of changed words in real premises; of the main recipe also the everyday pairs, and the average
    precision by the first dimensions."""
    pairs = real_pairs(project, _CHANGED, _SEED)
    real: dict[str, Any] = {"pairs": Counter(pair.kind for pair in pairs)}
    out: dict[str, Any] = {"real_probe": real, "everyday": {}, "dims": {}}
    for recipe, seeds in models.items():
        for seed, folder in seeds.items():
            encoder = GaussianEncoder.from_pretrained(folder)
            real.setdefault(recipe, {})[seed] = _rounded(real_shares(encoder, pairs))
            if encoder.relation_head is not None:
                threshold = numbers[seed.replace(" ", "-")][DEV]["threshold"]
                out["everyday"][seed] = everyday(encoder, threshold)
                out["dims"][seed] = by_dims(encoder, folder, project)
    return out


def everyday(encoder: GaussianEncoder, threshold: float) -> dict[str, int]:
    """How many of tests/everyday.tsv, twenty of each label, the model is right on."""
    rows = [line.split("\t") for line in _EVERYDAY.read_text(encoding="utf-8").splitlines()]
    gold, premises, hypotheses = (list(column) for column in zip(*rows, strict=True))
    yes = encoder.entails(premises, hypotheses, threshold=threshold).tolist()
    direction = (encoder.direction(premises, hypotheses) > 0).tolist()
    likeliest = likeliest_labels(np.stack(encoder.relation(premises, hypotheses), 1)).tolist()
    return {
        "right": sum(said == (label == "E") for said, label in zip(yes, gold, strict=True)),
        "contradictions called entailment": sum(said and label == "C" for said, label in zip(yes, gold, strict=True)),
        "directions right": sum(said and label == "E" for said, label in zip(direction, gold, strict=True)),
        "three-way right": sum(LABELS[said][0].upper() == label for said, label in zip(likeliest, gold, strict=True)),
    }


def by_dims(encoder: GaussianEncoder, folder: Path, project: Path) -> dict[str, dict[str, dict[str, float]]]:
    """Number of dimensions → test set → average precision by the similarity and by the score, of the first dimensions."""
    relation, kind, store = encoder.relation_head, encoder.score_kind, project / TEST_TOKENS
    assert relation is not None and kind != "cosine"
    (sentences,) = encode_here(folder, [store], project=relation.projection)
    out: dict[str, dict[str, dict[str, float]]] = {}
    for dims in (encoder.dim, *(dims for dims in _DIMS if dims < encoder.dim)):
        cut = Gaussian(sentences.mean[:, :dims], sentences.log_var[:, :dims], tokens=sentences.tokens)
        of_dims = out[str(dims)] = {}
        for name in set_names(store, PairSet):
            pairs = read_pairs(store, name)
            blocks = list(in_blocks(cut, pairs.premise, pairs.hypothesis))
            scores = {
                "similarity": torch.cat([similarity(h, p, kind) for p, h in blocks]),
                "score": torch.cat([relation.score(p, h) for p, h in blocks]),
            }
            gold = np.asarray(pairs.label) == ENTAILMENT
            of_dims[name] = _rounded({by: 100 * average_precision(gold, values.numpy()) for by, values in scores.items()})
    return out


def _rounded(values: dict[str, float]) -> dict[str, float]:
    return {key: round(value, 4) for key, value in values.items()}


if __name__ == "__main__":
    run_stage(main)
