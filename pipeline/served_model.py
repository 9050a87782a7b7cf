"""The script MLflow runs to serve a registered encoder (models from code: nothing is pickled).

`registry` ships this file, the package and the encoder's folder as one model. In: column `sentence`. Out: columns
`mean` and `variance`, each an array of D numbers a row.
"""

# MLflow and pandas leave these untyped.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import warnings
from typing import Any

import pandas as pd  # pyright: ignore[reportMissingTypeStubs]
from mlflow.exceptions import MlflowException
from mlflow.models import set_model
from mlflow.pyfunc.model import PythonModel, PythonModelContext

from pipeline.encoder import GaussianEncoder
from pipeline.errors import UserError

SENTENCE = "sentence"
ARTIFACT = "encoder"


class ServedEncoder(PythonModel):
    """Sentence → mean and variance, through `mlflow.pyfunc`."""

    _encoder: GaussianEncoder

    def load_context(self, context: PythonModelContext) -> None:
        """Load the encoder that was shipped with the model.

        Raises:
            MlflowException: a file is missing or differs from its SHA-256 sum.
        """
        try:
            self._encoder = GaussianEncoder.from_pretrained(str(context.artifacts[ARTIFACT]))
        except UserError as error:
            # MLflow's callers know MLflow's exceptions only.
            raise MlflowException(str(error)) from error

    # Annotated, or MLflow warns that it cannot check the input's type.
    def predict(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, context: PythonModelContext, model_input: pd.DataFrame
    ) -> pd.DataFrame:
        """Encode the column `sentence`; other columns are ignored, the index is kept.

        Raises:
            MlflowException: no such column, or a row that is not text.
        """
        if not isinstance(model_input, pd.DataFrame) or SENTENCE not in model_input.columns:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise MlflowException.invalid_parameter_value(f"the input must be a DataFrame with a column {SENTENCE!r}")
        sentences: list[Any] = list(model_input[SENTENCE])
        for row, sentence in enumerate(sentences):
            if not isinstance(sentence, str):
                # pandas turns a missing text into NaN.
                shown = "a missing value" if pd.isna(sentence) is True else type(sentence).__name__
                raise MlflowException.invalid_parameter_value(f"column {SENTENCE!r}, row {row}: {shown} is not text")
        # Nobody reads the server's stderr for what was cut.
        with warnings.catch_warnings(action="ignore"):
            encoded = self._encoder.encode(sentences)
        columns = {"mean": list(encoded.mean.numpy()), "variance": list(encoded.variance.numpy())}
        return pd.DataFrame(columns, index=model_input.index, dtype=object)


set_model(ServedEncoder())
