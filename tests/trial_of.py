"""A trial to test with: the parameters of params.yaml, changed where a test asks for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from pipeline.config.execution import ClusterParams
from pipeline.config.load import load_execution, load_params
from pipeline.data.token_store import digest
from pipeline.identity.digests import WEIGHTS, backbone_digest, code_digest
from pipeline.models.encoder import GaussianEncoder
from pipeline.storage.sync import Mirror
from pipeline.trials.trial import Trial
from pipeline.trials.trial_folder import TrialFolder

# Not conftest's: a test imports this from a process of its own, where no pytest is.
ROOT = Path(__file__).resolve().parents[1]
OPERATIONS: dict[str, Any] = {
    "name": "intersent",
    "operators": "mlp",
    "decoder_layers": 1,
    "temperature": 0.1,
    "contrastive_weight": 1.0,
    "generation_weight": 0.25,
    "own_inputs": True,
    "shares": None,
    "reduction": "mean",
}
"""Section objective of a small model of sentence operators."""
SHAPES: dict[str, dict[str, Any]] = {
    "first token, tanh": {},
    "mean of tokens, no activation, 7 dimensions, sigma": {
        "pooling": "mean", "mean_activation": "none", "dim": 7, "variance_head": "sigma",
    },
    "two backbones": {"towers": "encoders"},
}  # fmt: skip
"""Changes of section model that give encoders of different graphs."""


def plain_trial(learning_rate: float = 1e-4, batch_size: int = 8, seed: int = 1, **train: object) -> Trial:
    """A trial of no particular data; `train` changes keys of section train."""
    p = load_params(ROOT / "tests/plain.yaml")
    return Trial(
        model=p.model.encoder,
        objective=p.objective,
        train=p.train.model_copy(update=train),
        learning_rate=learning_rate,
        batch_size=batch_size,
        seed=seed,
        train_tokens="t" * 64,
        dev_tokens="d" * 64,
        backbone_files="b" * 64,
        code="c" * 64,
    )


def trial_on(backbone: Path, stores: tuple[Path, Path], learning_rate: float, seed: int = 1, **train: object) -> Trial:
    """A trial in float32 that can be trained on two token stores, train and dev, of sentences of at most 24 tokens."""
    plain = plain_trial(learning_rate, 8, seed, **{"precision": "fp32", **train})
    return plain.model_copy(
        update={
            "model": plain.model.model_copy(update={"backbone": str(backbone), "max_length": 24}),
            "train_tokens": digest(stores[0]),
            "dev_tokens": digest(stores[1]),
            "backbone_files": backbone_digest(str(backbone), None),
            "code": code_digest(WEIGHTS, plain.objective),
        }
    )


def folder_at(trial: Trial, path: Path) -> TrialFolder:
    """A trial's folder that has no copy elsewhere."""
    return TrialFolder(trial, Mirror(path))


def worker_config(
    trial: Trial, stores: tuple[Path, Path], cluster: ClusterParams | None = None, **changes: object
) -> dict[str, Any]:
    """What a worker gets from a driver (`grid_search._train`), here to train a trial on the CPU, in one thread and to its end.

    Args:
        stores: train and dev.
        cluster: by default that of execution.yaml.
        changes: keys to change or add, such as `storage`.
    """
    return {
        "trial": trial.model_dump_json(),
        "train_tokens": str(stores[0]),
        "dev_tokens": str(stores[1]),
        "sums": [digest(store) for store in stores],
        "backbone": None,
        "search": "here",
        "cluster": (cluster or load_execution(ROOT / "execution.yaml").cluster).model_dump(mode="json"),
        "threads": 1,
        "use_gpu": False,
        "standing": False,
        "versions": None,
        "early_stopping": None,
        **changes,
    }


def tiny_encoder(backbone: Path, seed: int = 1, **changes: Any) -> GaussianEncoder:
    """An untrained encoder of sentences of at most 24 tokens; `changes` are keys of section model."""
    model = load_params(ROOT / "tests/plain.yaml").model.encoder
    return GaussianEncoder.from_backbone(
        model.model_copy(update={"backbone": str(backbone), "max_length": 24, **changes}), seed
    ).eval()


def shaped_encoder(backbone: Path, **changes: Any) -> GaussianEncoder:
    """An encoder of one of `SHAPES`; two backbones differ as after training."""
    encoder = tiny_encoder(backbone, **changes)
    if encoder.second_backbone is not None:
        with torch.no_grad():
            encoder.second_backbone.embeddings.word_embeddings.weight.mul_(1.5)  # type: ignore[union-attr, operator]
    return encoder
