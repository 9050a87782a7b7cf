"""Sentence encoders and their parts."""
