"""The script MLflow runs to serve a registered encoder (models from code: nothing is pickled).

`registry` logs this file, the package and the encoder's folder as one model. The parameter `operation` chooses what to compute.

    operation    columns               answer for each row
    encode       sentence              mean, variance: D numbers each (the default)
    similarity   a, b                  similarity: sim(a‖b)
    entailment   premise, hypothesis   score: sim(hypothesis‖premise), or the relation head's probability of entailment;
                                       entails: whether it reaches the model's threshold
    relation     premise, hypothesis   entailment, neutral, contradiction, reversed: probabilities by the relation head; label:
                                       the one that the model settles on

Operations of the model's own family (`GaussianEncoder.operations`) read sentence, or a and b, and answer mean: D numbers; and
text, if the model writes sentences.
"""

# MLflow and pandas leave these untyped.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import threading
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NoReturn

import pandas as pd  # pyright: ignore[reportMissingTypeStubs]
from mlflow.exceptions import MlflowException
from mlflow.models import set_model
from mlflow.pyfunc.model import PythonModel, PythonModelContext

from pipeline.data.cleaning import is_empty
from pipeline.models.encoder import GaussianEncoder
from pipeline.utils.errors import UserError

ARTIFACT = "encoder"
# Limits of a request. Overlong text costs memory before it is cut, and too many rows hold up all other requests.
MAX_SENTENCES, MAX_CHARACTERS = 4096, 20_000

Columns = dict[str, list[Any]]


def _encode(encoder: GaussianEncoder, sentences: list[str]) -> Columns:
    encoded = encoder.encode(sentences)
    return {"mean": list(encoded.mean.numpy()), "variance": list(encoded.variance.numpy())}


def _similarity(encoder: GaussianEncoder, a: list[str], b: list[str]) -> Columns:
    return {"similarity": encoder.similarity(a, b).tolist()}


def _entailment(encoder: GaussianEncoder, premises: list[str], hypotheses: list[str]) -> Columns:
    encoded = encoder.encode([*premises, *hypotheses])
    premise, hypothesis = encoded[: len(premises)], encoded[len(premises) :]
    head = encoder.relation_head
    score = encoder.similarity(hypothesis, premise) if head is None else head.score(premise, hypothesis)
    return {"score": score.tolist(), "entails": encoder.entails(premise, hypothesis).tolist()}


def _relation(encoder: GaussianEncoder, premises: list[str], hypotheses: list[str]) -> Columns:
    both = encoder.encode([*premises, *hypotheses])
    sides = both[: len(premises)], both[len(premises) :]
    return {
        **{name: chances.tolist() for name, chances in encoder.relation(*sides)._asdict().items()},
        "label": list(encoder.decide(*sides)),
    }


def _operate(name: str, encoder: GaussianEncoder, *inputs: list[str]) -> Columns:
    output = encoder.operate(name, *inputs)
    columns: Columns = {"mean": list(output.numpy())}
    return columns | ({"text": list(encoder.write(output))} if encoder.writes else {})


_INPUTS = {1: ("sentence",), 2: ("a", "b")}
OPERATIONS: Mapping[str, tuple[tuple[str, ...], Callable[..., Columns]]] = {
    "encode": (("sentence",), _encode),
    "similarity": (("a", "b"), _similarity),
    "entailment": (("premise", "hypothesis"), _entailment),
    "relation": (("premise", "hypothesis"), _relation),
}
"""Operation → the columns that it reads, and what answers."""


class ServedEncoder(PythonModel):
    """The model that `mlflow.pyfunc` and `mlflow models serve` call."""

    _encoder: GaussianEncoder
    _one_at_a_time: threading.Lock

    def load_context(self, context: PythonModelContext) -> None:
        """Load the encoder that is part of the logged model.

        Raises:
            MlflowException: a file is missing or differs from its SHA-256 sum.
        """
        # The server uses threads. One forward pass already takes all cores, and a tokenizer refuses to be used by two threads.
        self._one_at_a_time = threading.Lock()
        try:
            self._encoder = GaussianEncoder.from_pretrained(str(context.artifacts[ARTIFACT]))
        except UserError as error:
            # Callers of MLflow expect MLflow's exceptions only.
            raise MlflowException(str(error)) from error

    # Without these annotations, MLflow warns that it cannot check the type of the input.
    def predict(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, context: PythonModelContext, model_input: pd.DataFrame, params: dict[str, Any] | None = None
    ) -> pd.DataFrame:
        """Answer each row (see the table at the top). The index is kept; columns that the operation does not read are ignored.

        Raises:
            MlflowException: an unknown operation, a missing column, a row that is not text, empty or too long, too many rows, or
                a model that cannot answer (it has no threshold).
        """
        operation = (params or {}).get("operation") or "encode"
        of_model = {name: (_INPUTS[inputs], partial(_operate, name)) for name, inputs in self._encoder.operations.items()}
        if operation not in (known := {**OPERATIONS, **of_model}):
            _refuse(f"params: operation {str(operation)[:40]!r} is unknown; there are {', '.join(known)}")
        columns, answer = known[operation]
        if not isinstance(model_input, pd.DataFrame) or not set(columns) <= set(model_input.columns):  # pyright: ignore[reportUnnecessaryIsInstance]
            named = " and ".join(repr(column) for column in columns)
            _refuse(f"operation {operation!r}: the input must be a table with column {named}")
        texts = [_texts(column, model_input[column]) for column in columns]
        # No warnings about cut sentences: callers do not see the server's stderr.
        with self._one_at_a_time, warnings.catch_warnings(action="ignore"):
            try:
                answered = answer(self._encoder, *texts)
            except UserError as error:
                _refuse(str(error))
        return pd.DataFrame(answered, index=model_input.index, dtype=object)


def _texts(column: str, values: Any) -> list[str]:
    if len(values) > MAX_SENTENCES:
        _refuse(f"{len(values)} rows in one request; send at most {MAX_SENTENCES} per request")
    texts: list[Any] = list(values)
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            # pandas turns missing text into NaN.
            shown = "a missing value" if text is None or pd.isna(text) is True else type(text).__name__
            _refuse(f"column {column!r}, row {row}: {shown} is not text")
        if is_empty(text):
            _refuse(f"column {column!r}, row {row}: is empty or only white space; leave the row out")
        if len(text) > MAX_CHARACTERS:
            _refuse(f"column {column!r}, row {row}: {len(text)} characters are too many; send at most {MAX_CHARACTERS}")
    return texts


def _refuse(why: str) -> NoReturn:
    raise MlflowException.invalid_parameter_value(why)


set_model(ServedEncoder())
