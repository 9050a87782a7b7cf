"""Files of a published model folder that `GaussianEncoder` does not compute with, and digests of the folder."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, get_args

from pipeline.utils.atomic_io import check_sums, read_json, sha256_file, sha256_json, write_sums
from pipeline.utils.errors import UserError

Engine = Literal["torch", "openvino", "openvino-int8"]
ENGINES: tuple[Engine, ...] = get_args(Engine)
"""What computes the Gaussians of a model outside training (`pipeline.models.engines`)."""
ENGINE_PACKAGES = ("openvino", "nncf")
"""Packages that all engines but torch need."""
EXACT: tuple[Engine, ...] = ("torch", "openvino")
"""Engines whose numbers differ by rounding only, by at most 1e-4. Embeddings of another one are compared only with its own."""

THRESHOLDS = "thresholds.json"
RELATION, RELATION_WEIGHTS = "relation.json", "relation.safetensors"
"""The relation head of a model, if it has one (`pipeline.models.relation_head`)."""
OBJECTIVE_WEIGHTS = "objective.safetensors"
"""The weights of the objective's own modules; an encoder is loaded without them, unless its methods use them."""
CARD = "README.md"
CANARIES = "canaries.json"
"""Pairs with the model's own scores of them (`pipeline.models.canaries`)."""
EXAMPLES = Path(__file__).with_name("examples.json")
"""One pair of each kind, and its relation: kind, premise, hypothesis, a name of `RELATIONS`. No model was chosen by them. A model
card and the page at / show what a model says of each."""
_NOT_THE_MODEL = (THRESHOLDS, CARD, CANARIES)
# Parameters of an encoder that decide how its training starts, and nothing afterwards.
_ONLY_BEFORE = ("backbone", "revision", "mean_start")


DEMONSTRATION = "This model is a demonstration: it was trained on generated sentences only."
"""A sentence of the card of such a model."""


def check_engine(engine: Engine, *, gpu: bool = False) -> None:
    """Check that an engine can compute here.

    Raises:
        UserError: it is not installed, or would have to compute on a GPU.
    """
    if engine == "torch":
        return
    if gpu:
        raise UserError(f"engine {engine}: computes on the CPU only; write cluster.device: cpu in execution.yaml, or take torch")
    if not all(map(find_spec, ENGINE_PACKAGES)):
        raise UserError(f"engine {engine}: needs {' and '.join(ENGINE_PACKAGES)}: pip install 'gausscse-pipeline[openvino]'")
    # Both would report their use to their makers if they found the package that does this.
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]


def note_of(folder: Path) -> str:
    """`DEMONSTRATION` if the card of a model has it, else nothing."""
    card = folder / CARD
    return DEMONSTRATION if card.is_file() and DEMONSTRATION in card.read_text(encoding="utf-8") else ""


def dimensions(folder: Path) -> int:
    """D, the dimensions of the model in a folder.

    Raises:
        UserError: config.json does not give it.
    """
    dim = read_json(folder / "config.json").get("dim")
    if not isinstance(dim, int):
        raise UserError(f"{folder}/config.json: does not say how many dimensions it has; is it a folder of save_pretrained?")
    return dim


def add_relation(relation: Path, folder: Path) -> None:
    """Add the relation head in folder `relation` to a model's folder, and renew its sums.

    Its card, threshold and canaries are removed: they describe the model without this head.
    """
    for name in _NOT_THE_MODEL:
        (folder / name).unlink(missing_ok=True)
    for name in (RELATION, RELATION_WEIGHTS):
        shutil.copyfile(relation / name, folder / name)
    write_sums(folder)


def content_digest(folder: Path) -> str:
    """SHA-256 over the sums of the files that decide the model's output, so without its card, its threshold and its canaries.

    Raises:
        UserError: a file differs from its sum.
    """
    return _digest_without(folder, _NOT_THE_MODEL)


def encoder_digest(folder: Path) -> str:
    """`content_digest` without the relation head: equal for models that give sentences the same Gaussians.

    Raises:
        UserError: a file differs from its sum.
    """
    return _digest_without(folder, (*_NOT_THE_MODEL, RELATION, RELATION_WEIGHTS))


def embeddings_digest(folder: Path, engine: Engine) -> str:
    """`encoder_digest`, with the name of an engine that gives other numbers than torch: equal for Gaussians to be compared.

    Raises:
        UserError: a file differs from its sum.
    """
    digest = encoder_digest(folder)
    return digest if engine in EXACT else f"{digest} {engine}"


def _digest_without(folder: Path, left_out: Sequence[str]) -> str:
    lines = check_sums(folder).splitlines(keepends=True)
    return hashlib.sha256("".join(line for line in lines if line.split()[-1] not in left_out).encode()).hexdigest()


def relation_digest(folder: Path) -> str | None:
    """SHA-256 over the files of the relation head in a folder; None if it has none."""
    files = [folder / name for name in (RELATION, RELATION_WEIGHTS)]
    return sha256_json([sha256_file(file) for file in files]) if files[0].is_file() else None


def weights_digest(folder: Path) -> str:
    """SHA-256 over the tensors of a model: name, type, shape and bytes of each, whatever their order and their files.

    What config.json says of the computation counts, such as the pooling and the similarity. Of a relation head's scale, the two
    choices `score_kind` and `similarity_weight` count, exactly as they are. Its other numbers do not, at any precision: they
    follow from the tensors, the choices and the development pairs, so the same model gets slightly other ones on other pairs.
    Notes, tokenizer, card and threshold do not count either. Models with equal weights come from the same training.

    Raises:
        UserError: the weights are missing or damaged.
    """
    lines = sorted(line for file in folder.glob("*.safetensors") for line in _tensors(file))
    if not lines:
        raise UserError(f"{folder}: has no *.safetensors file with tensors; is it a folder of save_pretrained?")
    config = read_json(folder / "config.json")
    computed = {key: value for key, value in config["model"].items() if key not in _ONLY_BEFORE}
    lines.append(json.dumps([computed, config.get("similarity")], sort_keys=True))
    if (folder / RELATION).is_file():
        scale = read_json(folder / RELATION)
        lines.append(json.dumps([scale.get("score_kind"), scale.get("similarity_weight")]))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _tensors(path: Path) -> Iterator[str]:
    """One line for each tensor of a safetensors file."""
    import torch
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118 (not a dictionary)
                about = file.get_slice(name)
                data = file.get_tensor(name).flatten().view(torch.uint8).numpy()
                yield json.dumps([name, about.get_dtype(), about.get_shape(), hashlib.sha256(data).hexdigest()])
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path}: cannot be read as safetensors ({error})") from None
