"""The sections of params.yaml: keys that decide what comes out.

What each key means, its unit and what the paper and the released code use stands beside it in the file.
"""

from __future__ import annotations

import math
import posixpath
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from pipeline.key_errors import Needless, WrongKey
from pipeline.values import (
    BatchSize,
    Commit,
    Fraction,
    LabelMeanings,
    LearningRate,
    Listed,
    Positive,
    PositiveFloat,
    Seed,
    Seeds,
    Text,
    VariantName,
)

PARAMS_FILE = "params.yaml"

# The committed values of two keys that only some choices use: at these they ask for nothing, anything else is asked in vain.
UNUSED_SIMILARITY = "kl"
UNUSED_WARMUP = (0.0, 0.1)
# Under σ² stands a floor of 1e-6 (pipeline/encoder.py, whose source decides results); where a log-variance starts nearer to its
# logarithm, the gradient is gone.
_LOWEST_LOG_VAR = -13

ObjectiveName = Literal["ent", "ent+con", "ent+rev", "ent+con+rev", "simcse"]
SimilarityKind = Literal["kl", "kl-dimwise"]
SamePremise = Literal["keep", "separate", "mask"]
Schedule = Literal["warmup-linear-decay", "linear-decay", "linear-rise"]


class Section(BaseModel):
    """Base of all sections: unknown keys are errors, values are not coerced, objects are immutable."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)


class GeneratedParams(Section):
    """Number of pairs of each split of the generated source."""

    train: Positive
    dev: Positive
    test: Positive


class FileSpec(Section):
    """One file of pairs; where the columns are null, they are found by the known layouts."""

    path: str
    """Relative to `data.root`."""
    premise: str | None = None
    """Column of the premises."""
    hypothesis: str | None = None
    """Column of the hypotheses."""
    label: str | None = None
    """Column of the labels."""
    reverse_label: str | None = None
    """Column with the label of the pair read the other way round (SICK's entailment_BA); splits direction by one/two-way."""
    labels: LabelMeanings = {}
    """What the file's own label names mean; the three in any case, '' and '-' need no saying."""
    where: dict[str, str] = {}
    """Column: value; rows with another value do not belong to the set."""

    @property
    def identity(self) -> tuple[str, tuple[tuple[str, str], ...]]:
        """The part of the file that is read; equal for two specs of the same rows."""
        return posixpath.normpath(self.path), tuple(sorted(self.where.items()))


class StsSpec(Section):
    """One file of sentence pairs with a graded similarity; columns as in `FileSpec`."""

    path: str
    """Relative to `data.root`."""
    sentence1: str | None = None
    """Column of the first sentences."""
    sentence2: str | None = None
    """Column of the second ones."""
    score: str | None = None
    """Column of the scores, numbers."""
    where: dict[str, str] = {}
    """As in `FileSpec`."""


class FilesParams(Section):
    """Files of the `files` source; paths are relative to `data.root`."""

    train: tuple[FileSpec, ...] = ()
    dev: FileSpec | None = None
    tests: dict[str, FileSpec] = {}
    sts: dict[str, StsSpec] = {}


class HubSpec(Section):
    """One split of a data set of the Hugging Face hub, or of a folder of one under `data.root`; columns as in `FileSpec`."""

    dataset: str
    """Id of the hub, or a folder under `data.root`."""
    config: str | None = None
    """Configuration, where the data set has several."""
    split: str
    """For example train."""
    revision: Commit | None = None
    """Commit of the data set; required for one of the hub, null for a folder."""
    premise: str | None = None
    """This and the next columns as in `FileSpec`."""
    hypothesis: str | None = None
    """As in `FileSpec`."""
    label: str | None = None
    """As in `FileSpec`."""
    reverse_label: str | None = None
    """As in `FileSpec`."""
    labels: LabelMeanings = {}
    """As in `FileSpec`; the names of a ClassLabel column are known."""
    where: dict[str, str] = {}
    """As in `FileSpec`."""

    @property
    def name(self) -> str:
        """What messages and counts call it."""
        return ":".join(part for part in (self.dataset, self.config, self.split) if part)

    @property
    def identity(self) -> tuple[str, tuple[tuple[str, str], ...]]:
        """As `FileSpec.identity`."""
        return f"{self.name}@{self.revision}", tuple(sorted(self.where.items()))


class HubParams(Section):
    """Data sets of the `hub` source."""

    train: tuple[HubSpec, ...] = ()
    dev: HubSpec | None = None
    tests: dict[str, HubSpec] = {}


class DataParams(Section):
    """What is read and how triplets are made of it (stage prepare)."""

    source: Literal["generated", "files", "hub"]
    root: Text
    seed: Seed
    unlabelled: Literal["drop", "non-entailment"]
    promotion_share: Annotated[float, Field(gt=0, lt=1)]
    contradictions: Literal["cycle", "random"]
    generated: GeneratedParams
    files: FilesParams
    hub: HubParams = HubParams()

    @model_validator(mode="after")
    def _files_are_named(self) -> DataParams:
        if self.source == "generated":
            return self
        source = self.source
        sets = self.files if source == "files" else self.hub
        sts = self.files.sts if source == "files" else {}
        if not sets.train:
            raise WrongKey(f"{source}.train", [], f"names nothing to train on: list at least one when source is {source}")
        if sets.dev is None:
            raise WrongKey(f"{source}.dev", None, f"names no development set: name one when source is {source}")
        for name in (*sets.tests, *sts):
            if not name.replace("_", "").replace("-", "").isalnum() or name in ("dev", "promotion"):
                raise ValueError(f"test set name {name!r} must be letters, digits, - and _, and neither 'dev' nor 'promotion'")
        both = set(sets.tests) & set(sts)
        if both:
            raise ValueError(f"test set name {min(both)!r} stands in both files.tests and files.sts: rename one")
        if sets.dev.identity in {spec.identity for spec in sets.tests.values()}:
            raise ValueError(f"{sets.dev.identity[0]!r} is both the development set and a test set: remove one")
        return self


class ModelParams(Section):
    """The Gaussian encoder: backbone and heads."""

    backbone: Text
    revision: Commit | None
    max_length: Annotated[int, Field(ge=3, lt=2**31)]
    dim: Positive | None
    pooling: Literal["first", "mean"]
    mean_activation: Literal["tanh", "none"]
    variance_head: Literal["log_var", "sigma"]
    log_var_init: Annotated[float, Field(ge=_LOWEST_LOG_VAR, le=20)] | None
    log_var_bound: PositiveFloat | None

    @model_validator(mode="after")
    def _init_is_within_the_bound(self) -> ModelParams:
        if self.log_var_init is not None and self.log_var_bound is not None and abs(self.log_var_init) >= self.log_var_bound:
            message = f"is not within model.log_var_bound (±{self.log_var_bound:g}); choose a number nearer 0, or raise the bound"
            raise WrongKey("log_var_init", self.log_var_init, message)
        return self

    @model_validator(mode="after")
    def _sigma_can_start_there(self) -> ModelParams:
        start, bound = self.log_var_init, self.log_var_bound
        if self.variance_head != "sigma" or start is None or bound is None:
            return self
        # What is bounded afterwards starts farther out; below the floor under σ² no gradient brings it back.
        if bound * math.atanh(start / bound) < _LOWEST_LOG_VAR:
            message = "is too near model.log_var_bound for variance_head: sigma; choose a number nearer 0, or raise the bound"
            raise WrongKey("log_var_init", start, message)
        return self


class ObjectiveParams(Section):
    """The loss (paper Eq. 4)."""

    name: ObjectiveName
    similarity: SimilarityKind
    temperature: PositiveFloat
    reduction: Literal["mean", "sum"]
    neutral_block: bool
    simcse_weight: Annotated[float, Field(ge=0)]
    reverse_weight: PositiveFloat

    @model_validator(mode="after")
    def _similarity_is_used(self) -> ObjectiveParams:
        if self.name == "simcse" and self.similarity != UNUSED_SIMILARITY:
            message = f"has no effect with name: simcse, which compares means by cosine; set it to {UNUSED_SIMILARITY}"
            raise Needless("similarity", self.similarity, message)
        return self

    @model_validator(mode="after")
    def _reverse_weight_is_used(self) -> ObjectiveParams:
        if "rev" not in self.name and self.reverse_weight != 1:
            message = f"has no effect with name: {self.name}, which has no reversed set; set it to 1.0"
            raise Needless("reverse_weight", self.reverse_weight, message)
        return self

    @model_validator(mode="after")
    def _simcse_weight_is_used(self) -> ObjectiveParams:
        if self.name == "simcse" and self.simcse_weight:
            raise Needless(
                "simcse_weight", self.simcse_weight, "has no effect with name: simcse, which is that term; set it to 0.0"
            )
        return self


class TrainParams(Section):
    """How a model is trained; learning rate and batch size come from the grid (section tune)."""

    epochs: Positive
    triplets: Literal["with-contradiction", "all"]
    same_premise: SamePremise
    not_longer_share: Fraction | None
    batch_lengths: Literal["mixed", "matched"]
    schedule: Schedule
    warmup_ratio: Fraction
    head_rate_factor: PositiveFloat
    weight_decay: Annotated[float, Field(ge=0)]
    precision: Literal["bf16", "fp32"]
    length_groups: Positive
    micro_batch: Positive | None
    eval_every: Positive
    step_zero_eligible: bool
    seeds: Seeds

    @model_validator(mode="after")
    def _warmup_is_used(self) -> TrainParams:
        if self.schedule != "warmup-linear-decay" and self.warmup_ratio not in UNUSED_WARMUP:
            message = f"has no effect with schedule: {self.schedule}; set it to {UNUSED_WARMUP[-1]}, or use warmup-linear-decay"
            raise Needless("warmup_ratio", self.warmup_ratio, message)
        return self

    @model_validator(mode="after")
    def _batches_can_be_drawn(self) -> TrainParams:
        if self.batch_lengths == "matched" and self.same_premise == "separate":
            message = "cannot be had with same_premise: separate, which also decides which triplets meet; use mask or keep there"
            raise WrongKey("batch_lengths", self.batch_lengths, message)
        return self


class TuneParams(Section):
    """The grid: every learning rate × batch size × seed is one trial."""

    learning_rates: Annotated[tuple[LearningRate, ...], *Listed]
    batch_sizes: Annotated[tuple[BatchSize, ...], *Listed]
    seeds: Seeds
    early_stopping: Literal["none", "asha"]
    grace_scorings: Positive
    reduction_factor: Annotated[int, Field(ge=2, lt=2**31)]


class EvaluateParams(Section):
    """How scores become decisions."""

    threshold_step: Annotated[float, Field(gt=0, le=1)]
    entailment_if: Literal[">=", ">"]
    threshold_on: dict[str, str]

    @model_validator(mode="after")
    def _step_divides_one(self) -> EvaluateParams:
        steps = 1 / self.threshold_step
        if abs(steps - round(steps)) > 1e-6 * steps:
            raise WrongKey("threshold_step", self.threshold_step, "does not divide 1; use 0.001, 0.01 or the like")
        return self


class ExperimentParams(Section):
    """What is compared with the main recipe (stage experiment): overrides of the keys of model, objective, train and tune."""

    variants: dict[VariantName, dict[str, Any]]
    sweep: dict[str, Annotated[list[Any], Field(min_length=1)]]


class ReportParams(Section):
    """What the report shows of the data."""

    examples: Literal["full", "ids", "none"]


class RegisterParams(Section):
    """The MLflow registered model, and the rule by which a version becomes its champion."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+$")]
    min_gain: Annotated[float, Field(ge=0)]
    confidence: Annotated[float, Field(ge=0.5, lt=1)]
    resamples: Annotated[int, Field(ge=100, le=1_000_000)]
    max_direction_drop: Annotated[float, Field(ge=0)]
    max_test_drop: Annotated[float, Field(ge=0)]
    max_megabytes: PositiveFloat | None


class Params(Section):
    """All result keys."""

    data: DataParams
    model: ModelParams
    objective: ObjectiveParams
    train: TrainParams
    tune: TuneParams
    evaluate: EvaluateParams
    experiments: ExperimentParams
    register_: Annotated[RegisterParams, Field(alias="register")]
    report: ReportParams

    @model_validator(mode="after")
    def _micro_batch_is_used(self) -> Params:
        largest = (4 if self.objective.neutral_block else 3) * max(self.tune.batch_sizes)
        if self.train.micro_batch is not None and self.train.micro_batch > largest:
            message = f"has no effect: the largest batch of tune.batch_sizes has at most {largest} sentences; use null, or fewer"
            raise Needless("train.micro_batch", self.train.micro_batch, message)
        return self

    @model_validator(mode="after")
    def _names_agree(self) -> Params:
        known = ("dev", *test_set_names(self.data))
        if "dev" in self.evaluate.threshold_on:
            message = "the development set's threshold is its own; name test sets only"
            raise WrongKey("evaluate.threshold_on", {"dev": self.evaluate.threshold_on["dev"]}, message)
        for test_set, on in self.evaluate.threshold_on.items():
            for name in (test_set, on):
                if name not in known:
                    raise WrongKey("evaluate.threshold_on", name, f"no such set of pairs; there are {', '.join(known)}")
            if test_set == on != "dev":
                message = "the threshold of a test set may not be swept on itself; name another set, or leave it out for dev"
                raise WrongKey("evaluate.threshold_on", {test_set: on}, message)
        return self


def test_set_names(data: DataParams) -> tuple[str, ...]:
    """Names of the NLI test sets that stage prepare will write."""
    tests = {"generated": ("generated_test",), "files": data.files.tests, "hub": data.hub.tests}
    return tuple(tests[data.source])
