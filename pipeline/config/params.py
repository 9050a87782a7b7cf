"""The sections of params.yaml: the keys that determine the results.

Each key has a docstring with its meaning, its unit, and what the paper and the released code use; docs/parameters.md and the JSON
schemas are generated from these. "Paper" is Sentence Representations via Gaussian Embedding (English and Japanese versions);
"released code" is the code of its authors.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticKnownError

from pipeline.config.data_params import DataParams, test_set_names
from pipeline.config.messages import WrongKey
from pipeline.config.objectives import ObjectiveParams
from pipeline.config.types import Commit, Listed, Positive, PositiveFloat, Section, Seeds, Text
from pipeline.families.family import deciding_metrics, family_named, family_of

MODEL_NAME = r"^[A-Za-z0-9_.-]+$"
PARAMS_FILE = "params.yaml"

# Values of warmup_ratio that are accepted with schedules that ignore it; any other value would be set in vain.
UNUSED_WARMUP = (0.0, 0.1)

SamePremise = Literal["keep", "mask"]
RelationHeadKind = Literal["none", "tokens"]
Schedule = Literal["warmup-linear-decay", "linear-decay", "linear-rise"]


def _deciding(metric: str) -> str:
    known = deciding_metrics()
    if metric not in known:
        *most, last = map(repr, known)
        raise PydanticKnownError("literal_error", {"expected": f"{', '.join(most)} or {last}"})
    return metric


def _listed(schema: dict[str, Any]) -> None:
    schema["enum"] = [*deciding_metrics()]


class ModelParams(Section):
    """The Gaussian encoder: backbone and heads."""

    backbone: Text
    """package:NAME is an encoder inside a Python package; a folder; or a Hugging Face id (from the hub or its cache). A cluster
    gets the files of the last two from the machine that sends the work. Paper and released code: bert-base-uncased and others.
    The packaged MiniLM (22.7 M parameters, 384 dimensions) was tuned by its makers on a billion sentence pairs, SNLI and MNLI
    among them."""
    revision: Commit | None
    """Commit of a Hugging Face id; required there, null otherwise."""
    max_length: Annotated[int, Field(ge=3, lt=2**31)]
    """Longest sentence in tokens, with the two special ones. The rest is cut off and counted. Released code: 64."""
    dim: Positive | None
    """Dimensions D of the Gaussian; null is the hidden size of the backbone (paper, released code)."""
    pooling: Literal["first", "mean"]
    """How the hidden states of a sentence become one vector. first: that of the first token (paper, released code). mean: their
    mean over all tokens, which is how the packaged MiniLM was tuned."""
    mean_activation: Literal["tanh", "none"]
    """tanh (released code) or none (the paper mentions none)."""
    mean_start: Literal["random", "identity"]
    """How the linear layer of the mean starts. random: as the sources draw it. identity: it gives the pooled hidden state,
    repeated to fill dim, so training starts from the sentence vector of the backbone (with mean_activation: none). dim must be
    null or a multiple of the hidden size; for quickthoughts, an even multiple, so that f and g start the same."""
    variance_head: Literal["log_var", "sigma"]
    """log_var: a linear layer gives log σ² (released code). sigma: a linear layer gives σ (paper, both versions)."""
    towers: Literal["heads", "encoders"]
    """heads: one backbone gives all dimensions. encoders: the first half of the dimensions comes from one backbone, the second
    from another that starts from the same weights; QuickThoughts has two encoders in both of its sources. Twice the time."""


class ModelSection(ModelParams):
    """The Gaussian encoder (backbone and heads), and whether it gets a relation head."""

    relation_head: RelationHeadKind
    """tokens: after training, fit a small network on the frozen encoder that says whether a pair is an entailment, neutral, a
    contradiction, or an entailment turned round (section relation). It reads 96 bytes of each token of both sentences, so that
    one word can decide, and then scores the pairs. none: the similarity scores them (paper, released code). Switching it on
    trains no encoder again."""

    @property
    def encoder(self) -> ModelParams:
        """The keys that decide the encoder's weights."""
        return ModelParams.model_validate(self.model_dump(exclude={"relation_head"}))


