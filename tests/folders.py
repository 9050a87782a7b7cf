"""Folders of small text files, made and read, and what a storage holds."""

from __future__ import annotations

from pathlib import Path

from pipeline.storage.object_store import USES, Storage


def folder_of(where: Path, **files: str) -> Path:
    for name, text in files.items():
        file = where / name.replace("__", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return where


def contents(folder: Path) -> dict[str, str]:
    return {p.relative_to(folder).as_posix(): p.read_text(encoding="utf-8") for p in sorted(folder.rglob("*")) if p.is_file()}


def written(storage: Storage) -> dict[str, int]:
    """When each file of the storage was written, in nanoseconds, without the stamps of use."""
    return {name: entry.time for name, entry in storage.entries().items() if not name.startswith(f"{USES}/")}
