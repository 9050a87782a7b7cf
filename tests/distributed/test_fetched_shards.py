"""Training on shards that are fetched from S3, with room for a fraction of them, and on the whole store: the same bits."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

from pipeline.cluster import worker
from pipeline.config.load import load_execution
from pipeline.data.token_shards import FetchedShards
from pipeline.data.token_store import read_manifest
from pipeline.storage import file_cache, object_store
from pipeline.storage.object_store import Storage, place_of
from pipeline.storage.sync import Mirror
from pipeline.training.trainer import Paused, train
from pipeline.trials.progress_log import RECORDS
from pipeline.trials.trial import LATEST, OUTCOME, Trial
from pipeline.trials.trial_folder import TrialFolder
from pipeline.utils.atomic_io import read_json, write_json
from pipeline.utils.errors import RunError, StorageError, TransientStorageError
from tests.faulty_s3 import FaultyS3, faulty
from tests.store import make_store
from tests.trial_of import ROOT, folder_at, trial_on, worker_config

pytestmark = pytest.mark.faults

SENTENCES, OF, STOP = 150, 5, 13


def stores_in(folder: Path) -> tuple[Path, Path]:
    """Fifty triplets of sentences that are near in the file, in thirty shards, and a development store in one."""
    r = np.random.default_rng(3)
    texts = [[2, *r.integers(5, 30, r.integers(1, 11)).tolist(), 3] for _ in range(SENTENCES)]
    triplets = [(3 * k, 3 * k + 1, 3 * k + 2, max(3 * k - 5, 0) if k % 4 else -1) for k in range(50)]
    pairs = [(*r.integers(0, SENTENCES, 2).tolist(), k % 3) for k in range(45)]
    train_store = make_store(folder / "train", texts, triplets=triplets, shard_sentences=OF)
    return train_store, make_store(folder / "dev", texts, pairs={"dev": pairs})  # type: ignore[dict-item]


def sent(storage: str, store: Path) -> str:
    return f"{Storage.open(storage).put(store)}@{storage}"


def part_of(store: Path, share: float) -> int:
    """Bytes of a share of its shards."""
    return int(share * sum(path.stat().st_size for path in (store / "sentences").iterdir()))


def trial_in(backbone: Path, stores: tuple[Path, Path], **changes: object) -> Trial:
    # A batch of eight rows, of three blocks of two; dropout as in training.
    return trial_on(backbone, stores, 1e-3, 3, **{"epochs": 4, "eval_every": 7, "length_groups": 3, **changes})


def as_one_of_two(
    rank: int, trial_json: str, stores: tuple[Path, Path], out: Path, ways: dict[str, tuple[str, int] | None]
) -> None:
    """Train `STOP` steps in each way, keeping the checkpoint with weights, moments and losses, and then to the end."""
    torch.set_num_threads(1)
    trial = Trial.model_validate_json(trial_json)
    tempfile.tempdir = str(out / "node")
    dist.init_process_group("gloo", init_method=f"file://{out / 'rendezvous'}", rank=rank, world_size=2)
    for way, given in ways.items():
        for stop in (STOP - 1, None):
            steps = iter(range(1000))
            shards = None if given is None else FetchedShards(*given)
            if shards is not None:
                _watch(shards)
            # The second process has a copy of the first one's checkpoint, as a worker takes it.
            folder = out / (way if rank == 0 else f"{way}-second")
            if rank and stop is None:
                shutil.copytree(out / f"{way}-stopped", folder / LATEST)
            dist.barrier()
            first = stores[0] if shards is None else shards.directory
            try:
                train(
                    first, stores[1], folder_at(trial, folder), lambda _: None, torch.device("cpu"),
                    lambda steps=steps, stop=stop: next(steps) == stop, shards,
                )  # fmt: skip
                assert stop is None
            except Paused:
                if rank == 0:
                    shutil.copytree(folder / LATEST, out / f"{way}-stopped")
            dist.barrier()
            if shards is not None:
                shards.close()
                write_json(out / f"{way}-{rank}.json", _seen)
    dist.destroy_process_group()


_seen: dict[str, int] = {"fetched": 0, "most": 0}


def _watch(shards: FetchedShards) -> None:
    """Count what this process fetches, and note the bytes of all shards on the node while it reads some."""
    cache = shards._cache
    hold, fetch = cache.hold, cache._fetch

    def watched_hold(stack: Any, names: Sequence[str]) -> None:
        hold(stack, names)
        sizes: dict[int, int] = {}
        for path in cache.folder.iterdir():
            try:
                sizes[path.stat().st_ino] = path.stat().st_size
            except FileNotFoundError:
                continue
        _seen["most"] = max(_seen["most"], sum(sizes.values()))

    def watched_fetch(name: str, to: Path) -> None:
        _seen["fetched"] += 1
        fetch(name, to)

    cache.hold, cache._fetch = watched_hold, watched_fetch  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("changes", "share"),
    [({"block_rows": 2}, 0.6), ({"block_rows": 2, "micro_batch": 5}, None), ({}, 0.9)],
    ids=["blocks, a fraction of the shards", "blocks, all of them", "random order, most of them"],
)
def test_two_workers_train_the_same_bits_as_with_the_whole_store(
    s3: str, tiny_backbone: Path, tmp_path: Path, changes: dict[str, object], share: float | None
) -> None:
    stores = stores_in(tmp_path / "stores")
    shared = sent(s3.replace("/gausscse?", f"/{tmp_path.name}?"), stores[0])
    trial = trial_in(tiny_backbone, stores, **changes)
    (tmp_path / "node").mkdir()
    limit = None if share is None else part_of(stores[0], share)
    spawn(as_one_of_two, (trial.model_dump_json(), stores, tmp_path, {"whole": None, "shards": (shared, limit)}), nprocs=2)
    stopped = [tmp_path / f"{way}-stopped" for way in ("whole", "shards")]
    for name in ("model.safetensors", "optimizer.safetensors", "best/model.safetensors"):
        whole, shards = ((folder / name).read_bytes() for folder in stopped)
        assert whole == shards, name
    assert read_json(stopped[0] / "state.json")["step"] == STOP
    assert read_json(stopped[0] / "state.json")["history"] == read_json(stopped[1] / "state.json")["history"]
    outcomes = [read_json(tmp_path / way / OUTCOME)["outcome"] for way in ("whole", "shards")]
    assert outcomes[0] == outcomes[1] and outcomes[0]["total_steps"] == 28
    seen = [read_json(tmp_path / f"shards-{rank}.json") for rank in range(2)]
    count = SENTENCES // OF
    fetched = sum(one["fetched"] for one in seen)
    if limit is None:
        # The two workers of the node share what either of them fetches.
        assert fetched == count
    else:
        assert fetched > count
        assert 0 < max(one["most"] for one in seen) <= limit
    # Nothing else has brought the shards to the node.
    assert not list((tmp_path / "node").glob("*/objects/*")) and not list((tmp_path / "node").rglob("sentences"))


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "node").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "node"))
    return tmp_path / "node"


def by_worker(proxy: FaultyS3, backbone: Path, tmp_path: Path, gb: float | None, **changes: object) -> tuple[Path, Any]:
    """A worker's folder, and what it does with the training store on S3."""
    stores = stores_in(tmp_path / "stores")
    cluster = load_execution(ROOT / "execution.yaml").cluster.model_copy(update={"shard_cache_gb": gb})
    trial = trial_in(backbone, stores, **changes)
    shared = sent(proxy.storage.replace("/gausscse?", f"/{tmp_path.name}?"), stores[0])
    proxy.requests.clear()
    config = worker_config(trial, stores, cluster, train_tokens=shared)
    (tmp_path / "trial").mkdir()
    folder = TrialFolder(trial, Mirror(tmp_path / "trial"))
    return folder.path, lambda: worker._train(config, folder, torch.device("cpu"), first=True)