class RelationParams(Section):
    """The relation head that is fitted on a frozen encoder (model.relation_head); not used without one."""

    epochs: Positive
    """Passes over all labelled training pairs, and the entailment pairs turned round."""
    similarity_weight: Annotated[float, Field(ge=0)]
    """w: whether two sentences belong together is decided by the head's log-odds plus w times those of the similarity, each
    divided by its standard deviation on the development set. 0: the head alone, which can read much from the hypothesis."""


class TrainParams(Section):
    """How a model is trained; learning rate and batch size come from the grid (section tune)."""

    epochs: Annotated[int, Field(ge=0, lt=2**31)]
    """Passes over the triplets, or over the text. Paper: 3. Released code: 1. 0: the encoder is not trained, as a
    baseline; a relation head is fitted on it all the same (model.relation_head)."""
    triplets: Literal["with-contradiction", "all"]
    """with-contradiction: the same triplets for every objective (fair ablation). all: every entailment pair, with the missing
    contradiction masked out of the loss."""
    same_premise: SamePremise
    """A premise has about two entailments, so a batch can hold a true entailment among a row's negatives. keep: no change (paper,
    released code). mask: such an entailment is left out of the loss of the rows where it would be wrong. Stage train counts the
    cases."""
    block_rows: Positive | None
    """null: an epoch is one random order of all rows (paper, released code). A number, for data whose tokens a node cannot keep
    (cluster.shard_cache_gb): each epoch puts blocks of so many consecutive rows in random order and mixes the rows of every eight
    blocks. Consecutive batches then need few shards, which have 262,144 sentences each: 65536 suits them. Batches of few blocks
    hold more rows of one source and one premise."""
    schedule: Schedule
    """warmup-linear-decay (released code: 10 % warm-up) | linear-decay (Japanese paper: falls from the start) | linear-rise
    (English paper: rises from 0 to the end)."""
    warmup_ratio: Annotated[float, Field(ge=0, le=1)]
    """Share of the steps that warm up (warmup-linear-decay only)."""
    head_rate_factor: PositiveFloat
    """Learning rate of what is new (the two heads, and the objective's own networks) as a multiple of the backbone's, which is
    pretrained. For intersent a mean head that starts as the identity (`model.mean_start`) is not new. Paper and released
    code: 1."""
    weight_decay: Annotated[float, Field(ge=0)]
    """Decoupled weight decay of AdamW; biases and LayerNorm are excluded. Released code: 0.01; the paper does not say."""
    precision: Literal["bf16", "fp32"]
    """bf16: autocast, weights stay float32; computed as fp32, with a warning, where a worker's processor has no bf16 instructions
    (most laptops). fp32: no autocast. The training sentences of a relation head are encoded in the same precision."""
    length_groups: Positive
    """The sentences of a batch are sorted by length and encoded in at most this many groups, each padded to its longest sentence.
    This changes the speed only, not the mathematics."""
    micro_batch: Positive | None
    """Sentences encoded at a time, by gradient caching: large global batches in little memory, for about a fifth more time. null:
    the whole share of a worker at once."""
    eval_every: Positive
    """Optimizer steps between two scorings of the development set (and two checkpoints). Paper and released code: 100."""
    step_zero_eligible: bool
    """Whether the untrained model may be the best checkpoint. Released code: true; the paper does not say."""
    seeds: Seeds
    """One final model for each seed. Paper: five. Trials that the grid has already trained are reused."""

    @model_validator(mode="after")
    def _keys_agree(self) -> TrainParams:
        if self.schedule != "warmup-linear-decay" and self.warmup_ratio not in UNUSED_WARMUP:
            message = f"has no effect with schedule: {self.schedule}; set it to {UNUSED_WARMUP[-1]}, or use warmup-linear-decay"
            raise WrongKey("warmup_ratio", self.warmup_ratio, message)
        return self


