"""Stamps, heartbeats and the list of a removal: whichever comes first, a run and `gausscse gc` do not get in each other's way."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from folders import folder_of
from gates import wait_for

from pipeline.storage import uses
from pipeline.storage.inventory import Inventory
from pipeline.storage.object_store import Storage
from pipeline.storage.uses import OVER_AFTER, Removal, going_on, in_use, over, stamp_of, use
from pipeline.utils.errors import TransientStorageError

HOUR = int(OVER_AFTER * 1e9)


@pytest.fixture(params=["folder", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path, s3: str) -> Storage:
    return Storage.open("kept" if request.param == "folder" else s3.replace("/gausscse?", f"/{tmp_path.name}?"), tmp_path)


def test_whoever_uses_what_is_being_removed_waits_and_finds_it_gone(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uses, "_POLL", 0.05)
    sent = folder_of(tmp_path / "sent", a="one")
    digest, other = storage.put(sent), storage.put(folder_of(tmp_path / "other", a="two"))
    done: list[str] = []
    thread = threading.Thread(target=lambda: done.append(storage.put(sent)))
    with Removal(storage).of([f"objects/{digest}"]):
        before = storage.entries("uses")
        # What is not on the list is used at once.
        assert storage.put(tmp_path / "other") == other
        thread.start()
        wait_for(lambda: storage.entries("uses") != before, 60, "it is stamped")
        assert storage.read(f"objects/{digest}/files/a") == "one"
        storage.forget(digest)
        # Its stamp went with it, perhaps while the other wrote it again to see the storage's time.
        assert not done
    thread.join(60)
    # It was sent again, not taken for what is there.
    assert done == [digest]
    storage.verify(digest)


def test_a_stamp_is_seen_by_a_removal_that_begins_later(storage: Storage) -> None:
    use(storage, ["trials/x"], note="of y")
    with Removal(storage).of(["trials/x"]):
        assert storage.read(stamp_of("trials/x")) == "of y"


def test_the_list_of_a_killed_removal_holds_nobody_for_good(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uses, "_POLL", 0.05)
    storage.write(f"{uses.REMOVALS}/{'a' * 32}", '["trials/x"]')
    monkeypatch.setattr(uses, "_REMOVAL_OVER_AFTER", 3.0)
    began = time.monotonic()
    use(storage, ["trials/x"])
    assert time.monotonic() - began >= 1.0
    use(storage, ["trials/x"])


def test_a_removal_that_could_not_renew_its_list_ends(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    removal = Removal(storage)
    monkeypatch.setattr(uses, "_REMOVAL_BEAT", 0.05)
    with removal.of(["trials/x"]):
        began = removal.began
        wait_for(lambda: removal.began > began, 60, "the list is renewed")
        removal.check()
        monkeypatch.setattr(uses, "_REMOVAL_OVER_AFTER", 0.0)
        with pytest.raises(TransientStorageError, match="did not answer for minutes; run the command again"):
            removal.check()
    assert storage.entries(uses.REMOVALS) == {}


def test_a_run_goes_on_until_an_hour_after_its_last_heartbeat(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uses, "_BEAT", 0.05)
    with in_use(storage):
        entries = Inventory.of(storage).runs
        (began,) = (name for name in entries if not name.endswith(".alive"))
        (alive,) = (name for name in entries if name.endswith(".alive"))
        wait_for(lambda: storage.entries("runs")[alive].time > entries[alive].time, 60, "a heartbeat")
    entries = Inventory.of(storage).runs
    last = entries[alive].time
    (run,) = going_on(storage, entries, last + HOUR - 1)
    assert run.began == entries[began].time < last
    assert over(entries, last + HOUR - 1) == []
    assert going_on(storage, entries, last + HOUR) == []
    assert over(entries, last + HOUR) == [began, alive]
    # A run that was killed before its first heartbeat.
    assert len(going_on(storage, {began: entries[began]}, entries[began].time + HOUR - 1)) == 1


def test_an_inventory_knows_what_it_is_by_its_place(tmp_path: Path) -> None:
    storage, a = Storage.open("kept", tmp_path), "a" * 64
    kinds = {
        f"trials/{a}/trial.json": ("trials", f"trials/{a}"),
        f"trials/{a}/best/model.safetensors": ("trials", f"trials/{a}"),
        f"trials/.{a}.0f.gone/trial.json": ("leftovers", f"trials/.{a}.0f.gone"),
        f"scores/{a}/dev.parquet": ("scores", f"scores/{a}"),
        f"scores/{'b' * 64}.ref": ("scores", f"scores/{'b' * 64}"),
        f"scores/{a}.ref.old": ("unknown", f"scores/{a}.ref.old"),
        f"scores/.{a}.7.tmp/dev.parquet": ("leftovers", f"scores/.{a}.7.tmp"),
        f"relations/{a}/relation.json": ("relations", f"relations/{a}"),
        f"objects/{a}/files/x": ("objects", f"objects/{a}"),
        f"work/{a}/outs.json": ("work", f"work/{a}"),
        f"uses/.objects.{a}.{'1' * 32}.tmp": ("leftovers", f"uses/.objects.{a}.{'1' * 32}.tmp"),
        "trials/mine/x": ("unknown", "trials/mine"),
        f"trials/{a[:-1]}/trial.json": ("unknown", f"trials/{a[:-1]}"),
        "objects/readme": ("unknown", "objects/readme"),
        "uses/deep/x": ("unknown", "uses/deep"),
        ".hidden.tmp": ("unknown", ".hidden.tmp"),
        "corpus/part/x": ("unknown", "corpus/part"),
    }
    for file in kinds:
        storage.write(file, "1234")
    use(storage, [f"trials/{a}"])
    inventory = Inventory.of(storage)
    assert {name: thing.kind for name, thing in inventory.things.items()} == {name: kind for kind, name in kinds.values()}
    assert [*inventory.stamps] == [f"uses/trials.{a}"]
    assert inventory.things[f"trials/{a}"].bytes == 8
    assert inventory.used(inventory.things[f"trials/{a}"]) == inventory.stamps[f"uses/trials.{a}"].time
    order = list(dict.fromkeys(thing.kind for thing in inventory.things.values()))
    assert order.index("trials") < order.index("relations") < order.index("work") < order.index("objects")
