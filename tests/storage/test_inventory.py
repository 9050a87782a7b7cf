"""What a file in a storage belongs to, and in which order items are removed."""

from __future__ import annotations

from pathlib import Path

from pipeline.storage.inventory import KINDS, items_of
from pipeline.storage.object_store import Storage, stamp_of


def test_a_file_belongs_to_a_thing_by_its_place(tmp_path: Path) -> None:
    storage, a, b = Storage.open("kept", tmp_path), "a" * 64, "b" * 64
    items = {
        f"trials/{a}/trial.json": ("trials", f"trials/{a}"),
        f"trials/{a}/best/model.safetensors": ("trials", f"trials/{a}"),
        f"trials/.{a}.0f.gone/trial.json": ("leftovers", f"trials/.{a}.0f.gone"),
        f"scores/{a}/dev.parquet": ("scores", f"scores/{a}"),
        f"scores/{b}.ref": ("scores", f"scores/{b}"),
        f"scores/{a}.ref.old": ("unknown", f"scores/{a}.ref.old"),
        f"scores/.{a}.7.tmp/dev.parquet": ("leftovers", f"scores/.{a}.7.tmp"),
        f"relations/{a}/relation.json": ("relations", f"relations/{a}"),
        f"objects/{a}/files/x": ("objects", f"objects/{a}"),
        f"objects/.{b}.0f.gone/files/x": ("leftovers", f"objects/.{b}.0f.gone"),
        f"work/{a}/outs.json": ("work", f"work/{a}"),
        f"uses/.objects.{a}.{'1' * 32}.tmp": ("leftovers", f"uses/.objects.{a}.{'1' * 32}.tmp"),
        stamp_of(f"trials/{a}"): ("trials", f"trials/{a}"),
        # What a run has looked for and not made.
        stamp_of(f"work/{b}"): ("work", f"work/{b}"),
        "trials/mine/x": ("unknown", "trials/mine"),
        f"trials/{a[:-1]}/trial.json": ("unknown", f"trials/{a[:-1]}"),
        f"trials/{b}": ("unknown", f"trials/{b}"),
        "objects/readme": ("unknown", "objects/readme"),
        "uses/deep/x": ("unknown", "uses/deep"),
        ".hidden.tmp": ("unknown", ".hidden.tmp"),
        "corpus/part/x": ("unknown", "corpus/part"),
    }
    for file in items:
        storage.write(file, "1234")
    listed = items_of(storage)
    assert {(item.kind, item.name) for item in listed} == set(items.values())
    assert {file: item.name for item in listed for file in item.files} == {file: name for file, (_, name) in items.items()}
    trial = listed[0]
    assert (trial.kind, trial.bytes) == ("trials", 12)
    assert trial.used == storage.entries(stamp_of(trial.name))[stamp_of(trial.name)].time
    assert [item.kind for item in listed] == sorted((item.kind for item in listed), key=KINDS.index)