def notes(folder: Path) -> str:
    return (folder / RECORDS).read_text(encoding="utf-8")


def shard_requests(proxy: FaultyS3) -> list[str]:
    return [name.rpartition("/")[2] for name in proxy.requests if name.startswith("GET") and "/sentences/" in name]


def test_a_worker_fetches_what_its_batches_need_and_says_when_its_order_does_not_fit(
    s3: str, tiny_backbone: Path, tmp_path: Path, node: Path
) -> None:
    with faulty(s3) as proxy:
        folder, run = by_worker(proxy, tiny_backbone, tmp_path, 0.95 * part_of(stores_in(tmp_path / "again")[0], 1) / 1e9)
        run()
        assert len(shard_requests(proxy)) > SENTENCES // OF
        assert "/pairs.arrow" not in " ".join(proxy.requests)
    assert notes(folder).count("cluster.shard_cache_gb (execution.yaml) has no room for all shards") == 1
    assert read_json(folder / OUTCOME)["outcome"]["total_steps"] == 28


def test_shards_that_no_batch_needs_stay_where_they_are(s3: str, tiny_backbone: Path, tmp_path: Path, node: Path) -> None:
    with faulty(s3) as proxy:
        folder, run = by_worker(proxy, tiny_backbone, tmp_path, None, epochs=0)
        run()
        assert shard_requests(proxy) == []
        assert "has no room" not in notes(folder)


