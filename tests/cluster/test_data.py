"""Stages prepare and tokenize of a project on a laptop, by jobs on a cluster of two working hosts."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.cluster.spread import _LARGE
from pipeline.data.generated import generate
from pipeline.data.table_io import sha256_tree
from tests.cluster.hosts import Cluster, Host
from tests.cluster.lab import Project
from tests.cluster.test_pipeline import held_until_at_all
from tests.distributed.grids import meanwhile

pytestmark = pytest.mark.cluster

_PAIRS = 150_000


@pytest.fixture(scope="module")
def with_files(project: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project with files of its own that are worth a cluster, prepared and tokenized on the laptop alone."""
    own = project.elsewhere(tmp_path_factory.mktemp("files"))
    raw = own.root / "raw"
    raw.mkdir()
    columns = ("premise", "hypothesis", "label")
    rows = [dict(zip(columns, row, strict=False)) for row in generate("train", _PAIRS, 7)]
    third = len(rows) // 3
    # No compression, so that few rows are many bytes.
    pq.write_table(pa.Table.from_pylist(rows[:third]), raw / "a.parquet", compression="none", use_dictionary=False)
    for name, part in (("b", rows[third : 2 * third]), ("c", rows[2 * third :])):
        (raw / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part), encoding="utf-8")
    for split in ("dev", "test"):
        held_out = [dict(zip(columns, row, strict=False)) for row in generate(split, 400, 7)]
        (raw / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in held_out), encoding="utf-8")
    train = [{"path": path} for path in ("a.parquet", "b.jsonl", "c.jsonl")]
    assert sum((raw / file["path"]).stat().st_size for file in train) > _LARGE
    sets: dict[str, Any] = {"train": train, "dev": {"path": "dev.jsonl"}, "tests": {"other": {"path": "test.jsonl"}}, "sts": {}}
    own.set("params.yaml", {"data.source": "files", "data.root": "raw", "data.files": sets, "data.minimal_pairs": 0})
    own.set("execution.yaml", {"cluster.address": None})
    own.repro("tokenize")
    own.set("execution.yaml", {"cluster.address": own.address})
    return own


def data_of(project: Project) -> dict[str, str]:
    return sha256_tree(project.root / "data/prepared") | sha256_tree(project.root / "data/tokens")


def again(with_files: Project, folder: Path) -> Project:
    """The same project without its data."""
    made = with_files.elsewhere(folder)
    (made.root / "dvc.lock").unlink()
    for name in ("data/prepared", "data/tokens", ".dvc/cache"):
        shutil.rmtree(made.root / name)
    return made


def test_two_hosts_prepare_and_tokenize_what_one_machine_does_whatever_dies(
    with_files: Project, hosts: Mapping[str, Host], ray_cluster: Cluster, tmp_path: Path
) -> None:
    made, draw = again(with_files, tmp_path), random.Random(3)
    killed: list[str] = []

    def disturb() -> bool:
        finished = len([*made.storage.glob("work/*/*-*.json")])
        found = [one for name in ("one", "two") for one in hosts[name].named("ray::Map(")]
        if found and len(killed) < 2 and finished > len(killed):
            one = draw.choice(found)
            with suppress(psutil.NoSuchProcess):
                one.kill()
                killed.append("process")
        elif len(killed) == 2 and finished > 4:
            hosts["two"].kill()
            killed.append("host")
            ray_cluster.start("two", 1)
        return len(killed) == 3

    with held_until_at_all("ray::Map(", [hosts["one"], hosts["two"]]) as met, meanwhile(disturb):
        said = made.repro("tokenize")
    for stage in ("prepare", "tokenize"):
        assert f"{stage}: sent to {ray_cluster.address} as job gausscse-{stage}-" in said
    assert "Traceback" not in said
    assert met
    assert killed == ["process", "process", "host"]
    assert data_of(made) == data_of(with_files)
    # Nothing of what the tasks left for one another stays.
    assert not [*made.storage.glob("work/*/*.arrow")]
