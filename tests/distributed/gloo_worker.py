"""One worker of a group: gradients of global batches, and SGD steps, by the product's own step. Run by test_global_batch."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from pipeline import collectives
from pipeline.batching import GlobalBatches
from pipeline.blocks import by_length, lay_out
from pipeline.config import load_params
from pipeline.data.tokens import TokenStore, open_store, read_triplets
from pipeline.encoder import GaussianEncoder
from pipeline.gaussian import Gaussian
from pipeline.objectives import Objective, make_objective
from pipeline.step import BatchEncoder, Share, accumulate_gradients, share_of


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
    """What the job asks for: gradients of the first batch; the weights after `steps` > 1 SGD steps; or, with `dropout`, the
    gradients by gradient caching and by one plain graph over the same micro-batches.
    """
    p = load_params(spec["params"])
    store, triplets = open_store(Path(spec["store"])), read_triplets(Path(spec["store"]))
    if job["missing"]:
        triplets = triplets.copy()
        triplets[::3, 2] = -1
    model = p.model.model_copy(update={"backbone": spec["backbone"], "max_length": 24})
    encoder = GaussianEncoder.from_backbone(model, seed=1).double().train(job["dropout"])
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        # As initialised the tiny backbone maps all sentences to nearly one point, and the gradients are next to nothing.
        for q in encoder.parameters():
            q += 0.1 * torch.randn(q.shape, generator=draw, dtype=q.dtype)
    objective = make_objective(
        job["objective"],
        job["similarity"],
        0.05,
        neutrals=job["neutrals"],
        simcse_weight=job["simcse_weight"],
        reverse_weight=job["reverse_weight"],
    )
    encoder.variance_head.requires_grad_(objective.uses_variance)
    alone = BatchEncoder(encoder, bf16=False)
    module: nn.Module = alone
    if workers > 1:
        module = DistributedDataParallel(alone, forward_sync_buffers=False, gradient_as_bucket_view=True)
    train = p.train.model_copy(update={"length_groups": 3, "micro_batch": job["micro_batch"]})
    trained = {name: q for name, q in encoder.named_parameters() if q.requires_grad}
    batches = GlobalBatches(triplets[:, 0], np.zeros(len(triplets), np.int32), job["batch"], 7)
    shares = [share_of(triplets[batches.rows(step)], job["same_premise"]) for step in range(job["steps"])]
    for share in shares:
        encoder.zero_grad()
        torch.manual_seed(100 + collectives.rank())
        accumulate_gradients(module, objective, store, share, train, scale=workers / share.n)
        if job["steps"] > 1:
            with torch.no_grad():
                for q in trained.values():
                    assert q.grad is not None
                    q -= 0.05 * q.grad
    kept = trained if job["steps"] > 1 else {name: q.grad for name, q in trained.items() if q.grad is not None}
    assert kept.keys() == trained.keys()
    found = {name: value.detach().clone() for name, value in kept.items()}
    if job["dropout"]:
        after = torch.get_rng_state()
        encoder.zero_grad()
        torch.manual_seed(100 + collectives.rank())
        _one_graph(alone, objective, store, shares[0], job["micro_batch"], workers / shares[0].n)
        assert torch.equal(torch.get_rng_state(), after)
        for name, q in trained.items():
            assert q.grad is not None
            found[f"plain.{name}"] = collectives.all_sum(q.grad) / workers
    return found


def _one_graph(
    module: BatchEncoder, objective: Objective, store: TokenStore, share: Share, micro_batch: int, scale: float
) -> None:
    """Backward through one graph over all micro-batches, written without the product's caching."""
    wanted = np.concatenate(objective.sentences(share.triplets))
    parts = by_length(store, wanted, micro_batch)
    assert len(parts) > 2
    encoded = torch.cat([module(lay_out(store, wanted[part], 3, "cpu")) for part in parts])
    inverse = torch.from_numpy(np.argsort(np.concatenate(parts)))
    roles = [Gaussian(role[:, 0], role[:, 1]) for role in encoded[inverse].split(len(share.triplets))]
    present = [torch.ones(len(share.triplets), dtype=torch.bool) for _ in roles]
    (objective.loss(roles, present, share.n, share.hidden) * scale).backward()


if __name__ == "__main__":
    main()
