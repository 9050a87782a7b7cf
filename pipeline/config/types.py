"""Types for the values of parameter keys; their bounds and patterns hold in code and in the JSON schemas."""

# pyright: strict

from __future__ import annotations

import re
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from pipeline.utils.uris import uri_fault

T = TypeVar("T")
_WHOLE = re.compile(r"([+-]?\d+)\.0*\Z")


class Section(BaseModel):
    """Base of all sections: unknown keys are errors, values are not coerced, objects are immutable."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)


def _distinct(values: tuple[T, ...]) -> tuple[T, ...]:
    if len(set(values)) != len(values):
        raise ValueError("names a value twice; remove one")
    return values


def whole_above_one(cpus: float) -> float:
    """A number of cores that Ray can reserve."""
    if cpus > 1 and cpus != int(cpus):
        raise ValueError("Ray reserves only whole cores above 1; write a whole number")
    return cpus


def _known_uri(uri: str) -> str:
    fault = uri_fault(uri)
    if fault is not None:
        raise ValueError(fault)
    return uri


def label_key(name: str) -> str:
    """A label name without spaces, in lower case; a whole number without its point: pandas writes 1.0 for 1 next to nulls."""
    return _WHOLE.sub(r"\1", name.strip().lower())


def _distinct_names(labels: dict[str, LabelMeaning]) -> dict[str, LabelMeaning]:
    names = [label_key(name) for name in labels]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"names {name!r} twice (case and spaces are ignored); remove one")
    return labels


Positive = Annotated[int, Field(gt=0, lt=2**31)]
PositiveFloat = Annotated[float, Field(gt=0)]
Text = Annotated[str, Field(pattern=r"\S")]
Seed = Annotated[int, Field(ge=0, lt=2**31)]
Listed = (Field(min_length=1, json_schema_extra={"uniqueItems": True}), AfterValidator(_distinct))
Seeds = Annotated[tuple[Seed, ...], *Listed]
TrackingUri = Annotated[
    str,
    AfterValidator(_known_uri),
    Field(json_schema_extra={"pattern": "^[A-Za-z][A-Za-z0-9+.-]*:|^databricks$", "examples": ["http://127.0.0.1:5000"]}),
]
# host:port, also with a bracketed IPv6 address; for a dashboard, with http(s):// in front.
Address = Annotated[
    str,
    Field(
        pattern=r"^(auto|(https?://)?([^\s/:@]+|\[[0-9A-Fa-f:.]+\]):[1-9][0-9]{0,4}/?)$",
        examples=["http://10.0.0.5:8265", "auto", "10.0.0.5:6379"],
    ),
]
# A network interface name: at most 15 characters.
Interface = Annotated[str, Field(pattern=r"^[^\s/,]{1,15}$", examples=["eth0"])]
Commit = Annotated[str, Field(pattern=r"^[0-9a-f]{40}$", examples=["86b5e0934494bd15c9632b12f734a8a67f723594"])]

LabelName = Literal["entailment", "neutral", "contradiction"]
LabelMeaning = LabelName | Literal["none"]
LabelMeanings = Annotated[dict[str, LabelMeaning], AfterValidator(_distinct_names)]