def test_a_limit_below_one_batch_is_one_line_at_the_start(s3: str, tiny_backbone: Path, tmp_path: Path, node: Path) -> None:
    with faulty(s3) as proxy:
        folder, run = by_worker(proxy, tiny_backbone, tmp_path, 1e-6)
        with pytest.raises(RunError, match=r"shard_cache_gb: got 1e-06, but the shards that one batch reads have 0\.0\d+ GB"):
            run()
        assert shard_requests(proxy) == []
    # It says nothing of the trial, which goes on with another limit.
    assert not (folder / "failure.json").exists()


def test_a_storage_that_fails_for_a_while_changes_no_bit(
    s3: str, tiny_backbone: Path, tmp_path: Path, node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = stores_in(tmp_path / "whole-stores")
    trial, twin = trial_in(tiny_backbone, stores, block_rows=2), tmp_path / "twin"
    twin.mkdir()
    worker._train(worker_config(trial, stores), TrialFolder(trial, Mirror(twin)), torch.device("cpu"), first=True)
    with faulty(s3) as proxy:
        folder, run = by_worker(proxy, tiny_backbone, tmp_path, part_of(stores[0], 0.6) / 1e9, block_rows=2)
        # Longer than the retries: the attempt ends, and the next one goes on.
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
        proxy.fail("503", 60, "GET .*/sentences/", after=12)
        with pytest.raises(TransientStorageError):
            run()
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "12")
        proxy.fail("reset", 1, "GET .*/sentences/", after=9)
        before = proxy.disturbed
        run()
        assert proxy.disturbed > before
    assert read_json(folder / OUTCOME)["outcome"] == read_json(twin / OUTCOME)["outcome"]


def test_a_shard_that_is_gone_or_damaged_ends_the_run_in_one_line(
    s3: str, tiny_backbone: Path, tmp_path: Path, node: Path
) -> None:
    with faulty(s3) as proxy:
        folder, run = by_worker(proxy, tiny_backbone, tmp_path, None)
        shared = sent(proxy.storage.replace("/gausscse?", f"/{tmp_path.name}?"), tmp_path / "stores/train")
        storage, place, _ = place_of(shared)
        storage.remove(f"{place}sentences/00011.arrow")
        with pytest.raises(StorageError, match=r"sentences/00011\.arrow was removed; run the command again") as raised:
            run()
        assert "\n" not in str(raised.value) and type(raised.value) is object_store.NotAnObject
        storage.write(f"{place}sentences/00011.arrow", "other")
        with pytest.raises(StorageError, match=r"sentences/00011\.arrow differs from what was sent"):
            run()
    assert not (folder / OUTCOME).exists()


def test_a_shard_that_changes_under_a_trial_gives_no_outcome(s3: str, tiny_backbone: Path, tmp_path: Path, node: Path) -> None:
    with faulty(s3) as proxy:
        folder, run = by_worker(proxy, tiny_backbone, tmp_path, None)
        sums = read_manifest(tmp_path / "stores/train")["sha256"]
        run_once = FetchedShards.at

        def changed(self: FetchedShards, step: int) -> Any:
            if step == 20:
                file = node / next(node.iterdir()).name / file_cache.FOLDER / sums["sentences/00003.arrow"]
                with file.open("r+b") as opened:
                    opened.seek(200)
                    opened.write(b"\7\7\7\7")
            return run_once(self, step)

        with pytest.MonkeyPatch.context() as patch, pytest.raises(RunError, match="has changed while it was read, so no result"):
            patch.setattr(FetchedShards, "at", changed)
            run()
    assert not (folder / OUTCOME).exists()
