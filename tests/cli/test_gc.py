"""`gausscse gc`: what it keeps and why, and what it removes."""

from __future__ import annotations

import itertools
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.cluster import garbage
from pipeline.cluster.dispatch import leave, left
from pipeline.config.job_inputs import Inputs
from pipeline.storage import inventory
from pipeline.storage.object_store import Storage
from tests.cli.storages import Later, Project, fates
from tests.folders import contents, folder_of

Run = Callable[..., tuple[int, str, str]]


@pytest.mark.faults
def test_what_is_referred_to_is_kept_and_the_rest_goes(project: Project, run: Run, tmp_path: Path, later: Later) -> None:
    storage = project.storage
    own, registered, in_results, orphan = 1, 7, 9, 8
    for seed in (own, registered, in_results, orphan):
        project.train(seed)
    for seed in (registered, orphan):
        project.score(seed)
    project.register(registered)
    folder_of(project.root / "results/tune", **{"trials.csv": f"variant,trial\nmain recipe,{project.trial(in_results).digest}\n"})
    sent, result, lost, half = (storage.put(folder_of(tmp_path / name, a=name)) for name in ("sent", "result", "lost", "half"))
    storage.remove(f"objects/{half}/manifest")
    (project.root / "inputs.json").write_text(
        Inputs(objects={"data/tokens/dev": sent}, commit="c", versions={}).model_dump_json()
    )
    leave(storage, "d" * 64, {"results/tune": result})
    for name in ("notes.txt", "trials/readme"):
        storage.write(name, "mine")

    before = project.files
    # Everything was written just now.
    for delete in ([], ["--delete"]):
        assert {fate for fate, _ in fates(run(project, *delete)[1]).values()} == {"kept"}
    later(30)
    code, said, err = run(project)
    assert (code, err) == (0, "")
    assert project.files == before
    listed = fates(said)
    kept = {name: why for name, (fate, why) in listed.items() if fate == "kept"}
    gone = {name for name, (fate, _) in listed.items() if fate == "would go"}
    scores = {name for name in listed if name.startswith("scores/")}
    (kept_scores,) = scores & kept.keys()
    # A trial's model and scores on S3 are objects, which its pointers name.
    pointed = {name: why for name, why in kept.items() if why in listed and name.startswith("objects/")}
    assert (storage.folder is None) == bool(pointed)
    assert {name: why for name, why in kept.items() if name not in pointed} == {
        project.name(own): "this project",
        project.name(in_results): "this project",
        project.name(registered): "version 1 of gausscse",
        kept_scores: project.name(registered),
        f"objects/{sent}": "this project",
        "notes.txt": "gausscse does not know it",
        "trials/readme": "gausscse does not know it",
    }
    named = {project.name(orphan), *(scores - kept.keys()), f"work/{'d' * 64}", *(f"objects/{o}" for o in (result, lost, half))}
    assert {name for name in gone if not name.startswith("objects/")} | {f"objects/{o}" for o in (result, lost, half)} == named
    assert re.search(r"\d MB kept, [\d.]+ MB would go; `gausscse gc --delete` removes it\n$", said)

    code, said, err = run(project, "--delete")
    assert (code, err) == (0, "")
    # What was listed is what is done.
    assert fates(said) == {name: (fate.replace("would go", "removed"), why) for name, (fate, why) in listed.items()}
    assert {file for file in before if any(f"{file}/".startswith((f"{name}/", f"{name}.ref/")) for name in kept)} == project.files
    # Their stamps went with them.
    assert not [name for name in storage.entries("uses") if any(one.replace("/", ".") in name for one in gone)]
    for seed in (own, registered, in_results):
        assert project.finished(seed) is not None
    assert project.finished(orphan) is None


