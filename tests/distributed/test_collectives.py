from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing.spawn import spawn

from pipeline.distributed import collectives


@pytest.mark.parametrize(("n", "workers"), [(10, 4), (8, 4), (3, 4), (0, 2), (7, 1)])
def test_shards_are_contiguous_and_nearly_equal(n: int, workers: int) -> None:
    sizes = collectives.shard_sizes(n, workers)
    assert sum(sizes) == n
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


def test_alone_everything_is_a_no_op() -> None:
    x = torch.arange(6.0).reshape(3, 2).requires_grad_()
    assert collectives.gather_rows(x, 3) is x
    assert collectives.shard(3) == slice(0, 3)
    assert torch.equal(collectives.all_sum(x), x.detach())
    assert collectives.from_first(2.5, torch.device("cpu")) == 2.5
    assert collectives.text_from_first("é", torch.device("cpu")) == "é"
    with pytest.raises(ValueError, match="rank 0 holds 3 rows, its shard of 5 has 5"):
        collectives.gather_rows(x, 5)


@contextmanager
def group(rank: int, workers: int, folder: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=workers)
    try:
        yield
    finally:
        # A process that exits with the threads of a group running is now and then aborted.
        dist.destroy_process_group()


def gather(rank: int, workers: int, folder: Path) -> None:
    local = torch.randn(collectives.shard_sizes(7, workers)[rank], 5, requires_grad=True)
    with group(rank, workers, folder):
        gathered = collectives.gather_rows(local, 7)
        forward = collectives.gathered_bytes()
        # Another gradient for each row and each worker.
        (gathered * (torch.arange(7.0)[:, None] + 10 * rank)).sum().backward()
    assert local.grad is not None
    backward = collectives.gathered_bytes() - forward
    torch.save((forward, backward, local.grad, local.detach(), gathered.detach()), folder / f"{rank}.pt")


@pytest.mark.parametrize("workers", [2, 3])
def test_a_gather_receives_the_rows_of_the_others_and_sends_back_as_much(workers: int, tmp_path: Path) -> None:
    spawn(gather, (workers, tmp_path), workers)
    # Shards of 7 rows; each is filled up to the largest on the way there, and not on the way back.
    sizes = {2: [4, 3], 3: [3, 2, 2]}[workers]
    results = [torch.load(tmp_path / f"{rank}.pt") for rank in range(workers)]
    rows = torch.cat([local for *_, local, _ in results])
    start = 0
    for size, (forward, backward, grad, _, gathered) in zip(sizes, results, strict=True):
        assert forward == (workers - 1) * sizes[0] * 5 * 4
        assert backward == (workers - 1) * size * 5 * 4
        assert torch.equal(gathered, rows)
        own = torch.arange(start, start + size, dtype=torch.float32)
        start += size
        assert torch.equal(grad, (workers * own + 10 * sum(range(workers)))[:, None].expand(size, 5))


def average(rank: int, workers: int, folder: Path) -> None:
    gradient = torch.zeros(1000, 8)
    # Row 3 is used by both workers, row 10 by the first and row 999 by the second.
    gradient[3], gradient[(10, 999)[rank]] = 2.0 + rank, 4.0
    sent: list[int] = []
    real = dist.all_reduce

    def counted(tensor: Tensor, *rest: Any, **named: Any) -> Any:
        sent.append(tensor.nbytes)
        return real(tensor, *rest, **named)

    dist.all_reduce = counted
    with group(rank, workers, folder):
        collectives.average_rows(gradient)
    torch.save((gradient, sent), folder / f"{rank}.pt")


def test_the_average_of_word_embeddings_sends_only_rows_that_a_worker_used(tmp_path: Path) -> None:
    spawn(average, (2, tmp_path), 2)
    expected = torch.zeros(1000, 8)
    expected[3], expected[10], expected[999] = 2.5, 2.0, 2.0
    for rank in range(2):
        gradient, sent = torch.load(tmp_path / f"{rank}.pt")
        assert torch.equal(gradient, expected)
        # A byte for each row, to find those in use; then three rows of eight numbers, of 32,000 bytes in all.
        assert sent == [1000, 3 * 8 * 4]
