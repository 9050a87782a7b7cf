"""Request bodies of the HTTP API, and the body of an error.

FastAPI looks the annotations of a route up in the route's module, so that module must import these names at run time.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from pipeline.inference.entailment_index import Ranking
from pipeline.inference.index_vectors import Way
from pipeline.utils.atomic_io import read_json

# The most results of a search, for each sentence.
_MOST_RESULTS = 1000


class _Body(BaseModel):
    """Null means the default of a field that has one."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        optional = {name for name, field in cls.model_fields.items() if not field.is_required()}
        return {name: value for name, value in body.items() if value is not None or name not in optional}


class Sentences(_Body):
    """Sentences to encode."""

    sentences: list[str] = Field(examples=[["A dog runs across a field."]])


class SentencePairs(_Body):
    """Pairs to compare: a with the b at the same position."""

    a: list[str] = Field(examples=[["An animal is moving."]])
    b: list[str] = Field(examples=[["A dog runs across a field."]])


class RelationPairs(_Body):
    """Pairs whose relation is asked: a premise with the hypothesis at the same position."""

    premises: list[str] = Field(examples=[["A dog runs across a field."]])
    hypotheses: list[str] = Field(examples=[["An animal is moving."]])


class Operation(_Body):
    """Sentences to operate on: a with the b at the same position, unless the operator takes one sentence."""

    operator: str = Field(description="one of the operations that /health lists")
    a: list[str] = Field(examples=[["A dog is running in a park."]])
    b: list[str] | None = Field(None, examples=[["A dog is wet."]])
    write: bool = Field(False, description="the decoder writes what each output says, too, which takes far longer")


class Search(_Body):
    """Sentences to search for."""

    sentences: list[str] = Field(examples=[["A dog runs across a field."]])
    way: Way = Field("entailed", description="entails: rows that entail the sentence; entailed: rows that it entails")
    k: int = Field(10, ge=1, le=_MOST_RESULTS, description="rows for each sentence")
    min_sim: float | None = Field(None, allow_inf_nan=False, description="leave out rows with a lower score")
    by: Ranking = Field("similarity", description="similarity: exact by KL; relation: the nearest 100 by the head; cosine")


class Embeddings(_Body):
    """A request in the shape of OpenAI's API; keys that this server does not know have no effect."""

    model_config = ConfigDict(extra="ignore")

    input: str | list[str] = Field(examples=[["A dog runs across a field."]])
    model: str = Field(description="the name of the registered model, or NAME/VERSION of the version that answers")
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None

    @field_validator("input", mode="before")
    @classmethod
    def _text(cls, value: object) -> object:
        # Many clients send token ids of OpenAI's tokenizer, which mean nothing to this model.
        if not all(isinstance(text, str) for text in (value if isinstance(value, list) else [value])):
            raise PydanticCustomError("text", "is neither a text nor a list of texts; token ids are not taken")
        return value


ANSWERS: dict[str, dict[str, Any]] = read_json(Path(__file__).with_name("answers.json"))
"""Path → an answer, for the description of the API."""


class Problem(BaseModel):
    """An answer that is not 200."""

    error: dict[str, str | int]
