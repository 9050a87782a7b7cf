"""A folder that several processes have each for themselves, kept alike through an S3 server (moto's)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from test_storage import contents, folder_of, written

from pipeline.errors import UserError
from pipeline.mirror import Mirror
from pipeline.storage import Storage


@pytest.fixture
def two(s3: str, tmp_path: Path) -> tuple[Mirror, Mirror]:
    """The same folder as two processes have it."""
    storage = Storage.open(s3.replace("/gausscse?", f"/{tmp_path.name}?"), tmp_path)
    return tuple(Mirror(folder_of(tmp_path / name), storage, "trials/x") for name in ("one", "two"))  # type: ignore[return-value]


def test_files_and_folders_come_as_they_were_pushed_and_go_when_they_are_gone(two: tuple[Mirror, Mirror]) -> None:
    one, other = two
    for mirror in two:
        mirror.folder.mkdir()
    folder_of(one.folder, note="1", latest__a="x", latest__b="y")
    one.push("note", "latest", "nothing")
    other.pull("note", "latest", "nothing")
    assert contents(other.folder) == contents(one.folder) == {"note": "1", "latest/a": "x", "latest/b": "y"}
    assert one.has("best", "latest") and not one.has("best")
    (one.folder / "note").unlink()
    folder_of(one.folder, latest__a="z")
    one.push("note", "latest")
    folder_of(other.folder, unknown="stays")
    other.pull("note", "latest")
    assert contents(other.folder) == {"latest/a": "z", "latest/b": "y", "unknown": "stays"}


def test_a_checkpoint_that_was_replaced_is_removed_and_the_one_before_it_kept(two: tuple[Mirror, Mirror]) -> None:
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


def test_a_pointer_to_what_is_damaged_is_refused(two: tuple[Mirror, Mirror]) -> None:
    one, other = two
    folder_of(one.folder, latest__a="x")
    one.push("latest")
    assert one.storage is not None
    digest = one.storage.read("trials/x/latest.ref")
    one.storage.write(f"objects/{digest}/files/a", "tampered")
    with pytest.raises(UserError, match=r"files/a is not what it was sent as"):
        other.pull("latest")
    assert not (other.folder / "latest").exists()


def test_looking_for_one_thing_at_times_does_not_put_off_another(two: tuple[Mirror, Mirror]) -> None:
    one, other = two
    folder_of(one.folder, stopped="1", pause="1")
    one.push("stopped", "pause")
    other.folder.mkdir()
    other.pull_at_times("pause", seconds=60)
    other.pull_at_times("stopped", seconds=60)
    assert contents(other.folder) == {"stopped": "1", "pause": "1"}
    (one.folder / "pause").unlink()
    one.push("pause")
    other.pull_at_times("pause", seconds=60)
    assert (other.folder / "pause").exists()
    other.pull_at_times("pause", seconds=0)
    assert not (other.folder / "pause").exists()


def test_in_a_folder_that_all_share_nothing_is_done(tmp_path: Path) -> None:
    mirror = Mirror(folder_of(tmp_path / "x", note="1"))
    mirror.push("note", "nothing")
    mirror.pull("note", "other")
    assert contents(tmp_path) == {"x/note": "1"}
    assert mirror.has("note") and not mirror.has("nothing")
