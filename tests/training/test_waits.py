"""The host never waits for the device in a training step.

The steps run on torch's device `meta`, which has shapes and no values. Whatever needs a value there, or copies one back to the
host, is an error: item(), tolist(), bool(), nonzero(), a mask of booleans as index. On a GPU each of these waits. What the host
copies there must be a copy that it does not wait for. tests/gpu/ asks a GPU the same.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from pipeline.config.load import load_params
from pipeline.config.objectives import own_keys
from pipeline.data.token_store import MISSING
from pipeline.families.operations.intersent import IntersentObjective
from pipeline.families.pairs.contrastive import TripletObjective
from pipeline.families.text.quickthoughts import QuickThoughtsObjective
from pipeline.training import trainer
from tests.conftest import PLAIN
from tests.store import make_store
from tests.trial_of import OPERATIONS, folder_at, trial_on

META = torch.device("meta")
DOCUMENTS: dict[str, Any] = {"name": "quickthoughts", "context_size": 1, "block_size": 2, "direction": "both"}
DOCUMENTS |= {"loss": "softmax", "score": "dot", "temperature": 1.0, "reduction": "mean", "run_length": None}
# Keys that replace those of section objective, and keys that change section train.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "kl": ({}, {}),
    "all parts": (
        {"neutral_block": True, "simcse_weight": 0.5, "relation_weight": 0.2},
        {"same_premise": "mask", "micro_batch": 5, "triplets": "all"},
    ),
    "dimwise": ({"similarity": "kl-dimwise"}, {}),
    "simcse": ({"name": "simcse", "temperature": 0.05, "reduction": "mean", "neutral_block": False}, {"triplets": "all"}),
    "documents": (DOCUMENTS, {}),
    "blocks": (DOCUMENTS | {"loss": "block", "score": "cosine", "direction": "next"}, {"micro_batch": 3}),
    "documents, kl": (DOCUMENTS | {"score": "kl"}, {}),
    "operations": (OPERATIONS, {}),
    "operations, arithmetic": (OPERATIONS | {"operators": "arithmetic", "own_inputs": False}, {"micro_batch": 4}),
}


class NoWaiting(TorchDispatchMode):
    """Fails where a copy to the device is one that the host waits for, and where something is copied back."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten._to_copy.default and "device" in kwargs:
            source, target = args[0].device.type, torch.device(kwargs["device"]).type
            assert target == source or (target == "meta" and kwargs.get("non_blocking")), f"a copy from {source} to {target}"
        if func is torch.ops.aten.copy_.default:
            assert args[0].device == args[1].device or args[1].ndim == 0, "a copy between devices"
        return func(*args, **kwargs)


class NoNewFromHost(TorchFunctionMode):
    """Fails where numbers of Python become a tensor on the device: that is a copy that the host waits for."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func in (torch.tensor, torch.as_tensor, Tensor.new_tensor):
            assert out.device.type == "cpu", "a tensor made of the host's numbers on the device"
        return out


class NotRead:
    """Takes the place of `HostCopy`: on `meta` there is nothing to read."""

    def __init__(self, tensor: Tensor) -> None:
        assert tensor.device.type == "meta"

    def read(self) -> list[float]:
        raise AssertionError("a step has read from the device")


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Sentences as triplets, as documents of one to nine sentences, and as rows of all four operations."""
    base, r = tmp_path_factory.mktemp("stores"), np.random.default_rng(0)
    texts = [[2, *r.integers(5, 30, r.integers(1, 11)).tolist(), 3] for _ in range(43)]
    triplets = [(k % 9, (k + 3) % 43, MISSING if k % 3 == 0 else 5, MISSING if k % 4 == 0 else 7) for k in range(40)]
    document = np.repeat(np.arange(9), [5, 1, 9, 7, 2, 8, 1, 6, 4])
    operations = [(k % 11, (k * 5) % 23 if k % 4 < 2 else MISSING, (k * 7) % 15) for k in range(36)]
    numbers = {
        "documents": {"document": document.tolist(), "position": (np.arange(43) - np.searchsorted(document, document)).tolist()},
        "operations": {"operation": [k % 4 for k in range(36)]},
    }
    rows = {"documents": [(k,) for k in range(43)], "operations": operations}
    pairs = {"dev": [(k, k + 1, k % 3) for k in range(30)]}
    return (
        make_store(base / "train", texts, triplets=triplets, rows=rows, numbers=numbers),
        make_store(base / "dev", texts, pairs=pairs),
    )


@pytest.fixture
def started(
    tiny_backbone: Path, stores: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Any]:
    """Makes a run of the trainer on `meta`, by the names of the cases."""
    for kind in (TripletObjective, QuickThoughtsObjective, IntersentObjective):
        # No score is computed here.
        monkeypatch.setattr(kind, "dev_rows", lambda self, tokens: None)
    monkeypatch.setattr(trainer, "HostCopy", NotRead)
    # torch's fused AdamW has no kernel for `meta`. On a GPU it is one kernel that reads nothing.
    monkeypatch.setattr(trainer, "optimizer_for", lambda model, params, rate, new: _Sgd(model.parameters(), rate))

    def start(case: str) -> Any:
        keys, train = CASES[case]
        trial = trial_on(tiny_backbone, stores, 1e-3, 3, **{"length_groups": 3, **train})
        objective = own_keys(keys if "name" in keys else load_params(PLAIN).objective.model_dump() | keys)
        folder = folder_at(trial.model_copy(update={"objective": objective}), tmp_path / "trial")
        return trainer._Run(*stores, folder, lambda _: None, META, lambda: False)

    return start


class _Sgd(torch.optim.SGD):
    def __init__(self, parameters: Any, rate: float) -> None:
        super().__init__([{"params": list(parameters), "factor": 1.0}], lr=rate)


@pytest.mark.parametrize("case", CASES)
def test_no_step_waits_for_the_device(started: Callable[..., Any], case: str) -> None:
    run = started(case)
    with NoNewFromHost(), NoWaiting():
        for step in range(3):
            run._step(step)
    assert len(run.unread) == 3
    # The batch of the next step is on the device already.
    assert run.next.micro_batches[0].ids.device == META
    with pytest.raises(AssertionError, match="has read from the device"):
        run._read_losses()
