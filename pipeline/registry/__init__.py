"""The MLflow model registry: versions of the encoder, which of them is champion, and how it came to that.

`python -m pipeline.registry` has the commands.
"""

from pipeline.registry.champions import Registration, register_model
from pipeline.registry.loading import encoder_folder, load_encoder

__all__ = ["Registration", "encoder_folder", "load_encoder", "register_model"]
