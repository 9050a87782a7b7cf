"""What per-pair scores say beyond their headline numbers, as plain numbers: a scored table in, small frozen objects out.

A scored table is one of `pipeline.evaluation.score_nli`: n pairs of one set, scored by one model. Shares are in [0, 1], and each
stands beside the number of pairs it was taken over. A bin or label without pairs is left out; what is not defined is None, never
NaN. As everywhere, a pair without a gold label counts as not entailed, and a tie of sim or var as the wrong direction.
"""

from pipeline.analysis.lengths import (
    FEW_SENTENCES,
    DirectionBin,
    LengthBin,
    LogVarByLength,
    direction_by_length_ratio,
    log_var_by_length,
)
from pipeline.analysis.mistakes import Called, Pair, WorstPairs, confusion, worst_over_seeds
from pipeline.analysis.reliability import Calibration, CalibrationBin, Reliability, calibration
from pipeline.analysis.similarities import LabelHistogram, SimilarityByLabel, similarity_by_label

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
