"""Evaluation of a model: per-row scores, metrics, bootstrap, means over seeds."""
