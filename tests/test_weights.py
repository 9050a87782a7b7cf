from __future__ import annotations

import errno
import resource
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from pipeline.errors import UserError
from pipeline.files import write_directory
from pipeline.weights import write_tensors


def test_tensors_of_any_layout_come_back(tmp_path: Path) -> None:
    tensors = {"a": torch.arange(6.0).reshape(2, 3).T, "b": torch.ones(2, 2)[:, 0]}
    write_tensors(tensors, tmp_path / "w.safetensors")
    found = load_file(tmp_path / "w.safetensors")
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())


def test_a_file_that_does_not_fit_is_named_and_leaves_the_folder_as_it_was(tmp_path: Path) -> None:
    big = {"a": torch.zeros(100_000)}
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    # As on a full disk, but of one's own making: no file may be larger than this.
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            write_tensors(big, tmp_path / "w.safetensors")
        with pytest.raises(UserError, match=r"model: cannot be written \(File too large\)"):
            save_into(tmp_path / "model", big)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (caught.value.errno, caught.value.filename) == (errno.EFBIG, str(tmp_path / "w.safetensors"))
    assert not (tmp_path / "model").exists()


def save_into(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    with write_directory(folder) as new:
        write_tensors(tensors, new / "w.safetensors")


def test_a_folder_whose_exchange_is_broken_off_is_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "kept"
    with write_directory(folder) as new:
        (new / "a").write_text("old", encoding="utf-8")
    rename = Path.rename

    def broken_off(self: Path, target: Path) -> Path:
        if self.suffix == ".tmp":
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", broken_off)
    with pytest.raises(KeyboardInterrupt), write_directory(folder) as new:
        (new / "a").write_text("new", encoding="utf-8")
    assert (folder / "a").read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [folder]
