"""Reads params.yaml and execution.yaml into frozen, typed objects; presets, messages about wrong keys, project paths."""
