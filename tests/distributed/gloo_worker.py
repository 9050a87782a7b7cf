"""One worker of a group: gradients of global batches, and SGD steps, by the product's own step. Run by test_global_batch."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from pipeline import collectives
from pipeline.batching import global_batch
from pipeline.data.tokens import open_store, read_triplets
from pipeline.encoder import GaussianEncoder
from pipeline.objectives import make_objective
from pipeline.params import load_params
from pipeline.training import GroupEncoder, batch_loss


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


def run(job: dict[str, Any], spec: dict[str, Any], workers: int) -> dict[str, Tensor]:
    """Gradients of the first batch, or the weights after `steps` > 1 SGD steps."""
    p = load_params(spec["params"])
    store, triplets = open_store(Path(spec["store"])), read_triplets(Path(spec["store"]))
    if job["missing"]:
        triplets = triplets.copy()
        triplets[::3, 2] = -1
    model = p.model.model_copy(update={"backbone": spec["backbone"], "max_length": 24})
    # eval() turns dropout off, which draws differently on each worker.
    encoder = GaussianEncoder.from_backbone(model, seed=1).double().eval()
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        # As initialised the tiny backbone maps all sentences to nearly one point, and the gradients are next to nothing.
        for q in encoder.parameters():
            q += 0.1 * torch.randn(q.shape, generator=draw, dtype=q.dtype)
    objective = make_objective(job["objective"], job["similarity"], 0.05)
    encoder.variance_head.requires_grad_(objective.uses_variance)
    module: nn.Module = GroupEncoder(encoder)
    if workers > 1:
        module = DistributedDataParallel(module, forward_sync_buffers=False, gradient_as_bucket_view=True)
    train = p.train.model_copy(update={"precision": "fp32", "length_groups": 3})
    trained = {name: q for name, q in encoder.named_parameters() if q.requires_grad}
    for step in range(job["steps"]):
        rows = global_batch(len(triplets), job["batch"], 7, step)
        own = triplets[rows[collectives.shard(len(rows))]]
        encoder.zero_grad()
        share = batch_loss(module, objective, store, own, len(rows), train, torch.device("cpu"))
        (share * workers / len(rows)).backward()
        if job["steps"] > 1:
            with torch.no_grad():
                for q in trained.values():
                    assert q.grad is not None
                    q -= 0.05 * q.grad
    kept = trained if job["steps"] > 1 else {name: q.grad for name, q in trained.items() if q.grad is not None}
    assert kept.keys() == trained.keys()
    return {name: value.detach().clone() for name, value in kept.items()}


if __name__ == "__main__":
    main()
