from __future__ import annotations

import pytest
import torch

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
