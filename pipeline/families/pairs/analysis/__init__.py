"""Analysis of per-pair scores beyond the headline metrics: a scored table in, small frozen objects with plain numbers out.

A scored table comes from `pipeline.families.pairs.scoring.score_nli`: n pairs of one set, scored by one model. Shares are in
[0, 1]; each comes with its number of pairs. A bin or label without pairs is left out. An undefined value is None, never NaN. A
pair without a gold label counts as not entailed. A tie of sim or var counts as the wrong direction.
"""

from pipeline.families.pairs.analysis.lengths import (
    FEW_SENTENCES,
    DirectionBin,
    LengthBin,
    LogVarByLength,
    direction_by_length_ratio,
    log_var_by_length,
)
from pipeline.families.pairs.analysis.mistakes import Called, Pair, WorstPairs, confusion, worst_over_seeds
from pipeline.families.pairs.analysis.reliability import Calibration, CalibrationBin, Reliability, calibration
from pipeline.families.pairs.analysis.similarities import LabelHistogram, SimilarityByLabel, similarity_by_label

__all__ = [
    "FEW_SENTENCES",
    "Calibration",
    "CalibrationBin",
    "Called",
    "DirectionBin",
    "LabelHistogram",
    "LengthBin",
    "LogVarByLength",
    "Pair",
    "Reliability",
    "SimilarityByLabel",
    "WorstPairs",
    "calibration",
    "confusion",
    "direction_by_length_ratio",
    "log_var_by_length",
    "similarity_by_label",
    "worst_over_seeds",
]
