"""params.yaml (result keys) and execution.yaml (execution keys) → frozen, typed, validated objects.

The two files are kept apart because DVC must see every key that changes what comes out and no key that only changes where or
how fast it is computed. What each key means, its unit and what the paper and the released code use stands beside it in the files.
"""

from __future__ import annotations

import difflib
import json
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from pipeline.errors import UserError

PARAMS_FILE = "params.yaml"
EXECUTION_FILE = "execution.yaml"

Positive = Annotated[int, Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Seed = Annotated[int, Field(ge=0, lt=2**31)]

ObjectiveName = Literal["ent", "ent+con", "ent+rev", "ent+con+rev", "simcse"]
SimilarityKind = Literal["kl", "kl-dimwise"]
SamePremise = Literal["keep", "separate", "mask"]
Schedule = Literal["warmup-linear-decay", "linear-decay", "linear-rise"]


class Section(BaseModel):
    """Base of all sections: unknown keys are errors, values are not coerced, objects are immutable."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class GeneratedParams(Section):
    """Number of pairs of each split of the generated source."""

    train: Positive
    dev: Positive
    test: Positive


class FileSpec(Section):
    """One Parquet file of pairs and the names of its columns."""

    path: str
    premise: str = "premise"
    hypothesis: str = "hypothesis"
    label: str = "label"
    reverse_label: str | None = None
    """Column with the label of the pair read the other way round (SICK's entailment_BA); splits direction by one/two-way."""


class StsSpec(Section):
    """One Parquet file of sentence pairs with a graded similarity."""

    path: str
    sentence1: str = "sentence1"
    sentence2: str = "sentence2"
    score: str = "score"


class FilesParams(Section):
    """Files of the `files` source; paths are relative to `data.root`."""

    train: tuple[FileSpec, ...] = ()
    dev: FileSpec | None = None
    tests: dict[str, FileSpec] = {}
    sts: dict[str, StsSpec] = {}


class DataParams(Section):
    """What is read and how triplets are made of it (stage prepare)."""

    source: Literal["generated", "files"]
    root: str
    seed: Seed
    unlabelled: Literal["drop", "non-entailment"]
    contradictions: Literal["cycle", "random"]
    generated: GeneratedParams
    files: FilesParams

    @model_validator(mode="after")
    def _files_are_named(self) -> DataParams:
        if self.source == "files":
            if not self.files.train:
                raise ValueError("files.train names no file: list at least one when source is files")
            if self.files.dev is None:
                raise ValueError("files.dev names no file: name the development set when source is files")
            for name in (*self.files.tests, *self.files.sts):
                if not name.replace("_", "").replace("-", "").isalnum() or name == "dev":
                    raise ValueError(f"test set name {name!r} must be letters, digits, - and _, and not 'dev'")
            both = set(self.files.tests) & set(self.files.sts)
            if both:
                raise ValueError(f"test set name {min(both)!r} stands in both files.tests and files.sts: rename one")
            if self.files.dev.path in {spec.path for spec in self.files.tests.values()}:
                raise ValueError(f"{self.files.dev.path!r} is both the development set and a test set: remove one")
        return self


class ModelParams(Section):
    """The Gaussian encoder: backbone and heads."""

    backbone: str
    revision: str | None
    max_length: Annotated[int, Field(ge=3)]
    dim: Positive | None
    mean_activation: Literal["tanh", "none"]
    variance_head: Literal["log_var", "sigma"]


class ObjectiveParams(Section):
    """The loss (paper Eq. 4)."""

    name: ObjectiveName
    similarity: SimilarityKind
    temperature: PositiveFloat
    reduction: Literal["mean", "sum"]


class TrainParams(Section):
    """How a model is trained; learning rate and batch size come from the grid (section tune)."""

    epochs: Positive
    triplets: Literal["with-contradiction", "all"]
    same_premise: SamePremise
    schedule: Schedule
    warmup_ratio: Fraction
    weight_decay: Annotated[float, Field(ge=0)]
    precision: Literal["bf16", "fp32"]
    length_groups: Positive
    micro_batch: Positive | None
    eval_every: Positive
    step_zero_eligible: bool
    seeds: Annotated[tuple[Seed, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _seeds_differ(self) -> TrainParams:
        _no_repeat("seeds", self.seeds)
        return self


class TuneParams(Section):
    """The grid: every learning rate × batch size × seed is one trial."""

    learning_rates: Annotated[tuple[PositiveFloat, ...], Field(min_length=1)]
    batch_sizes: Annotated[tuple[Annotated[int, Field(ge=2)], ...], Field(min_length=1)]
    seeds: Annotated[tuple[Seed, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _values_differ(self) -> TuneParams:
        _no_repeat("learning_rates", self.learning_rates)
        _no_repeat("batch_sizes", self.batch_sizes)
        _no_repeat("seeds", self.seeds)
        return self


class EvaluateParams(Section):
    """How scores become decisions."""

    threshold_step: Annotated[float, Field(gt=0, le=1)]
    entailment_if: Literal[">=", ">"]
    threshold_on: dict[str, str]

    @model_validator(mode="after")
    def _step_divides_one(self) -> EvaluateParams:
        steps = 1 / self.threshold_step
        if abs(steps - round(steps)) > 1e-6 * steps:
            raise ValueError(f"threshold_step {self.threshold_step} does not divide 1: use 0.001, 0.01 or the like")
        return self


class RegisterParams(Section):
    """The MLflow registered model."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+$")]


class Params(Section):
    """All result keys."""

    data: DataParams
    model: ModelParams
    objective: ObjectiveParams
    train: TrainParams
    tune: TuneParams
    evaluate: EvaluateParams
    register_: Annotated[RegisterParams, Field(alias="register")]

    @model_validator(mode="after")
    def _names_agree(self) -> Params:
        known = {"dev", *test_set_names(self.data)}
        for test_set, on in self.evaluate.threshold_on.items():
            for name in (test_set, on):
                if name not in known:
                    raise ValueError(f"evaluate.threshold_on names {name!r}, which is not a set; known: {sorted(known)}")
        return self


class ClusterParams(Section):
    """Where the work runs."""

    address: str | None
    workers: Positive
    cpus_per_worker: PositiveFloat
    device: Literal["auto", "cpu", "cuda"]
    storage: str
    max_failures: Annotated[int, Field(ge=0)]
    placement_timeout_s: PositiveFloat
    object_store_mb: Annotated[int, Field(ge=80)]


class TrackingParams(Section):
    """The MLflow server."""

    uri: str | None
    experiment: Annotated[str, Field(min_length=1)]


class Execution(Section):
    """All execution keys."""

    cluster: ClusterParams
    tracking: TrackingParams


S = TypeVar("S", bound=Section)


def test_set_names(data: DataParams) -> tuple[str, ...]:
    """Names of the NLI test sets that stage prepare will write."""
    return tuple(data.files.tests) if data.source == "files" else ("generated_test",)


def load_params(path: str | Path = PARAMS_FILE) -> Params:
    """Read and validate the result keys; `UserError` names the first wrong key."""
    return _load(Path(path), Params)


def load_execution(path: str | Path = EXECUTION_FILE) -> Execution:
    """Read and validate the execution keys; `UserError` names the first wrong key."""
    return _load(Path(path), Execution)


def _load(path: Path, kind: type[S]) -> S:
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; run from the project root") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from None
    except yaml.YAMLError as error:
        raise UserError(f"{path}: not valid YAML: {error}") from None
    if not isinstance(raw, dict):
        raise UserError(f"{path}: expected sections {sorted(_fields(kind))}, found {type(raw).__name__}")
    try:
        # Through JSON because that is where pydantic's strict mode takes a list for a tuple.
        return kind.model_validate_json(json.dumps(raw, default=str))
    except ValidationError as error:
        raise UserError(f"{path}: {_one_line(error, kind)}") from None


def _one_line(error: ValidationError, kind: type[Section]) -> str:
    errors = error.errors(include_url=False)
    # A mistyped key is also a missing one: name the typing error.
    first = next((e for e in errors if e["type"] == "extra_forbidden"), errors[0])
    # Integers count list items; other parts are keys.
    key = ".".join(str(part) for part in first["loc"])
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    value: Any = first["input"]
    if first["type"] == "extra_forbidden":
        near = difflib.get_close_matches(str(first["loc"][-1]), _fields(_section_at(kind, first["loc"][:-1])), n=1)
        return f"{key}: unknown key{f'; did you mean {near[0]}?' if near else '; remove it'}{more}"
    if first["type"] == "missing":
        return f"{key}: this key is missing; add it (see the committed file){more}"
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "float_type" and isinstance(value, str) and _is_number(value):
        message = f"YAML reads this as text; write it with a point, as {float(value):.1e}"
    shown = f"got {value!r}: " if not isinstance(value, dict) else ""
    return f"{key + ': ' if key else ''}{shown}{message}{more}"


def _section_at(kind: type[Section], loc: tuple[int | str, ...]) -> type[Section]:
    for part in loc:
        field = next((f for n, f in kind.model_fields.items() if (f.alias or n) == part), None)
        if field is None:
            continue
        for candidate in (field.annotation, *get_args(field.annotation)):
            if isinstance(candidate, type) and issubclass(candidate, Section):
                kind = candidate
    return kind


def _fields(kind: type[Section]) -> list[str]:
    return [field.alias or name for name, field in kind.model_fields.items()]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _no_repeat(key: str, values: tuple[Any, ...]) -> None:
    if len(set(values)) != len(values):
        raise ValueError(f"{key} names a value twice: {list(values)}")
