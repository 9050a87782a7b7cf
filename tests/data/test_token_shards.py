"""Shards that are fetched when a batch needs them."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest

from pipeline.data.token_shards import AHEAD, FetchedShards
from pipeline.data.token_store import MISSING, open_store
from pipeline.families.operations.intersent import OperationBatches
from pipeline.storage.object_store import NotAnObject
from pipeline.utils.errors import RunError, StorageError
from tests.gates import wait_for
from tests.store import make_store

# Twenty shards of five sentences, of one size.
SHARDS, OF = 20, 5


@pytest.fixture(autouse=True)
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    r = np.random.default_rng(1)
    sentences = [[2, *r.integers(5, 30, 4).tolist(), 3] for _ in range(SHARDS * OF)]
    return make_store(tmp_path / "store", sentences, triplets=[(0, 1, 2)], shard_sentences=OF)


def size_of(store: Path) -> int:
    (size,) = {path.stat().st_size for path in (store / "sentences").iterdir()}
    return size


def here(shards: FetchedShards) -> set[int]:
    return {k for k, name in enumerate(shards._sums) if (shards._cache.folder / name).exists()}


def ended(shards: FetchedShards) -> bool:
    return shards._ahead is not None and shards._ahead.done()


def test_it_is_the_store_that_is_opened_whole(store: Path) -> None:
    whole, shards = open_store(store), FetchedShards(str(store), 3 * size_of(store))
    fetched, rows = shards.store(), np.random.default_rng(2).permutation(SHARDS * OF)
    assert len(fetched) == len(whole) == SHARDS * OF and here(shards) == set()
    widths = np.full(len(rows), 7)
    for found, expected in zip(fetched.lay_out(rows, widths), whole.lay_out(rows, widths), strict=True):
        assert np.array_equal(found, expected)
    assert all(np.array_equal(fetched[int(row)], whole[int(row)]) for row in rows[:20])
    assert len(here(shards)) == 3
    shards.check(whole=True)
    shards.close()


@pytest.mark.parametrize("limit", [5, None])
def test_the_next_steps_are_fetched_in_the_background(store: Path, limit: int | None) -> None:
    shards = FetchedShards(str(store), None if limit is None else limit * size_of(store))
    # A step reads a shard of its own and shard 0; `MISSING` is none.
    shards.plan(lambda step: np.array([MISSING, 2, (1 + step) * OF], dtype=np.int32), SHARDS - 1)
    with shards.at(0):
        assert set(shards._mapped) == {0, 1}
    # With a limit, the shard that step 0 alone reads has made room.
    wait_for(
        lambda: ended(shards) and here(shards) == ({0, 2, 3, 4, 5} if limit else set(range(AHEAD + 2))), 20, "shards are here"
    )
    if limit:
        for step in range(1, 15):
            with shards.at(step):
                assert set(shards._mapped) == {0, 1 + step}
            # What comes is kept until it is used.
            coming = {0, *range(step + 2, min(step + 6, SHARDS))}
            wait_for(lambda coming=coming: ended(shards) and coming <= here(shards), 20, "the next shards are here")
            assert len(here(shards)) <= 5
        # While no batch is made nothing is mapped.
        assert not shards._mapped
        mapped = Path("/proc/self/maps").read_text(encoding="utf-8")
        assert str(shards._cache.folder) not in mapped
    shards.close()


def test_a_batch_that_has_no_room_is_refused_before_the_first_step(store: Path) -> None:
    shards = FetchedShards(str(store), 3 * size_of(store))
    # Only the last step of the epoch needs four.
    shards.plan(lambda step: np.arange(3, dtype=np.int32) * OF, 9)
    with pytest.raises(RunError, match=r"cluster\.shard_cache_gb: got .*, but the shards .* have 0\.00\d GB; raise it"):
        shards.plan(lambda step: np.arange(4 if step == 8 else 3, dtype=np.int32) * OF, 9)
    shards.close()


def test_a_shard_that_is_missing_or_damaged_is_one_line(store: Path) -> None:
    (store / "sentences/00007.arrow").unlink()
    other = store / "sentences/00008.arrow"
    other.write_bytes(other.read_bytes()[:-1] + b"?")
    shards = FetchedShards(str(store), None)
    fetched = shards.store()
    assert len(fetched[6 * OF]) == 6
    with pytest.raises(NotAnObject, match=r"sentences/00007\.arrow was removed; run the command again"):
        fetched[7 * OF]
    with pytest.raises(StorageError, match=r"sentences/00008\.arrow differs from what was sent"):
        fetched[8 * OF]
    # The background thread does not report it: the step that needs it does.
    shards.plan(lambda step: np.array([step * OF], dtype=np.int32), SHARDS)
    for step in range(7):
        with shards.at(step):
            pass
    with pytest.raises(NotAnObject, match="00007"), shards.at(7):
        pass
    shards.close()


def test_all_targets_are_read_with_room_for_one_shard(store: Path) -> None:
    """The vocabulary of InterSent's decoder is that of all targets."""
    batches = OperationBatches.__new__(OperationBatches)
    batches._sentences = np.array([[0, 1, k] for k in range(3, 90, 4)], dtype=np.int32)
    batches._used = np.arange(len(batches._sentences))
    shards = FetchedShards(str(store), size_of(store))
    for batches._store in (open_store(store), shards.store()):
        assert np.array_equal(batches.target_ids(), np.concatenate([open_store(store)[k] for k in range(3, 90, 4)]))
    shards.close()
