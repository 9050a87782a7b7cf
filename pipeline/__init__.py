"""GaussCSE: Gaussian sentence embeddings, their training and evaluation. A wheel installs this package as `gausscse`.

    import gausscse

    model = gausscse.load("models:/gausscse@champion")

`load` returns a `GaussianEncoder` with `encode`, `similarity`, `entails`, `decide`, `relation` and `direction`; `search` finds
the sentences of a corpus that entail a sentence, or that it entails. torch is imported when one of these names is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.gaussian.distribution import Gaussian
    from pipeline.inference.entailment_index import Searchable, search
    from pipeline.models.encoder import GaussianEncoder
    from pipeline.models.pair_api import Relations
    from pipeline.registry.loading import load
    from pipeline.utils.errors import UserError

__all__ = ["Gaussian", "GaussianEncoder", "Relations", "Searchable", "UserError", "load", "search"]
_MODULES = {
    "Gaussian": "gaussian.distribution",
    "GaussianEncoder": "models.encoder",
    "Relations": "models.pair_api",
    "Searchable": "inference.entailment_index",
    "UserError": "utils.errors",
    "load": "registry.loading",
    "search": "inference.entailment_index",
}


def __getattr__(name: str) -> Any:
    """A name of the interface, from the module that has it."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
