"""Folders that are written whole, even if others write them at the same time, and the sums of their files."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from pipeline.data.table_io import all_or_nothing
from pipeline.models.model_dir import content_digest
from pipeline.utils.atomic_io import check_sums, write_directory, write_sums
from pipeline.utils.errors import UserError


def fill(folder: Path, name: str) -> None:
    (folder / name).write_text(name, encoding="utf-8")
    write_sums(folder)


def test_two_writers_with_one_process_number_do_not_mix(tmp_path: Path) -> None:
    # As two containers have it, each with a process 7.
    out = tmp_path / "scores"
    with write_directory(out) as first:
        fill(first, "a")
        with write_directory(out) as second:
            assert list(second.iterdir()) == []
            fill(second, "b")
        assert (out / "b").is_file()
        check_sums(first)
    check_sums(out)
    assert sorted(path.name for path in out.iterdir()) == ["SHA256SUMS", "a"]
    assert list(tmp_path.iterdir()) == [out]


def test_a_second_run_into_the_same_data_folder_is_refused(tmp_path: Path) -> None:
    with all_or_nothing(tmp_path, ["rows"]) as first:
        (first / "rows").write_text("first", encoding="utf-8")
        with (
            pytest.raises(UserError, match="another run is writing there; wait until it has ended, and run again"),
            all_or_nothing(tmp_path, ["rows"]),
        ):
            raise AssertionError
    assert (tmp_path / "rows").read_text(encoding="utf-8") == "first"
    with all_or_nothing(tmp_path, ["rows"]) as again:
        (again / "rows").write_text("again", encoding="utf-8")
    assert (tmp_path / "rows").read_text(encoding="utf-8") == "again"
    assert list(tmp_path.iterdir()) == [tmp_path / "rows"]


def linked(folder: Path, cache: Path) -> None:
    """As `dvc checkout --relink` leaves a folder after `dvc config cache.type symlink`; the cache is read-only."""
    for file in [path for path in folder.rglob("*") if path.is_file()]:
        digest = hashlib.md5(file.read_bytes(), usedforsecurity=False).hexdigest()
        kept = cache / "files/md5" / digest[:2] / digest[2:]
        kept.parent.mkdir(parents=True, exist_ok=True)
        file.replace(kept)
        kept.chmod(0o444)
        file.symlink_to(kept)


def test_links_of_dvc_are_read_and_other_links_out_refused(tmp_path: Path) -> None:
    folder, cache = tmp_path / "project/models/seed-1", tmp_path / "cache"
    (folder / "backbone").mkdir(parents=True)
    (folder / "backbone/config.json").write_text("{}", encoding="utf-8")
    fill(folder, "model.safetensors")
    before = content_digest(folder)
    linked(folder, cache)
    assert content_digest(folder) == before
    # Another file elsewhere, and one that only has such a name.
    for target in (tmp_path / "secret", cache / "files/md5/ab" / ("0" * 30)):
        target.parent.mkdir(exist_ok=True)
        target.write_text("model.safetensors", encoding="utf-8")
        (folder / "model.safetensors").unlink()
        (folder / "model.safetensors").symlink_to(target)
        with pytest.raises(UserError, match=r"model\.safetensors: listed in SHA256SUMS but missing, or a link that leaves"):
            check_sums(folder)


def test_a_name_that_leaves_the_folder_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    fill(folder, "a")
    linked(folder, tmp_path / "cache")
    kept = (folder / "a").resolve()
    (folder / "SHA256SUMS").unlink()
    listed = f"{hashlib.sha256(kept.read_bytes()).hexdigest()}  {os.path.relpath(kept, folder)}\n"
    (folder / "SHA256SUMS").write_text(listed, encoding="utf-8")
    with pytest.raises(UserError, match="a link that leaves the folder"):
        check_sums(folder)
