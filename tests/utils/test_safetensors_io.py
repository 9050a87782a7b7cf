from __future__ import annotations

import errno
import resource
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from pipeline.models.model_dir import weights_digest
from pipeline.utils.atomic_io import write_directory, write_json
from pipeline.utils.errors import UserError
from pipeline.utils.safetensors_io import write_tensors


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
        said = r"model: cannot be written \(File too large\)"
        with pytest.raises(UserError, match=said), write_directory(tmp_path / "model") as new:
            write_tensors(big, new / "w.safetensors")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (caught.value.errno, caught.value.filename) == (errno.EFBIG, str(tmp_path / "w.safetensors"))
    assert not (tmp_path / "model").exists()


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
        config = {"model": {"pooling": "mean", "backbone": name}, "similarity": "kl", "trial": name}
        write_json(tmp_path / name / "config.json", config)
        for file, tensors in files.items():
            save_file(tensors, tmp_path / name / f"{file}.safetensors", metadata={"written by": name})
        return tmp_path / name

    a, b = torch.arange(6.0).reshape(2, 3), torch.zeros(4, dtype=torch.bfloat16)
    whole = folder("whole", model={"a": a, "b": b})
    digest = weights_digest(whole)
    # In other files and another order, with other notes and a card.
    parts = folder("parts", heads={"b": b}, backbone={"a": a.clone()})
    (parts / "README.md").write_text("a card", encoding="utf-8")
    assert weights_digest(parts) == digest
    changed = a.clone()
    changed[1, 2] += 1e-6
    others = [{"a": changed, "b": b}, {"a": a.reshape(3, 2), "b": b}, {"a": a, "c": b}, {"a": a, "b": b.half()}, {"a": a}]
    digests = {weights_digest(folder(f"other-{k}", model=tensors)) for k, tensors in enumerate(others)}
    assert len(digests | {digest}) == len(others) + 1
    # The same tensors give other vectors with another pooling, and other answers with another similarity.
    for pooling, similarity in (("first", "kl"), ("mean", "cosine")):
        write_json(parts / "config.json", {"model": {"pooling": pooling}, "similarity": similarity})
        digests.add(weights_digest(parts))
    assert len(digests | {digest}) == len(others) + 3
    content = (whole / "model.safetensors").read_bytes()
    for damaged in (content[:-3], content[:20], b"", b"\0" * 40):
        (whole / "model.safetensors").write_bytes(damaged)
        with pytest.raises(UserError, match=r"model\.safetensors: cannot be read as safetensors \("):
            weights_digest(whole)
    (whole / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"has no \*\.safetensors file"):
        weights_digest(whole)
