"""Collectives of torch.distributed, and the precision of a training run."""
