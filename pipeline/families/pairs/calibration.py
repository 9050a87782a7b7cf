"""The threshold that a version of a model of pairs is registered with."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.config.params import EvaluateParams
from pipeline.data.schema import DEV
from pipeline.models.threshold import Calibration


def calibration_of(numbers: Mapping[str, Mapping[str, float]], evaluate: EvaluateParams, pairs_digest: str) -> Calibration | None:
    """The threshold that stage evaluate swept on the development pairs; None if there are none.

    Args:
        numbers: set → metric → value of the model.
        pairs_digest: digest of the development token store.
    """
    if DEV not in numbers:
        return None
    return Calibration(
        threshold=numbers[DEV]["threshold"],
        entailment_if=evaluate.entailment_if,
        swept_on=DEV,
        pairs=pairs_digest,
        accuracy=numbers[DEV]["accuracy"],
    )
