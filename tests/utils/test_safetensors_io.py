from __future__ import annotations

import errno
import resource
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from pipeline.models.model_dir import weights_digest
from pipeline.utils.atomic_io import write_directory
from pipeline.utils.errors import StorageError, UserError
from pipeline.utils.safetensors_io import write_tensors


def test_tensors_of_any_layout_come_back(tmp_path: Path) -> None:
    tensors = {"a": torch.arange(6.0).reshape(2, 3).T, "b": torch.ones(2, 2)[:, 0]}
    write_tensors(tensors, tmp_path / "w.safetensors")
    found = load_file(tmp_path / "w.safetensors")
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.int64])
def test_a_file_with_other_bytes_than_were_written_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: torch.dtype
) -> None:
    tensors = {"a": torch.full((3, 4), float("nan")).to(kind), "b": torch.tensor(2, dtype=kind)}
    write_tensors(tensors, tmp_path / "w.safetensors")

    def damaged(given: dict[str, torch.Tensor], path: Path) -> None:
        save_file(given, path)
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))

    monkeypatch.setattr("pipeline.utils.safetensors_io.save_file", damaged)
    with pytest.raises(StorageError, match=r"w\.safetensors: b differs from what was written; the disk or its file server is"):
        write_tensors(tensors, tmp_path / "w.safetensors")


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


def test_the_digest_of_weights_is_that_of_the_tensors_alone(tmp_path: Path) -> None:
    def folder(name: str, **files: dict[str, torch.Tensor]) -> Path:
        (tmp_path / name).mkdir()
        for file, tensors in files.items():
            save_file(tensors, tmp_path / name / f"{file}.safetensors", metadata={"written by": name})
        return tmp_path / name

    a, b = torch.arange(6.0).reshape(2, 3), torch.zeros(4, dtype=torch.bfloat16)
    whole = folder("whole", model={"a": a, "b": b})
    digest = weights_digest(whole)
    # In other files and another order, with a configuration and a card.
    parts = folder("parts", heads={"b": b}, backbone={"a": a.clone()})
    (parts / "config.json").write_text("{}", encoding="utf-8")
    (parts / "README.md").write_text("a card", encoding="utf-8")
    assert weights_digest(parts) == digest
    changed = a.clone()
    changed[1, 2] += 1e-6
    others = [{"a": changed, "b": b}, {"a": a.reshape(3, 2), "b": b}, {"a": a, "c": b}, {"a": a, "b": b.half()}, {"a": a}]
    digests = {weights_digest(folder(f"other-{k}", model=tensors)) for k, tensors in enumerate(others)}
    assert len(digests | {digest}) == len(others) + 1
    content = (whole / "model.safetensors").read_bytes()
    for damaged in (content[:-3], content[:20], b"", b"\0" * 40):
        (whole / "model.safetensors").write_bytes(damaged)
        with pytest.raises(UserError, match=r"model\.safetensors: cannot be read as safetensors \("):
            weights_digest(whole)
    (whole / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"has no \*\.safetensors file"):
        weights_digest(whole)
