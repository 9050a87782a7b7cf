"""One worker of a group: gradients of global batches, and SGD steps, by the product's own step. Run by test_global_batch."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor

from pipeline.config.load import load_params
from pipeline.config.params import TrainParams
from pipeline.data.token_store import TokenStore, open_store, read_rows
from pipeline.distributed import collectives
from pipeline.families.objective import Batch, Objective
from pipeline.families.operations.intersent import IntersentObjective
from pipeline.families.operations.params import IntersentParams
from pipeline.families.pairs.contrastive import make_objective
from pipeline.families.pairs.triplets import GlobalBatches, triplet_batch
from pipeline.families.text.params import QuickThoughtsParams
from pipeline.families.text.quickthoughts import QuickThoughtsObjective
from pipeline.models.encoder import GaussianEncoder
from pipeline.models.packing import by_length, lay_out
from pipeline.models.token_head import TokenHead
from pipeline.training.step import BatchEncoder, DeviceBatch, accumulate_gradients, data_parallel, together
from tests.objectives.pairs import KIND, PairsObjective
from tests.store import in_memory, read_triplets

Made = tuple[Objective, Any, Sequence[Batch]]
"""An objective, its batches, and this worker's share of the first ones."""


def main() -> None:
    rank, spec = int(sys.argv[1]), json.loads(sys.argv[2])
    torch.set_num_threads(1)
    workers: int = spec["workers"]
    if workers > 1:
        dist.init_process_group("gloo", init_method=f"file://{spec['rendezvous']}", rank=rank, world_size=workers)
    for name, job in spec["jobs"].items():
        kept = run(job, spec, workers)
        if rank == 0:
            save_file(kept, Path(spec["out"]) / f"{name}.safetensors")
    if workers > 1:
        # A process that exits with the threads of a group running is now and then aborted.
        dist.destroy_process_group()


def run(job: dict[str, Any], spec: dict[str, Any], workers: int) -> dict[str, Tensor]:
    """What the job asks for: gradients of the first batch; the weights after `steps` > 1 SGD steps; or, with `dropout`, the
    gradients by gradient caching and by one plain graph over the same micro-batches.

    `spec` may name a device, a dtype other than float64, and `bf16`. With `losses`, there is also `loss`, the sum of each step.
    """
    p = load_params(spec["params"])
    device, dtype = torch.device(spec.get("device", "cpu")), getattr(torch, spec.get("dtype", "float64"))
    store = open_store(Path(spec["store"]))
    asked: dict[str, Any] = dict(job.get("documents", {}))
    towers = asked.pop("towers", "heads")
    model = p.model.encoder.model_copy(update={"backbone": spec["backbone"], "max_length": 24, "towers": towers})
    encoder = GaussianEncoder.from_backbone(model, seed=1).double().train(job["dropout"])
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        # As initialised the tiny backbone maps all sentences to nearly one point, and the gradients are next to nothing.
        for q in encoder.parameters():
            q += 0.1 * torch.randn(q.shape, generator=draw, dtype=q.dtype)
    encoder.to(device, dtype)
    plain = p.train.model_copy(update={"precision": "fp32"})
    objective, batches, shares = {
        "quickthoughts": lambda: _documents(job, asked, store, plain),
        "intersent": lambda: _operations(job, store, plain),
        "pairs": lambda: _pairs(job, store, plain),
    }.get(job["objective"], lambda: _triplets(job, store))()
    encoder.variance_head.requires_grad_(objective.similarity is not None)
    torch.manual_seed(2)
    modules = objective.modules(encoder, batches)
    if modules is not None:
        # Operators start at zero, and what is before a zero has no gradient.
        draw = torch.Generator().manual_seed(5)
        for parameter in modules.parameters():
            if not parameter.any():
                torch.nn.init.normal_(parameter, std=0.2, generator=draw)
        modules.to(device, dtype).train(job["dropout"])
        if isinstance(modules, TokenHead):
            # Outside training it gives int8, which has no gradient.
            modules.projection.train()
    alone = BatchEncoder(encoder, bf16=spec.get("bf16", False), represent=partial(objective.represent, modules))
    module = data_parallel(alone) if workers > 1 else alone
    train = p.train.model_copy(update={"length_groups": 3, "micro_batch": job["micro_batch"]})
    everything = together(encoder, modules)
    trained = {name: q for name, q in everything.named_parameters() if q.requires_grad}
    losses: list[Tensor] = []
    for share in shares:
        everything.zero_grad()
        torch.manual_seed(100 + collectives.rank())
        given = DeviceBatch.of(store, share, train, device)
        losses.append(accumulate_gradients(module, given, train, scale=workers / share.counted, modules=modules))
        if job["steps"] > 1:
            with torch.no_grad():
                for q in trained.values():
                    assert q.grad is not None
                    q -= 0.05 * q.grad
    kept = trained if job["steps"] > 1 else {name: q.grad for name, q in trained.items() if q.grad is not None}
    assert kept.keys() == trained.keys()
    found = {name: value.detach().clone() for name, value in kept.items()}
    if spec.get("losses"):
        found["loss"] = collectives.all_sum(torch.stack(losses))
    if job["dropout"]:
        after = torch.cuda.get_rng_state() if device.type == "cuda" else torch.get_rng_state()
        encoder.zero_grad()
        torch.manual_seed(100 + collectives.rank())
        _one_graph(alone, store, shares[0], job["micro_batch"], workers / shares[0].n)
        assert torch.equal(torch.cuda.get_rng_state() if device.type == "cuda" else torch.get_rng_state(), after)
        for name, q in trained.items():
            assert q.grad is not None
            found[f"plain.{name}"] = collectives.all_sum(q.grad) / workers
    return found