class TuneParams(Section):
    """The grid: every learning rate × batch size × seed is one trial. The pair with the highest mean development score over its
    seeds is chosen."""

    learning_rates: Annotated[tuple[Annotated[float, Field(gt=0, le=1)], ...], *Listed]
    """Peak learning rates of AdamW."""
    batch_sizes: Annotated[tuple[Annotated[int, Field(ge=2, lt=2**31)], ...], *Listed]
    """Triplets in the global batch, over all workers. Paper: 64–512 in the text, 16–256 in its table. Released code: 16–512."""
    seeds: Seeds
    """Seeds with which each point of the grid is trained. Trials that train.seeds needs too are not trained again."""
    early_stopping: Literal["none", "asha"]
    """none: every trial is trained to its end (paper). asha: asynchronous successive halving stops a trial whose development
    score is not among the best 1/reduction_factor of the trials that got as far. Which trials are stopped depends on timing."""
    grace_scorings: Positive
    """Scorings of the development set before a trial may be stopped (asha)."""
    reduction_factor: Annotated[int, Field(ge=2, lt=2**31)]
    """One trial in this many goes on at each rung; the rungs are grace_scorings times the powers of this number (asha)."""


class EvaluateParams(Section):
    """How scores become decisions."""

    threshold_step: Annotated[float, Field(gt=0, le=1)]
    """The threshold is swept from 0 to 1 by this step, and so is that of the hypothesis-only baseline. Released code: 0.001."""
    entailment_if: Literal[">=", ">"]
    """Entailment if score >= threshold (Japanese paper, released code) or > threshold (English paper)."""
    threshold_on: dict[str, str]
    """Which set a test set's threshold is swept on. Sets without an entry use the development set, as in the released code
    (SNLI's for SICK too). The paper says "a development set"; for SICK's own: {sick_test: sick_dev}, both among the tests."""

    transfer_search: bool
    """Whether the C of the regression of a transfer task (data.files.tasks) is searched, as in SentEval: on the task's
    development rows, or by ten folds within the training rows, which takes a hundred times as long. false: C is 1."""

    @model_validator(mode="after")
    def _step_divides_one(self) -> EvaluateParams:
        steps = 1 / self.threshold_step
        if abs(steps - round(steps)) > 1e-6 * steps:
            raise WrongKey("threshold_step", self.threshold_step, "does not divide 1; use 0.001, 0.01 or the like")
        return self


class ExperimentParams(Section):
    """What is compared with the main recipe (stage experiment): overrides of the keys of model, objective, train and tune."""

    variants: dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+=-]*$", max_length=80)], dict[str, Any]]
    """Recipes to compare, by name: {simcse: {objective.name: simcse}, low-rate: {tune.learning_rates: [3.0e-5]}}. A variant is
    this file with some keys of model, objective, train and tune changed. It goes through its own grid (tune) and final seeds
    (train.seeds), and is scored on every set. The backbone, its revision and max_length cannot vary: the token stores depend on
    them."""


class ReportParams(Section):
    """What the report shows of the data."""

    examples: Literal["full", "ids", "none"]
    """The pairs the model gets most wrong. ids: set and row numbers. full: their sentences too. none: no such section."""


