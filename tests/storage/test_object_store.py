"""Objects by content, on a folder and on an S3 server (moto's, over HTTP)."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pipeline.storage.object_store import Storage, found, private_folder, share
from pipeline.utils.atomic_io import write_sums
from pipeline.utils.errors import UserError
from tests.folders import contents, folder_of, written


@pytest.fixture(params=["folder", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path, s3: str) -> Storage:
    return Storage.open("kept" if request.param == "folder" else f"{s3}", tmp_path)


def test_a_folder_comes_back_as_it_was_sent_and_is_sent_once(storage: Storage, tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    nothing = storage.put(tmp_path / "nothing")
    storage.get(nothing, folder_of(tmp_path / "empty", old="gone"))
    assert contents(tmp_path / "empty") == contents(storage.local(nothing)) == {}
    sent = folder_of(tmp_path / "sent", a="one", b__c="two", empty="")
    # Sums of its own are files like others: a model folder has them.
    write_sums(sent)
    digest = storage.put(sent)
    before = written(storage)
    assert storage.put(folder_of(tmp_path / "equal", **{k.replace("/", "__"): v for k, v in contents(sent).items()})) == digest
    assert written(storage) == before
    there = folder_of(tmp_path / "there", old="gone")
    storage.get(digest, there)
    assert contents(there) == contents(sent)
    (sent / "a").write_text("other", encoding="utf-8")
    assert storage.put(sent) != digest


def test_processes_of_a_machine_share_one_copy(storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "machine"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    (tmp_path / "machine").mkdir()
    sent = folder_of(tmp_path / "sent", **{f"file{number}": str(number) for number in range(20)})
    digest = storage.put(sent)
    with ThreadPoolExecutor(8) as pool:
        places = set(pool.map(lambda _: storage.local(digest), range(8)))
    assert len(places) == 1
    assert contents(places.pop()) == contents(sent)
    if storage.folder is None:
        assert [place.name for place in (private_folder() / "objects").iterdir()] == [digest]


def test_a_local_copy_is_verified(storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder, file = folder_of(tmp_path / "sent", a="one", b__c="two"), folder_of(tmp_path, single="x: 1\n") / "single"
    digests = storage.put(folder), storage.put(file)
    assert contents(storage.local(digests[0])) == contents(folder)
    assert storage.local(digests[1]).read_text() == "x: 1\n"
    for digest in digests:
        storage.verify(digest)
    (storage.local(digests[0]) / "b/c").write_text("tampered", encoding="utf-8")
    with pytest.raises(UserError, match=r"b/c differs from what was sent"):
        storage.verify(digests[0])


def test_a_download_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = private_folder()
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o777)
    with pytest.raises(UserError, match="is not a folder that only you can use"):
        private_folder()
    folder.rmdir()
    folder.symlink_to(tmp_path)
    with pytest.raises(UserError, match="is not a folder that only you can use"):
        private_folder()


def test_a_shared_file_is_found_by_its_name(s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    sent = folder_of(tmp_path / "sent", a="one")
    # All see the files of the project, but no others.
    project = tmp_path / "project"
    inside = folder_of(project / "data", a="two")
    monkeypatch.chdir(project)
    assert found(share(inside, ".gausscse")) == inside
    assert found(share(sent, ".gausscse")).is_relative_to(project / ".gausscse")
    assert contents(found(share(sent, ".gausscse"))) == contents(sent)
    kept = tmp_path / "kept"
    assert found(share(sent, str(kept))).is_relative_to(kept)
    assert found(share(folder_of(kept / "trials/x", a="1"), str(kept))) == kept / "trials/x"
    for storage in (str(kept), s3):
        assert contents(found(share(sent, storage))) == contents(sent)


def test_the_digest_of_a_file_does_not_depend_on_its_name(storage: Storage, tmp_path: Path) -> None:
    folder_of(tmp_path, best="x: 1\n", same="x: 1\n", there="old")
    digest = storage.put(tmp_path / "best")
    assert storage.put(tmp_path / "same") == digest
    storage.get(digest, tmp_path / "there")
    storage.get(digest, tmp_path / "new/best.yaml")
    assert (tmp_path / "there").read_text() == (tmp_path / "new/best.yaml").read_text() == "x: 1\n"
    assert not list(tmp_path.rglob(".*"))


def test_a_damaged_or_incomplete_object_is_refused(storage: Storage, tmp_path: Path) -> None:
    there = folder_of(tmp_path / "there", old="kept")
    with pytest.raises(UserError, match="has no object 00; it was removed, or never sent completely"):
        storage.get("00", there)
    digest = storage.put(folder_of(tmp_path / "sent", a="damaged one", b="damaged two"))
    manifest = storage.read(f"objects/{digest}/manifest")
    assert manifest is not None
    storage.write(f"objects/{digest}/files/b", "damaged 2")
    with pytest.raises(UserError, match=rf"objects/{digest}/files/b differs from what was sent"):
        storage.get(digest, there)
    storage.write(f"objects/{digest}/manifest", manifest.replace("  a", "  ../../a"))
    with pytest.raises(UserError, match=rf"objects/{digest}/manifest differs from what was sent"):
        storage.get(digest, there)
    # A manifest is sent last: without it the object is sent again.
    storage.fs.delete_file(f"objects/{digest}/manifest")
    assert storage.put(tmp_path / "sent") == digest
    storage.get(digest, tmp_path / "again")
    assert contents(tmp_path / "again") == contents(tmp_path / "sent")
    assert contents(there) == {"old": "kept"}
    assert not list(tmp_path.rglob(".*"))


def test_a_manifest_with_a_path_outside_the_folder_is_refused(tmp_path: Path) -> None:
    storage = Storage.open("kept", tmp_path)
    text = "attack"
    manifest = f"{hashlib.sha256(text.encode()).hexdigest()}  ../../out\n"
    digest = hashlib.sha256(manifest.encode()).hexdigest()
    storage.write(f"objects/{digest}/out", text)
    storage.write(f"objects/{digest}/manifest", manifest)
    with pytest.raises(UserError, match="manifest differs from what was sent"):
        storage.get(digest, tmp_path / "a/b/there")
    assert not (tmp_path / "a/out").exists()


def test_a_failed_upload_is_one_line(s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = Storage.open("kept", tmp_path)
    with pytest.raises(UserError, match="missing: there is nothing to send"):
        here.put(tmp_path / "missing")
    with pytest.raises(UserError, match=r"execution\.yaml: cluster\.storage: got 'gopher://host/x': "):
        Storage.open("gopher://host/x", tmp_path)
    assert "secret" not in Storage.open("s3://id:secret@team/x?region=us-east-1", tmp_path).name
    file = folder_of(tmp_path / "f", a="1")
    bucket = Storage.open(s3.replace("//team/", "//nobodys/"), tmp_path)
    with pytest.raises(UserError, match=r"^s3://nobodys/gausscse.*: uses/objects.*; see cluster\.storage"):
        bucket.put(file)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    away = Storage.open(re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:9", s3), tmp_path)
    with pytest.raises(UserError, match=r"; see cluster\.storage"):
        away.put(file)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("pipeline.storage.object_store.shutil.copyfileobj", full)
    with pytest.raises(UserError, match="No space left on device"):
        here.put(file)
    assert written(here) == {}
