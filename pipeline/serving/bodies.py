"""Request bodies of the HTTP API, and the body of an error.

FastAPI looks the annotations of a route up in the route's module, so that module must import these names at run time.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from pipeline.inference.entailment_index import Ranking
from pipeline.inference.index_vectors import Way

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


_ABOUT = {"model": "gausscse/1", "cut": 0, "unknown": 0}
_CHANCES = {"entailment": 0.93, "neutral": 0.05, "contradiction": 0.02, "reversed": 0.0}
_SERVING = {
    "model": "gausscse/1",
    "version": 1,
    "since": 1767225600.0,
    "replicas": 1,
    "score": "kl",
    "similarity": "1 / (1 + KL(A‖B))",
    "directed": True,
    "note": "",
    "relation": True,
    "operators": False,
    "operations": [],
    "search": "yes",
}
ANSWERS: dict[str, dict[str, Any]] = {
    "/encode": {**_ABOUT, "mean": [[0.12, -0.04]], "variance": [[0.31, 0.29]]},
    "/similarity": {**_ABOUT, "similarity": [0.686]},
    "/relation": {**_ABOUT, "relation": [_CHANCES], "label": ["entailment"]},
    "/entails": {**_ABOUT, "threshold": 0.44, "entails": [True], "score": [0.81]},
    "/operate": {**_ABOUT, "mean": [[0.12, -0.04]], "text": None},
    "/search": {**_ABOUT, "results": [[{"row": 7, "score": 0.69, "sentence": "An animal is moving."}]]},
    "/v1/embeddings": {
        "object": "list",
        "data": [{"object": "embedding", "index": 0, "embedding": [0.12, -0.04]}],
        **_ABOUT,
        "usage": {"prompt_tokens": 9, "total_tokens": 9},
    },
    "/v1/models": {
        "object": "list",
        "data": [{"object": "model", "created": 1767225600, "owned_by": "gausscse", "id": "gausscse/1"}],
    },
    "/health": {"status": "ok", "serving": _SERVING, "refused": None, "registry": None},
    "/live": {"live": True},
    "/ready": {"ready": True},
}
"""Path → an answer, for the description of the API."""


class Problem(BaseModel):
    """An answer that is not 200."""

    error: dict[str, str | int]
