"""A folder that several processes have each for themselves, kept alike through an S3 server (moto's)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pipeline.storage.object_store import Storage
from pipeline.storage.sync import Mirror
from tests.folders import contents, folder_of, written


@pytest.fixture
def two(s3: str, tmp_path: Path) -> tuple[Mirror, Mirror]:
    """The same folder as two processes have it."""
    storage = Storage.open(s3.replace("/gausscse?", f"/{tmp_path.name}?"), tmp_path)
    return tuple(Mirror(folder_of(tmp_path / name), storage, "trials/x") for name in ("one", "two"))  # type: ignore[return-value]


def test_files_and_folders_are_mirrored_and_removed(two: tuple[Mirror, Mirror]) -> None:
    one, other = two
    for mirror in two:
        mirror.folder.mkdir()
    folder_of(one.folder, note="1", latest__a="x", latest__b="y")
    one.push("note", "latest", "nothing")
    other.pull_files("note", "nothing")
    other.pull("latest", "nothing")
    assert contents(other.folder) == contents(one.folder) == {"note": "1", "latest/a": "x", "latest/b": "y"}
    assert one.has("best", "latest") and not one.has("best")
    (one.folder / "note").unlink()
    folder_of(one.folder, latest__a="z")
    one.push("note", "latest")
    folder_of(other.folder, unknown="stays")
    other.pull_files("note")
    other.pull("latest")
    assert contents(other.folder) == {"latest/a": "z", "latest/b": "y", "unknown": "stays"}


def test_a_pull_in_another_thread_keeps_a_note_being_written(two: tuple[Mirror, Mirror], monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = two
    one.folder.mkdir()
    watcher = one.for_another_thread()
    send = Storage.write

    def send_between_two_looks(storage: Storage, name: str, text: str) -> None:
        watcher.pull_files("note")
        send(storage, name, text)
        watcher.pull_files("note")

    monkeypatch.setattr(Storage, "write", send_between_two_looks)
    one.write("note", "it broke")
    assert contents(one.folder) == {"note": "it broke"}
    other.folder.mkdir()
    other.pull_files("note")
    assert contents(other.folder) == {"note": "it broke"}


def test_only_the_last_two_checkpoints_stay(two: tuple[Mirror, Mirror]) -> None:
    one, _ = two
    assert one.storage is not None
    for number in range(4):
        shutil.rmtree(one.folder / "previous", ignore_errors=True)
        if number:
            (one.folder / "latest").rename(one.folder / "previous")
        folder_of(one.folder, latest__step=str(number))
        # The one that stays first: what was the latest must not look as if nobody named it.
        one.push("previous", "latest")
    objects = {name.split("/")[1] for name in written(one.storage) if name.startswith("objects/")}
    assert len(objects) == 2


def test_a_damaged_or_missing_object_is_sent_again(two: tuple[Mirror, Mirror]) -> None:
    one, other = two
    folder_of(one.folder, latest__a="x", latest__b="y")
    one.push("latest")
    assert one.storage is not None
    digest = one.storage.read("trials/x/latest.ref")

    storage, place = one.storage, f"objects/{digest}/files"
    for spoil, said in (
        (lambda: storage.write(f"{place}/a", "tampered"), "files/a differs from what was sent"),
        (lambda: storage.remove(f"{place}/b"), "files/b was removed"),
        (lambda: storage.forget(str(digest)), f"has no object {digest}"),
    ):
        # A process that has just started.
        other = Mirror(folder_of(other.folder, latest__a="older"), other.storage, other.name)
        spoil()
        (fault,) = other.pull("latest")
        assert fault.startswith("latest: s3://")
        assert fault.endswith(said)
        assert not (other.folder / "latest").exists()
        one.push("latest")
        assert other.pull("latest") == []
        assert contents(other.folder) == contents(one.folder)


def test_versions_of_a_folder_do_not_replace_each_other(two: tuple[Mirror, Mirror]) -> None:
    one, other = two
    folder_of(one.folder, best__a="x")
    folder_of(other.folder, best__a="y")
    one.push("best", version="1")
    other.push("best", version="2")
    for version, text in (("1", "x"), ("2", "y"), ("1", "x")):
        assert one.pull("best", version=version) == []
        assert contents(one.folder) == {"best/a": text}
    # A push of another version removes none.
    folder_of(one.folder, best__a="z")
    one.push("best", version="3")
    assert other.pull("best", version="1") == []
    assert other.pull("best", version="4") == []
    assert not (other.folder / "best").exists()


def test_a_checkpoint_is_handed_on_by_its_digest(two: tuple[Mirror, Mirror], tmp_path: Path) -> None:
    one, other = two
    folder_of(one.folder, latest__a="x")
    digest = one.hand_on("latest")
    assert one.storage is not None
    one.storage.write("trials/x/latest.ref", "the other driver's")
    other.folder.mkdir()
    other.take("latest", digest)
    other.take("previous", other.hand_on("previous"))
    assert contents(other.folder) == {"latest/a": "x"}
    shared = Mirror(folder_of(tmp_path / "shared", latest__a="x"))
    shared.take("latest", shared.hand_on("latest"))
    assert contents(shared.folder) == {"latest/a": "x"}