class RegisterParams(Section):
    """The MLflow registered model, and the rule by which a version becomes its champion."""

    name: Annotated[str, Field(pattern=MODEL_NAME)]
    """Name of the registered model in MLflow; its history is kept in the registered model NAME.history."""
    metric: Annotated[str, AfterValidator(_deciding), Field(json_schema_extra=_listed)]
    """The metric that decides which seed is registered, and whether a version replaces the champion. pr_auc: entailment against
    the rest. directed_pr_auc: the direction of entailment as well; entailment pairs turned round are further negatives.
    next_sentence: how often the next sentence of running text is found among 64 (data.files.text). operator_mrr: how high the
    target of an operation ranks in a pool that also holds the inputs (data.files.operations)."""
    min_gain: Annotated[float, Field(ge=0)]
    """Points of register.metric on the promotion part of the development set (data.promotion_share) that a version must gain on
    the champion, with both scored on the same pairs. The lower end of the interval must be above it, not just the difference."""
    confidence: Annotated[float, Field(ge=0.5, lt=1)]
    """Confidence of all attempts against one champion together: the k-th model tried is decided by an interval of 1 − (1 −
    confidence) / (k (k + 1))."""
    resamples: Annotated[int, Field(ge=100, le=1_000_000)]
    """Draws of the paired bootstrap. A premise is drawn with all its pairs, and a document with all its sentences."""
    max_direction_drop: Annotated[float, Field(ge=0)]
    """Points that direction by the model's score may fall on the promotion part."""
    max_test_drop: Annotated[float, Field(ge=0)]
    """Points that any test set may fall: its PR-AUC, or for a graded set Spearman's correlation of the means' cosine."""


class Params(Section):
    """All result keys."""

    data: DataParams
    model: ModelSection
    objective: ObjectiveParams
    train: TrainParams
    tune: TuneParams
    relation: RelationParams
    evaluate: EvaluateParams
    experiments: ExperimentParams
    register_: Annotated[RegisterParams, Field(alias="register")]
    report: ReportParams

    @model_validator(mode="after")
    def _sections_agree(self) -> Params:
        largest = self.objective.sentences_per_row * max(self.tune.batch_sizes)
        if self.train.micro_batch is not None and self.train.micro_batch > largest:
            message = f"has no effect: the largest batch of tune.batch_sizes has at most {largest} sentences; use null, or fewer"
            raise WrongKey("train.micro_batch", self.train.micro_batch, message)
        family = family_named(self.objective.family)
        if not family.has(self.data):
            message = f"trains on {family.rows}, and section data names none ({family.keys})"
            raise WrongKey("objective.name", self.objective.name, message)
        if self.model.relation_head != "none" and not self.data.has_pairs:
            message = "is fitted on labelled pairs, and section data names none (files.train); use none"
            raise WrongKey("model.relation_head", self.model.relation_head, message)
        if not (decides := family_of(self.register_.metric)).has(self.data):
            message = f"needs {decides.rows}, and section data names none"
            raise WrongKey("register.metric", self.register_.metric, message)
        self.objective.check(self)
        for key, unused in family.unused.items():
            if (value := getattr(self.train, key)) != unused:
                message = f"has no effect with objective.name: {self.objective.name}; use {unused}"
                raise WrongKey(f"train.{key}", value, message)
        return self

    @model_validator(mode="after")
    def _names_agree(self) -> Params:
        set_names = ("dev", *test_set_names(self.data))
        if "dev" in self.evaluate.threshold_on:
            message = "the development set always uses its own threshold; name only test sets"
            raise WrongKey("evaluate.threshold_on", {"dev": self.evaluate.threshold_on["dev"]}, message)
        for test_set, on in self.evaluate.threshold_on.items():
            for name in (test_set, on):
                if name not in set_names:
                    raise WrongKey("evaluate.threshold_on", name, f"no such set of pairs; there are {', '.join(set_names)}")
            if test_set == on != "dev":
                message = "a test set must not choose its own threshold; name another set, or leave it out to use dev"
                raise WrongKey("evaluate.threshold_on", {test_set: on}, message)
        return self


def flat_params(params: Params) -> dict[str, object]:
    """All parameters of the main recipe as `section.key` → value, for MLflow; the registry's history has those of the rule."""
    return {
        f"{section}.{key}": value
        for section, keys in params.model_dump(mode="json", by_alias=True, exclude={"experiments", "report", "register_"}).items()
        for key, value in keys.items()
    }
