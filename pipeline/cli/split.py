"""`gausscse split FILE OUT`: divides a file of pairs into train, dev and test."""

from pipeline.cli.init import split as main

__all__ = ["main"]
