"""The script MLflow runs to serve a registered encoder (models from code: nothing is pickled).

`registry` ships this file, the package and the encoder's folder as one model. The parameter `operation` says what is asked of the
rows; docs/usage.md shows the JSON of each.

    operation    columns               answer, a row each
    encode       sentence              mean, variance: D numbers each (the default)
    similarity   a, b                  similarity: sim(a‖b)
    entailment   premise, hypothesis   score: sim(hypothesis‖premise); entails: whether it reaches the model's threshold
"""

# MLflow and pandas leave these untyped.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import threading
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import pandas as pd  # pyright: ignore[reportMissingTypeStubs]
from mlflow.exceptions import MlflowException
from mlflow.models import set_model
from mlflow.pyfunc.model import PythonModel, PythonModelContext

from pipeline.encoder import GaussianEncoder
from pipeline.errors import UserError

ARTIFACT = "encoder"
OPERATION = "operation"
# Of one request. What is longer than any sentence costs memory before it is cut; more rows than these hold up everybody else.
MAX_SENTENCES, MAX_CHARACTERS = 4096, 20_000

Columns = dict[str, list[Any]]


def _encode(encoder: GaussianEncoder, sentences: list[str]) -> Columns:
    encoded = encoder.encode(sentences)
    return {"mean": list(encoded.mean.numpy()), "variance": list(encoded.variance.numpy())}


def _similarity(encoder: GaussianEncoder, a: list[str], b: list[str]) -> Columns:
    return {"similarity": encoder.similarity(a, b).tolist()}


def _entailment(encoder: GaussianEncoder, premises: list[str], hypotheses: list[str]) -> Columns:
    both = encoder.encode([*premises, *hypotheses])
    premise, hypothesis = both[: len(premises)], both[len(premises) :]
    score, entails = encoder.similarity(hypothesis, premise), encoder.entails(premise, hypothesis)
    return {"score": score.tolist(), "entails": entails.tolist()}


OPERATIONS: Mapping[str, tuple[tuple[str, ...], Callable[..., Columns]]] = {
    "encode": (("sentence",), _encode),
    "similarity": (("a", "b"), _similarity),
    "entailment": (("premise", "hypothesis"), _entailment),
}


class ServedEncoder(PythonModel):
    """What `mlflow.pyfunc` and `mlflow models serve` ask."""

    _encoder: GaussianEncoder
    _one_at_a_time: threading.Lock

    def load_context(self, context: PythonModelContext) -> None:
        """Load the encoder that was shipped with the model.

        Raises:
            MlflowException: a file is missing or differs from its SHA-256 sum.
        """
        # The server answers in threads. One forward pass takes all cores as it is, and tokenizers refuse to be used by two.
        self._one_at_a_time = threading.Lock()
        try:
            self._encoder = GaussianEncoder.from_pretrained(str(context.artifacts[ARTIFACT]))
        except UserError as error:
            # MLflow's callers know MLflow's exceptions only.
            raise MlflowException(str(error)) from error

    # Annotated, or MLflow warns that it cannot check the input's type.
    def predict(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, context: PythonModelContext, model_input: pd.DataFrame, params: dict[str, Any] | None = None
    ) -> pd.DataFrame:
        """Answer each row (see the module's table); columns that the operation does not read are ignored, the index is kept.

        Raises:
            MlflowException: an unknown operation, a column that is missing, a row that is no text or too long, too many of
                them, or the model cannot say (it has no threshold).
        """
        operation = (params or {}).get(OPERATION, "encode")
        if operation not in OPERATIONS:
            _refuse(f"params: operation {str(operation)[:40]!r} is unknown; there are {', '.join(OPERATIONS)}")
        columns, answer = OPERATIONS[operation]
        if not isinstance(model_input, pd.DataFrame) or not set(columns) <= set(model_input.columns):  # pyright: ignore[reportUnnecessaryIsInstance]
            named = " and ".join(repr(column) for column in columns)
            _refuse(f"operation {operation!r}: the input must be a table with column {named}")
        texts = [_texts(column, model_input[column]) for column in columns]
        # Nobody reads the server's stderr for what was cut.
        with self._one_at_a_time, warnings.catch_warnings(action="ignore"):
            try:
                answered = answer(self._encoder, *texts)
            except UserError as error:
                _refuse(str(error))
        return pd.DataFrame(answered, index=model_input.index, dtype=object)


def _texts(column: str, values: Any) -> list[str]:
    if len(values) > MAX_SENTENCES:
        _refuse(f"{len(values)} rows in one request: at most {MAX_SENTENCES} are answered; send several")
    texts: list[Any] = list(values)
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            # pandas turns a missing text into NaN.
            shown = "a missing value" if text is None or pd.isna(text) is True else type(text).__name__
            _refuse(f"column {column!r}, row {row}: {shown} is not text")
        if len(text) > MAX_CHARACTERS:
            _refuse(f"column {column!r}, row {row}: {len(text)} characters are no sentence; at most {MAX_CHARACTERS} are read")
    return texts


def _refuse(why: str) -> NoReturn:
    raise MlflowException.invalid_parameter_value(why)


set_model(ServedEncoder())
