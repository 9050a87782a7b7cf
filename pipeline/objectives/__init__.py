"""Training objectives: what a batch consists of and the loss over it."""

from pipeline.families.pairs.contrastive import contrastive_loss, make_objective

__all__ = ["contrastive_loss", "make_objective"]
