"""Evaluation of a model: per-pair scores, metrics, trivial baselines, bootstrap, analysis of the scores."""
