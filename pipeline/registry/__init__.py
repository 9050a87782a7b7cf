"""The MLflow model registry: versions of the encoder, which version is champion, and why.

The commands are under `gausscse registry`.
"""

from pipeline.registry.champions import Registration, register_model
from pipeline.registry.loading import encoder_folder, load_encoder

__all__ = ["Registration", "encoder_folder", "load_encoder", "register_model"]
