"""Gaussians with diagonal covariance, their KL divergence, and similarities based on it (paper, Eq. 3)."""

from pipeline.gaussian.distribution import Gaussian, SimilarityKind, kl_divergence, pairwise_similarity, similarity

__all__ = ["Gaussian", "SimilarityKind", "kl_divergence", "pairwise_similarity", "similarity"]
