"""Request and response bodies of the HTTP API.

FastAPI looks the annotations of a route up in the route's module, so that module must import these names at run time.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from pipeline.inference.index_vectors import Way
from pipeline.serving.corpora import Ranking

# The most results of a search, for each sentence.
_MOST_RESULTS = 1000


# Only for the API's description: `Limits` refuses an empty list in its own words.
_Texts = Annotated[list[str], Field(json_schema_extra={"minItems": 1})]


def _nullable(schema: dict[str, Any]) -> None:
    for field in schema["properties"].values():
        if "default" in field and "anyOf" not in field:
            field["anyOf"] = [{key: field.pop(key) for key in ("type", "enum") if key in field}, {"type": "null"}]


class _Body(BaseModel):
    """Null means the default of a field that has one."""

    model_config = ConfigDict(extra="forbid", strict=True, json_schema_extra=_nullable)

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        optional = {name for name, field in cls.model_fields.items() if not field.is_required()}
        return {name: value for name, value in body.items() if value is not None or name not in optional}


class Sentences(_Body):
    """Sentences to encode."""

    sentences: _Texts = Field(examples=[["A dog runs across a field."]])


class SentencePairs(_Body):
    """Pairs to compare: a with the b at the same position."""

    a: _Texts = Field(examples=[["An animal is moving."]])
    b: _Texts = Field(examples=[["A dog runs across a field."]])


class RelationPairs(_Body):
    """Pairs whose relation is asked: a premise with the hypothesis at the same position."""

    premises: _Texts = Field(examples=[["A dog runs across a field."]])
    hypotheses: _Texts = Field(examples=[["An animal is moving."]])


class Operation(_Body):
    """Sentences to operate on: a with the b at the same position, unless the operator takes one sentence."""

    operator: str = Field(description="one of the operations that /health lists")
    a: _Texts = Field(examples=[["A dog is running in a park."]])
    b: _Texts | None = Field(None, examples=[["A dog is wet."]])
    write: bool = Field(False, description="the decoder writes what each output says, too, which takes far longer")


class Search(_Body):
    """Sentences to search for."""

    sentences: _Texts = Field(examples=[["A dog runs across a field."]])
    way: Way = Field("entailed", description="entails: rows that entail the sentence; entailed: rows that it entails")
    k: int = Field(10, ge=1, le=_MOST_RESULTS, description="rows for each sentence")
    min_sim: float | None = Field(None, allow_inf_nan=False, description="leave out rows with a lower score")
    by: Ranking = Field("similarity", description="similarity: exact by KL; relation: the nearest 100 by the head; cosine")


class Embeddings(_Body):
    """A request in the shape of OpenAI's API; keys that this server does not know have no effect."""

    model_config = ConfigDict(extra="ignore")

    input: str | _Texts = Field(examples=[["A dog runs across a field."]])
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


class Encoded(BaseModel):
    """A Gaussian for each sentence."""

    model: str
    mean: list[list[float]]
    variance: list[list[float]]


class Similarities(BaseModel):
    """sim(a‖b) of each pair: in (0, 1], or in [-1, 1] for a model of points, whose similarity is the cosine."""

    model: str
    similarity: list[float]


class Relations(BaseModel):
    """Probabilities of the relations of each pair."""

    model: str
    relation: list[dict[str, float]]


class Outputs(BaseModel):
    """The output of an operator for each row: an embedding, and what the decoder writes for it; null if it was not asked to."""

    model: str
    mean: list[list[float]]
    text: list[str] | None


class Results(BaseModel):
    """Rows for each sentence, best first: row, score, and the columns that the corpus kept."""

    model: str
    results: list[list[dict[str, Any]]]


class EmbeddingList(BaseModel):
    """An answer in the shape of OpenAI's API."""

    object: Literal["list"]
    data: list[dict[str, Any]]
    model: str
    usage: dict[str, int]


class Model(BaseModel):
    """A name that /v1/embeddings takes, in the shape of OpenAI's API."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelList(BaseModel):
    """The names that /v1/embeddings takes, in the shape of OpenAI's API."""

    object: Literal["list"]
    data: list[Model]


class Problem(BaseModel):
    """An answer that is not 200."""

    error: dict[str, str | int]
