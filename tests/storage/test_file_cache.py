"""Files that the processes of a node share within a limit."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import random
import signal
import tempfile
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from pipeline.storage.file_cache import FileCache
from pipeline.utils.atomic_io import read_json, write_json
from pipeline.utils.errors import RunError
from tests.gates import wait_for

BYTES = 1000
CONTENT = {hashlib.sha256(text).hexdigest(): text for text in (bytes([k]) * BYTES for k in range(12))}
NAMES = list(CONTENT)


@pytest.fixture(autouse=True)
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def cache_of(limit: int | None, fetched: list[str] | None = None, seconds: float = 0.0) -> FileCache:
    """Room for `limit` of the twelve files."""

    def fetch(name: str, to: Path) -> None:
        to.write_bytes(CONTENT[name][:10])
        time.sleep(seconds)
        to.write_bytes(CONTENT[name])
        if fetched is not None:
            fetched.append(name)

    return FileCache(fetch, dict.fromkeys(NAMES, BYTES), None if limit is None else limit * BYTES)


def here(cache: FileCache) -> list[int]:
    return sorted(NAMES.index(path.name) for path in cache.folder.glob("[!.]*"))


def use(cache: FileCache, *numbers: int) -> int:
    """Read some files; returns the bytes of all that are there meanwhile."""
    with ExitStack() as stack:
        cache.hold(stack, [NAMES[k] for k in numbers])
        assert all((cache.folder / NAMES[k]).read_bytes() == CONTENT[NAMES[k]] for k in numbers)
        # By inode, since a file may get its name between two looks. None is removed now.
        sizes: dict[int, int] = {}
        for path in cache.folder.iterdir():
            with suppress(FileNotFoundError):
                found = path.stat()
                sizes[found.st_ino] = found.st_size
        return sum(sizes.values())


def test_what_was_unused_longest_makes_room() -> None:
    fetched: list[str] = []
    cache = cache_of(3, fetched)
    for k in (0, 1, 2, 0, 3):
        use(cache, k)
    assert here(cache) == [0, 2, 3] and fetched == [NAMES[k] for k in (0, 1, 2, 3)]
    use(cache, 4, 5)
    assert here(cache) == [3, 4, 5]
    free = cache_of(None)
    use(free, *range(12))
    assert here(free) == list(range(12))


def test_what_is_needed_last_makes_room_and_what_is_needed_sooner_never_does() -> None:
    cache = cache_of(3)
    use(cache, 0, 1, 2)
    use(cache, 0)
    soon = {NAMES[0]: 9, NAMES[1]: 2, NAMES[2]: 1, NAMES[3]: 5, NAMES[4]: 5}
    # File 0 was used last, and is needed last.
    assert cache.bring([NAMES[3]], soon)
    assert here(cache) == [1, 2, 3]
    # All that is here is needed before file 4, or with it.
    assert not cache.bring([NAMES[4]], soon)
    assert here(cache) == [1, 2, 3]


def test_a_file_in_use_stays_until_it_is_released() -> None:
    cache, done = cache_of(2), threading.Event()
    with ExitStack() as stack:
        cache.hold(stack, [NAMES[0], NAMES[1]])
        other = threading.Thread(target=lambda: (use(cache_of(2), 2, 3), done.set()))
        other.start()
        assert not done.wait(0.5)
        assert here(cache) == [0, 1]
    assert done.wait(10)
    other.join()
    assert here(cache) == [2, 3]


def _work(folder: str, seed: int, rounds: int, counted: str) -> None:
    tempfile.tempdir = folder
    fetched: list[str] = []
    cache, drawn, most = cache_of(5, fetched), random.Random(seed), 0
    for _ in range(rounds):
        cache.bring([NAMES[k] for k in drawn.sample(range(12), 2)], dict.fromkeys(NAMES, 1))
        most = max(most, use(cache, *drawn.sample(range(12), 4)))
    write_json(Path(counted), [len(fetched), most])


def test_processes_that_need_different_files_all_go_on_within_the_limit(tmp_path: Path) -> None:
    """Of five places each process needs four at a time, so they take turns."""
    context = multiprocessing.get_context("spawn")
    works = [context.Process(target=_work, args=(str(tmp_path), k, 40, str(tmp_path / f"n{k}"))) for k in range(3)]
    for work in works:
        work.start()
    for work in works:
        work.join(120)
    assert [work.exitcode for work in works] == [0, 0, 0]
    for fetched, most in (read_json(tmp_path / f"n{k}") for k in range(3)):
        assert fetched > 10 and 4 * BYTES <= most <= 5 * BYTES


def _dies(folder: str) -> None:
    tempfile.tempdir = folder
    use(cache_of(1, seconds=60.0), 0)


def test_what_a_killed_process_was_fetching_is_fetched_again(tmp_path: Path) -> None:
    work = multiprocessing.get_context("spawn").Process(target=_dies, args=(str(tmp_path),))
    work.start()
    cache = cache_of(1)
    wait_for(lambda: any(path.stat().st_size for path in cache.folder.glob(".*.tmp")), 60, "the other process fetches")
    assert work.pid is not None
    os.kill(work.pid, signal.SIGKILL)
    work.join()
    use(cache, 0)
    assert sorted(path.name for path in cache.folder.iterdir()) == [".fetching", ".reading", NAMES[0]]


def test_a_file_that_fails_or_has_no_room_leaves_nothing() -> None:
    cache = cache_of(2)

    def fails(name: str, to: Path) -> None:
        to.write_bytes(b"half")
        raise RunError("gone")

    with pytest.raises(RunError, match="gone"):
        use(FileCache(fails, dict.fromkeys(NAMES, BYTES), 2 * BYTES), 0)
    assert [path.name for path in cache.folder.iterdir() if path.stat().st_size] == []
    with pytest.raises(RunError, match=r"cluster\.shard_cache_gb: got 2e-06, but the shards that one batch reads have 0\.001 GB"):
        use(cache, 0, 1, 2)
    # Its locks are free again.
    use(cache, 0, 1)


def test_a_file_that_was_changed_is_found() -> None:
    cache = cache_of(None)
    use(cache, 0, 1)
    cache.check(whole=True)
    file = cache.folder / NAMES[0]
    before = file.stat()
    with file.open("r+b") as opened:
        opened.write(b"x")
    for look in (cache.check, lambda: use(cache, 0)):
        with pytest.raises(RunError, match=f"{NAMES[0]}: has changed while it was read, so no result counts"):
            look()
    # Its time is put back, so only its content shows the change.
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    cache.check()
    with pytest.raises(RunError, match=NAMES[0]):
        cache.check(whole=True)
    with pytest.raises(RunError, match=NAMES[0]):
        use(cache_of(None), 0)
    # One that was removed and fetched again is sound.
    file.unlink()
    use(cache_of(None), 0)
    cache.check(whole=True)
    use(cache, 0)
