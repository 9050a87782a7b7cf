"""Whole runs on a device: resumed, through the worker's own entry with its process group, and their memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file

from pipeline.cluster.worker import train_as_worker
from pipeline.cluster.worker_group import enter_group
from pipeline.data.token_store import open_store
from pipeline.distributed import collectives
from pipeline.families.pairs.contrastive import make_objective
from pipeline.families.pairs.triplets import triplet_batch
from pipeline.models.encoder import GaussianEncoder
from pipeline.training.pace import device_name, peak_memory
from pipeline.training.step import BatchEncoder, DeviceBatch, accumulate_gradients, data_parallel
from pipeline.training.trainer import Progress, train
from pipeline.trials.progress_log import RecordReader
from pipeline.trials.store import folder_of
from pipeline.trials.trial import Outcome, Trial
from tests.store import random_stores, read_triplets
from tests.training.runs import Killed, dies_at, make_trial
from tests.trial_of import folder_at, worker_config


@pytest.fixture
def stores(tmp_path: Path) -> tuple[Path, Path]:
    return random_stores(tmp_path / "stores")


def test_a_resumed_run_ends_as_an_undisturbed_one(
    device: torch.device, tiny_backbone: Path, stores: tuple[Path, Path], tmp_path: Path
) -> None:
    # With dropout; the checkpoint is that of step 4, in mid-epoch.
    trial = make_trial(tiny_backbone, stores)

    def run(name: str, report: Callable[[Progress], None] = lambda _: None) -> Outcome:
        return train(*stores, folder_at(trial, tmp_path / name), report, device)

    whole = run("whole")
    with pytest.raises(Killed):
        run("killed", dies_at(8))
    resumed = run("killed")
    weights = [load_file(tmp_path / name / "best/model.safetensors") for name in ("whole", "killed")]
    if device.type == "cpu":
        assert resumed == whole
        assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
        return
    # A GPU adds in another order every time.
    assert [entry["step"] for entry in resumed.history] == [entry["step"] for entry in whole.history]
    for ours, theirs in zip(resumed.history, whole.history, strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-3)
    untrained = GaussianEncoder.from_backbone(trial.model, trial.seed).state_dict()
    for name, value in weights[0].items():
        moved = float((value - untrained[name]).norm())
        assert float((weights[1][name] - value).norm()) <= 0.05 * moved + 1e-4, name


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The group of one worker that the workers of Ray Train make."""
    monkeypatch.setattr(collectives, "_timed", None)
    enter_group(f"file://{tmp_path}/rendezvous", 0, 1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("group")
def test_a_worker_trains_in_its_process_group(
    device: torch.device, tiny_backbone: Path, stores: tuple[Path, Path], tmp_path: Path
) -> None:
    trial = make_trial(tiny_backbone, stores)
    use_gpu = device.type == "cuda"
    config = worker_config(trial, stores, storage=str(tmp_path / "storage"), use_gpu=use_gpu)
    folder = folder_of(trial, tmp_path / "storage", None)
    folder.claim(None, 0.0)
    train_as_worker(config, 0)
    assert folder.outcome() is not None
    assert (folder.timing().device, folder.timing().precision) == (device_name(device), "fp32")
    # The collectives of a step, in the group that the worker made.
    assert collectives.group() is not None
    assert dist.get_backend(collectives.group()) == ("nccl" if use_gpu else "gloo")
    local = torch.randn((5, 3), device=device, requires_grad=True)
    gathered: Any = collectives._GatherRows.apply(local, [5])
    (gathered * torch.arange(3.0, device=device)).sum().backward()
    assert torch.equal(gathered, local)
    assert torch.equal(local.grad, torch.arange(3.0, device=device).expand(5, 3))  # type: ignore[arg-type]
    alone, joined = (_gradients(trial, stores[0], device, ddp=ddp) for ddp in (False, True))
    for name, value in alone.items():
        torch.testing.assert_close(joined[name], value, rtol=1e-4, atol=1e-5 * max(float(v.abs().max()) for v in alone.values()))


def _gradients(trial: Trial, tokens: Path, device: torch.device, *, ddp: bool) -> dict[str, torch.Tensor]:
    encoder = GaussianEncoder.from_backbone(trial.model, trial.seed).to(device).eval()
    alone = BatchEncoder(encoder, bf16=False)
    module = data_parallel(alone) if ddp else alone
    store = open_store(tokens)
    batch = triplet_batch(make_objective("ent+con+rev", "kl", 0.05), read_triplets(tokens)[:9], "keep")
    given = DeviceBatch.of(store, batch, trial.train, device)
    accumulate_gradients(module, given, trial.train, scale=1 / 9)
    return {name: value.grad for name, value in encoder.named_parameters() if value.grad is not None}


def test_a_run_reports_device_precision_speed_and_memory(
    device: torch.device, tiny_backbone: Path, stores: tuple[Path, Path], tmp_path: Path
) -> None:
    folder = folder_at(make_trial(tiny_backbone, stores), tmp_path / "trial")
    folder.path.mkdir()
    train(*stores, folder, folder.log, device)
    last = RecordReader(tmp_path / "trial").read()[-1]
    assert (last["device"], last["precision"]) == (device_name(device), "fp32")
    assert last["tflops"] > 0
    assert last["gathered_mb"] is None
    # The peak is of this device, so far, and of the trial's own tensors on a GPU.
    assert 0 < last["peak_memory_mb"] <= peak_memory(device) / 1e6
    if device.type == "cuda":
        # Weights, gradients and moments of 30,000 numbers, and activations of 24 short sentences.
        assert last["peak_memory_mb"] < 64


@pytest.mark.gpu
def test_gradient_caching_bounds_the_memory(gpu: torch.device, tiny_backbone: Path, tmp_path: Path) -> None:
    stores = random_stores(tmp_path / "stores", sentences=600, triplets=512)
    trial = make_trial(tiny_backbone, stores)
    store = open_store(stores[0])
    batch = triplet_batch(make_objective("ent+con+rev", "kl", 0.05), read_triplets(stores[0]), "keep")

    def peak(micro_batch: int | None) -> int:
        params = trial.train.model_copy(update={"micro_batch": micro_batch})
        encoder = GaussianEncoder.from_backbone(trial.model, trial.seed).to(gpu)
        step = partial(accumulate_gradients, BatchEncoder(encoder, bf16=False), scale=1 / 512)
        step(DeviceBatch.of(store, batch, params, gpu), params)
        torch.cuda.reset_peak_memory_stats(gpu)
        before = torch.cuda.memory_allocated(gpu)
        step(DeviceBatch.of(store, batch, params, gpu), params)
        return torch.cuda.max_memory_allocated(gpu) - before

    assert peak(64) < 0.6 * peak(None)
