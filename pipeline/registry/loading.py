"""Loads an encoder from wherever it is: the registry, a folder or the Hugging Face hub.

MLflow is imported for the registry only, so that an installation without it loads from the other two.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.models.hub import REPOSITORY, fetched_from_hub
from pipeline.models.model_dir import ENGINES, Engine
from pipeline.utils.errors import UserError

if TYPE_CHECKING:
    from pipeline.models.encoder import GaussianEncoder


def load(
    model: str | Path, tracking_uri: str | None = None, *, device: str | None = None, engine: Engine = "torch"
) -> GaussianEncoder:
    """Load an encoder, in evaluation mode. All its files are checked against their sums; none of its code is run.

    Args:
        model: models:/NAME@ALIAS or models:/NAME/VERSION of the MLflow registry, a folder that `save_pretrained` wrote, or
            OWNER/NAME on the Hugging Face hub (OWNER/NAME@REVISION for a tag or a commit).
        tracking_uri: the MLflow server; default MLFLOW_TRACKING_URI, then that of the project in the current folder.
        device: such as "cuda"; by default the processor.
        engine: computes `encode`: torch, or on the processor openvino, with the same numbers in less time, or openvino-int8, with
            nearly the same in much less.

    Raises:
        UserError: the model does not exist, its files are damaged, or the registry or the hub cannot be reached.
    """
    # Imported here, because torch and transformers take seconds and queries of the registry do not need them.
    from pipeline.models.encoder import GaussianEncoder

    if engine not in ENGINES:
        raise UserError(f"engine is {engine!r}: write one of {', '.join(ENGINES)}")
    with encoder_folder(model, tracking_uri) as folder:
        return GaussianEncoder.from_pretrained(folder, engine).to_device(device)


@contextmanager
def encoder_folder(model: str | Path, tracking_uri: str | None = None) -> Iterator[Path]:
    """The folder of an encoder, while the block runs; arguments and errors as for `load`."""
    if not isinstance(model, str | Path):
        raise UserError(f"a model is named by text or a path, not by {type(model).__name__}")
    name = str(model)
    if name.startswith("models:/"):
        try:
            from pipeline.registry.fetching import ENCODER, default_uri, fetched, version_of
        except ModuleNotFoundError as error:
            raise UserError(f"{name}: the registry needs {error.name}: pip install 'gausscse-pipeline[train]'") from None
        uri = tracking_uri or default_uri()
        with fetched(version_of(name, uri), uri) as folder:
            yield folder / ENCODER
    elif (Path(name) / "config.json").is_file():
        yield Path(name).absolute()
    elif isinstance(model, str) and REPOSITORY.fullmatch(name) and not Path(name).exists():
        with fetched_from_hub(name) as folder:
            yield folder
    else:
        raise UserError(f"{name}: no config.json here: name models:/NAME@ALIAS, a folder of save_pretrained, or OWNER/NAME")
