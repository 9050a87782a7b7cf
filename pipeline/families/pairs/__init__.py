"""Labelled pairs: GaussCSE and SimCSE."""
