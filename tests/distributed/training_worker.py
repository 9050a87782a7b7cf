"""One of two workers of a training run, which may be asked to pause. Run by test_pause."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from pipeline.training import Paused, train
from pipeline.trial import Trial


def main() -> None:
    rank, spec = int(sys.argv[1]), json.loads(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{spec['rendezvous']}", rank=rank, world_size=2)
    steps = itertools.count(1)
    trial = Trial.model_validate_json(json.dumps(spec["trial"]))
    stores = Path(spec["train"]), Path(spec["dev"])
    try:
        # The other worker says yes at every step, and is not heard.
        ask = (lambda: next(steps) == spec["pause"]) if rank == 0 else (lambda: True)
        train(trial, *stores, Path(spec["folder"]), lambda _: None, torch.device("cpu"), pause=ask)
        print("ended")
    except Paused:
        print("paused")


if __name__ == "__main__":
    main()
