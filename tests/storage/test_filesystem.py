"""An S3 server that fails for a while or for good, as the one module that opens file systems sees it."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipeline.cluster.training_run import storage_errors, storage_of_trial
from pipeline.data.token_store import MANIFEST, read_manifest
from pipeline.storage import filesystem
from pipeline.storage.filesystem import parquet_files
from pipeline.storage.object_store import Storage
from pipeline.utils.atomic_io import read_json
from pipeline.utils.errors import RunError, StorageError, TransientStorageError, UserError
from tests.faulty_s3 import FaultyS3, faulty
from tests.folders import contents, folder_of


@pytest.fixture(scope="module")
def proxy(s3: str) -> Iterator[FaultyS3]:
    with faulty(s3) as server:
        yield server


@pytest.fixture
def storage(proxy: FaultyS3, tmp_path: Path) -> Storage:
    proxy.heal()
    return Storage.open(proxy.storage.replace("/gausscse?", f"/{tmp_path.name}?"), tmp_path)


@pytest.mark.parametrize("kind", ["503", "reset"])
def test_a_request_is_repeated_after_a_temporary_error(storage: Storage, proxy: FaultyS3, tmp_path: Path, kind: str) -> None:
    sent = folder_of(tmp_path / "sent", a=kind, b__c="two")
    before = proxy.disturbed
    # pyarrow by itself sends a request three times.
    proxy.fail(kind, 60, most=4)
    digest = storage.put(sent)
    assert proxy.disturbed == before + 4
    storage.get(digest, tmp_path / "there")
    assert contents(tmp_path / "there") == contents(sent)


@pytest.mark.parametrize(("kind", "attempts"), [("503", 3), ("hang", 1)])
def test_a_lasting_error_is_one_line_after_the_last_attempt(
    proxy: FaultyS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, attempts: int
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", str(attempts))
    monkeypatch.setattr(filesystem, "_SILENT_S", 1.0)
    storage = Storage.open(proxy.storage, tmp_path)
    before = len(proxy.requests)
    proxy.fail(kind, 60)
    with pytest.raises(TransientStorageError, match=r"^s3://team/gausscse.*: notes/x: .*; see cluster\.storage") as caught:
        storage.read("notes/x")
    assert "\n" not in str(caught.value)
    assert len(proxy.requests) - before == attempts


def test_a_permanent_error_is_not_repeated(storage: Storage, proxy: FaultyS3, tmp_path: Path) -> None:
    before = len(proxy.requests)
    proxy.fail("403", 60)
    for refused in (lambda: storage.write("notes/x", "1"), lambda: storage.read("notes/x"), lambda: parquet_files(proxy.storage)):
        with pytest.raises(StorageError, match="ACCESS_DENIED") as caught:
            refused()
        assert not isinstance(caught.value, TransientStorageError)
    assert len(proxy.requests) - before == 3
    proxy.heal()
    nobodys = Storage.open(proxy.storage.replace("//team/", "//nobodys/"), tmp_path)
    with pytest.raises(StorageError, match="NO_SUCH_BUCKET") as caught:
        nobodys.write("notes/x", "1")
    assert not isinstance(caught.value, TransientStorageError)


def test_a_file_server_that_is_away_passes_and_a_full_disk_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Storage.open("kept", tmp_path)
    for number, kind in ((116, TransientStorageError), (5, TransientStorageError), (13, StorageError), (28, StorageError)):

        def fails(*_: object, number: int = number) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr("pipeline.storage.filesystem.shutil.copyfileobj", fails)
        with pytest.raises(StorageError, match=os.strerror(number)) as caught:
            storage.send(folder_of(tmp_path, a="1") / "a", "notes/x")
        assert type(caught.value) is kind


@pytest.mark.parametrize("read", [read_json, lambda path: read_manifest(path.parent)])
def test_a_file_server_that_is_away_is_not_taken_for_a_damaged_file(
    read: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / MANIFEST
    path.write_text("no JSON", encoding="utf-8")
    with storage_errors("the storage"), pytest.raises(UserError) as damaged:
        read(path)
    assert not isinstance(damaged.value, StorageError)

    def away(*_: object, **__: object) -> str:
        raise OSError(116, os.strerror(116), str(path))

    monkeypatch.setattr(Path, "read_text", away)
    with pytest.raises(TransientStorageError, match=rf"^{path}: .*{os.strerror(116)}"), storage_errors("the storage"):
        read(path)


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.ENOSPC, RunError), (errno.EROFS, RunError), (errno.ESTALE, TransientStorageError)]
)
def test_on_a_cluster_the_line_names_the_node(number: int, kind: type[RunError], tmp_path: Path) -> None:
    for standing, node in ((True, r"node [\d.]+: "), (False, "")):
        with (
            pytest.raises(kind, match=rf"^{node}{re.escape(str(tmp_path))}: .*{os.strerror(number)}"),
            storage_of_trial({"storage": str(tmp_path), "standing": standing}),
        ):
            # Without a file's name, as some libraries raise it.
            raise OSError(number, os.strerror(number))


def test_links_to_folders_are_entered_once(tmp_path: Path) -> None:
    for name in ("corpus/sub/a.parquet", "elsewhere/b.parquet"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    for link, target in {"self": ".", "again": "sub", "sub/loop": "..", "other": "../elsewhere"}.items():
        (tmp_path / "corpus" / link).symlink_to(target)
    assert list(filesystem.parquet_files(str(tmp_path / "corpus"))[1]) == ["other/b.parquet", "sub/a.parquet"]
