"""Two hosts train from a storage on S3, each with room for a part of the token shards."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from pipeline.config.load import load_params
from pipeline.data.sentence_tokenizer import Encoder
from pipeline.data.tokenizing import tokenize
from pipeline.models.backbone import load_tokenizer, resolve
from pipeline.storage.file_cache import FOLDER
from pipeline.storage.object_store import private_folder
from tests.cluster.faults import Driver, nothing
from tests.cluster.hosts import Host
from tests.cluster.lab import Project

pytestmark = pytest.mark.cluster

TRAIN = {"epochs": 2, "block_rows": 4, "eval_every": 20}


@pytest.fixture(scope="module")
def base(project: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The project with shards of 32 sentences."""
    made = project.elsewhere(tmp_path_factory.mktemp("shards"))
    model = load_params(made.root / "params.yaml").model
    tokenizer = load_tokenizer(resolve(model.backbone, model.revision))
    encoder = Encoder(name=model.backbone, revision=model.revision, tokenizer=tokenizer, max_length=model.max_length)
    tokenize(made.root / "data/prepared", made.root / "data/tokens", encoder, shard_sentences=32)
    return made


def test_two_hosts_with_room_for_half_of_the_shards_train_the_same_model(
    base: Project, driver: Driver, hosts: Mapping[str, Host], s3_on_laptop: str
) -> None:
    sizes = [path.stat().st_size for path in (base.root / "data/tokens/train/sentences").iterdir()]
    limit = sum(sizes) // 2
    whole, _ = driver.train(base.storage, nothing, train=TRAIN)
    assert whole["failure"] is None
    with ExitStack() as stack:
        disks: list[Path] = [stack.enter_context(hosts[name].small_disk(private_folder(), "24m")) for name in ("one", "two")]
        cluster = {"storage": s3_on_laptop, "shard_cache_gb": limit / 1e9}
        found, said = driver.train(s3_on_laptop, nothing, cluster=cluster, train=TRAIN)
        assert "Traceback" not in said, said
        assert (found["table"], found["outcomes"]) == (whole["table"], whole["outcomes"])
        for disk in disks:
            shards = [path.stat().st_size for path in (disk / FOLDER).glob("[!.]*")]
            # Some made room for others.
            assert 0 < sum(shards) <= limit and len(shards) < len(sizes)
            # The development store is there as a whole; of the training store, its tables.
            assert [len(list(folder.iterdir())) < len(sizes) for folder in disk.glob("objects/*/sentences")] == [True]
            assert len(list(disk.glob("parts/*/triplets.arrow"))) == 1 and not list(disk.glob("parts/*/sentences"))
