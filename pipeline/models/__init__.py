"""Sentence encoders and their parts."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.models.encoder import GaussianEncoder

__all__ = ["GaussianEncoder"]


def __getattr__(name: str) -> Any:
    # Lazy: stages import other modules of this package without waiting for torch.
    if name == "GaussianEncoder":
        from pipeline.models.encoder import GaussianEncoder

        return GaussianEncoder
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