def test_what_was_used_in_the_last_days_is_kept(project: Project, run: Run, tmp_path: Path, later: Later) -> None:
    """Also if others wrote it long ago, and whatever uses it: a put, a download, a stage that looks for a trial or for work."""
    storage, used_by_stage = project.storage, 8
    project.train(used_by_stage)
    put, local, idle, result = (storage.put(folder_of(tmp_path / name, a=name)) for name in ("put", "local", "idle", "result"))
    leave(storage, "d" * 64, {"results/tune": result})
    # The times of S3 are whole seconds.
    time.sleep(1.1)
    now = time.time_ns()
    used = {f"objects/{put}", f"objects/{local}", project.name(used_by_stage), f"work/{'d' * 64}", f"objects/{result}"}
    assert storage.put(tmp_path / "put") == put
    assert storage.local(local).exists()
    assert project.finished(used_by_stage) is not None
    assert left(storage, "d" * 64) is not None
    later(3, now - 1_000_000_000)
    listed = fates(run(project, "--keep-days", "3", "--delete")[1])
    day = time.strftime("%Y-%m-%d", time.localtime(now / 1e9))
    gone = {name: why for name, (fate, why) in listed.items() if fate == "removed"}
    assert f"objects/{idle}" in gone
    assert set(gone.values()) == {f"nothing refers to it; last used on {day}"}
    assert used <= listed.keys() - gone.keys()
    assert listed[project.name(used_by_stage)] == ("kept", f"used on {day}")
    assert project.finished(used_by_stage) is not None


def test_what_is_used_after_the_list_is_kept(project: Project, run: Run, later: Later, monkeypatch: pytest.MonkeyPatch) -> None:
    used, idle = 8, 9
    for seed in (used, idle):
        project.train(seed)
    later(30)
    real = garbage._verdicts
    # The times of S3 are whole seconds.
    time.sleep(1.1)

    def verdicts(*arguments: Any) -> list[garbage.Verdict]:
        decided = real(*arguments)
        assert project.finished(used) is not None
        return decided

    monkeypatch.setattr(garbage, "_verdicts", verdicts)
    listed = fates(run(project, "--delete")[1])
    assert listed[project.name(used)] == ("kept", "used just now")
    assert listed[project.name(idle)][0] == "removed"


def test_nothing_outside_the_storage_is_removed(on_disk: Project, run: Run, tmp_path: Path, later: Later) -> None:
    storage, outside = on_disk.storage, folder_of(tmp_path / "outside", a="1", trials__x="2")
    assert storage.folder is not None
    objects = storage.folder / "objects"
    digest = storage.put(folder_of(tmp_path / "sent", a="1"))
    (objects / digest / "files/folder").symlink_to(outside)
    (objects / digest / "files/file").symlink_to(outside / "a")
    for link in (objects / ("a" * 64), objects / f".{'b' * 64}.0f.tmp", storage.folder / "trials"):
        link.symlink_to(outside)
    later(30)
    listed = fates(run(on_disk, "--delete")[1])
    assert {name for name, (fate, _) in listed.items() if fate == "removed"} == {
        f"objects/{digest}",
        f"objects/.{'b' * 64}.0f.tmp",
    }
    assert not (objects / digest).exists()
    assert contents(outside) == {"a": "1", "trials/x": "2"}


def test_it_may_end_at_any_moment_and_run_again(
    project: Project, run: Run, tmp_path: Path, later: Later, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, sent = project.storage, folder_of(tmp_path / "sent", a="1", b="2")
    later(30)
    allowed = 0
    for allowed in itertools.count():
        digest = storage.put(sent)
        # After a part of it was removed, too.
        storage.get(digest, tmp_path / "there")
        assert contents(tmp_path / "there") == contents(sent)
        calls = itertools.count()

        def unless_ended(real: Callable[..., object], calls: Any = calls, allowed: int = allowed) -> Callable[..., None]:
            def call(*arguments: Any, **options: Any) -> None:
                if next(calls) == allowed:
                    raise KeyboardInterrupt
                real(*arguments, **options)

            return call

        with monkeypatch.context() as patch:
            patch.setattr(Storage, "remove", unless_ended(Storage.remove))
            patch.setattr(inventory.shutil, "rmtree", unless_ended(shutil.rmtree))
            code, _, _ = run(project, "--delete")
        if code == 0:
            break
        assert code == 130
    assert allowed >= 2
    assert storage.entries() == {}


def test_an_empty_storage_is_nothing_to_do(project: Project, run: Run) -> None:
    assert run(project, "--delete") == (0, "0.0 MB kept, 0.0 MB removed\n", "")