def _triplets(job: dict[str, Any], store: TokenStore) -> Made:
    objective = make_objective(
        job["objective"],
        job["similarity"],
        0.05,
        neutral_block=job["neutrals"],
        simcse_weight=float(job["simcse_weight"]),
        relation_weight=float(job["relation_weight"]),
    )
    triplets = read_triplets(store.directory)
    if job["missing"]:
        triplets = triplets.copy()
        triplets[::3, 2] = -1
    batches = GlobalBatches(len(triplets), triplets[:, 0].__getitem__, job["batch"], 7)
    rows = [triplets[batches.rows(step)] for step in range(job["steps"])]
    two_way = [own[:, 0] % 3 < job["two_way"] for own in rows]
    shares = [triplet_batch(objective, own, job["same_premise"], known) for own, known in zip(rows, two_way, strict=True)]
    return objective, batches, shares


def _pairs(job: dict[str, Any], store: TokenStore, train: TrainParams) -> Made:
    objective = PairsObjective()
    batches = objective.batches(read_rows(store.directory, KIND), store, train, job["batch"], 7)
    return objective, batches, [batches.batch(step) for step in range(job["steps"])]


def _documents(job: dict[str, Any], asked: dict[str, Any], store: TokenStore, train: TrainParams) -> Made:
    """The sentences of the store as documents of one to nine sentences."""
    document = np.repeat(np.arange(9), [5, 1, 9, 7, 2, 8, 1, 6, 4])
    position = np.arange(len(document)) - np.searchsorted(document, document)
    columns = {"sentence": np.arange(len(document), dtype=np.int32), "document": document, "position": position}
    keys: dict[str, Any] = {"loss": "softmax", "context_size": 1, "block_size": 1, "direction": "both", "score": "dot"}
    keys |= {"name": "quickthoughts", "temperature": 0.5, "reduction": "mean", "run_length": None, **asked}
    objective = QuickThoughtsObjective(params=QuickThoughtsParams(**keys))
    batches = objective.batches(in_memory(columns, store.directory), store, train, job["batch"], 7)
    return objective, batches, [batches.batch(step) for step in range(job["steps"])]


def _operations(job: dict[str, Any], store: TokenStore, train: TrainParams) -> Made:
    """Rows of all four operations; some of them have the same target, and some a target that is also an input."""
    numbers = np.arange(36, dtype=np.int32)
    operation = (numbers % 4).astype(np.int8)
    sentences = {"a": numbers % 11, "b": np.where(operation < 2, (numbers * 5) % 23, -1), "target": (numbers * 7) % 15}
    columns = {"operation": operation, **{name: column.astype(np.int32) for name, column in sentences.items()}}
    keys: dict[str, Any] = {"name": "intersent", "operators": "mlp", "decoder_layers": 1, "temperature": 0.5, "reduction": "mean"}
    keys |= {"contrastive_weight": 1.0, "generation_weight": 0.3, "own_inputs": True, "shares": None}
    objective = IntersentObjective(params=IntersentParams(**keys))
    batches = objective.batches(in_memory(columns, store.directory), store, train, job["batch"], 7)
    return objective, batches, [batches.batch(step) for step in range(job["steps"])]


def _one_graph(module: BatchEncoder, store: TokenStore, share: Batch, micro_batch: int, scale: float) -> None:
    """Backward through one graph over all micro-batches, written without the product's caching."""
    wanted = np.concatenate(share.sentences)
    parts = by_length(store, wanted, micro_batch)
    assert len(parts) > 2
    device = next(module.parameters()).device
    encoded = torch.cat([module(lay_out(store, wanted[part], 3, device)) for part in parts])
    inverse = torch.from_numpy(np.argsort(np.concatenate(parts))).to(device)
    (share.loss(encoded[inverse].split(len(share.sentences[0])), None) * scale).backward()


if __name__ == "__main__":
    main()
