"""`gausscse gc`: what it keeps and why, and what it removes."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from gates import wait_for

from pipeline.cluster import garbage
from pipeline.cluster.garbage import collect
from pipeline.cluster.stage_spec import leave
from pipeline.config.job_inputs import Inputs, to_text
from pipeline.config.load import load_execution, load_params
from pipeline.storage import uses
from pipeline.storage.uses import OVER_AFTER, in_use, use
from pipeline.trials import locks
from tests.cli.storages import Project, fates
from tests.folders import folder_of

Run = Callable[..., tuple[int, str, str]]


@pytest.mark.faults
def test_what_is_referred_to_is_kept_and_the_rest_goes(project: Project, run: Run, tmp_path: Path) -> None:
    storage = project.storage
    own, final, registered, in_results, orphan, strange = 1, 2, 7, 9, 8, 10
    for seed in (own, registered, in_results, orphan, strange):
        project.train(seed)
    for seed in (registered, orphan):
        project.score(seed)
    project.register(registered)
    folder_of(project.root / "results/tune", **{"trials.csv": f"variant,trial\nmain recipe,{project.trial(in_results).digest}\n"})
    sent, result, lost, half = (storage.put(folder_of(tmp_path / name, a=name)) for name in ("sent", "result", "lost", "half"))
    storage.remove(f"objects/{half}/manifest")
    (project.root / "inputs.json").write_text(to_text(Inputs(objects={"data/tokens/dev": sent}, commit="c", versions={})))
    leave(storage, "d" * 64, {"results/tune": result})
    storage.write("notes.txt", "mine")
    storage.write("trials/readme", "mine too")
    storage.write(f"{project.name(strange)}/notes.md", "and mine")

    project.an_hour_later()
    before = project.files
    code, said, err = run(project, "--keep-days", "0")
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
        project.name(strange): "gausscse does not know its file notes.md",
        kept_scores: project.name(registered),
        f"objects/{sent}": "this project",
        "notes.txt": "gausscse does not know it",
        "trials/readme": "gausscse does not know it",
    }
    named = {project.name(orphan), *(scores - kept.keys()), f"work/{'d' * 64}", *(f"objects/{o}" for o in (result, lost, half))}
    assert {name for name in gone if not name.startswith("objects/")} | {f"objects/{o}" for o in (result, lost, half)} == named
    assert re.search(r"\d kB kept, [\d.]+ [kM]B would go; `gausscse gc --delete` removes it\n$", said)

    # Everything was written just now.
    assert not [name for name, (fate, _) in fates(run(project)[1]).items() if fate != "kept"]
    assert fates(run(project, "--delete")[1]) == fates(run(project)[1])
    assert project.files == before

    code, said, err = run(project, "--keep-days", "0", "--delete")
    assert (code, err) == (0, "")
    assert {name: (fate, why) for name, (fate, why) in fates(said).items() if fate == "kept"} == {
        name: ("kept", why) for name, why in kept.items()
    }
    assert {name for name, (fate, _) in fates(said).items() if fate == "removed"} == gone
    assert {file for file in before if any(f"{file}/".startswith((f"{name}/", f"{name}.ref/")) for name in kept)} == project.files
    # Their stamps went with them.
    assert not [name for name in storage.entries("uses") if any(one.replace("/", ".") in name for one in gone)]
    assert not list(storage.entries("removals"))
    for seed in (own, registered, in_results):
        assert project.finished(seed) is not None
    assert project.finished(orphan) is None
    assert project.finished(final) is None
    project.an_hour_later()
    assert "removed" not in [fate for fate, _ in fates(run(project, "--keep-days", "0", "--delete")[1]).values()]


def test_what_a_run_uses_is_kept_while_it_goes_on(project: Project, run: Run, tmp_path: Path) -> None:
    storage = project.storage
    project.train(8)
    project.an_hour_later()
    old, taken = (storage.put(folder_of(tmp_path / name, a=name)) for name in ("old", "taken"))
    # S3's times are whole seconds, and what was used in the second in which a run began counts as the run's.
    time.sleep(1.1)
    with in_use(storage):
        # What the run finds in the storage, what it puts there, and what it has no use for.
        use(storage, [project.name(8)])
        assert storage.put(tmp_path / "taken") == taken
        new = storage.put(folder_of(tmp_path / "new", a="new"))
        listed = fates(run(project, "--keep-days", "0", "--delete")[1])
        kept = {name: why for name, (fate, why) in listed.items() if fate == "kept"}
        assert {f"objects/{taken}", f"objects/{new}", project.name(8)} <= kept.keys()
        assert re.fullmatch(rf"in use by \S+ \(\S+, process {os.getpid()}\)", kept[project.name(8)])
        assert listed[f"objects/{old}"] == ("removed", "nothing refers to it; not used for 0 days")
    assert project.finished(8) is not None
    # The next stage begins within the hour.
    listed = fates(run(project, "--keep-days", "0", "--delete")[1])
    assert {fate for fate, _ in listed.values()} == {"kept"}
    project.an_hour_later()
    listed = fates(run(project, "--keep-days", "0", "--delete")[1])
    assert {name for name, (fate, _) in listed.items() if fate == "removed"} >= {
        f"objects/{taken}",
        f"objects/{new}",
        project.name(8),
    }
    assert project.files == set()
    assert not storage.entries("runs") and not storage.entries("uses")


def test_a_run_counts_for_an_hour_after_its_last_heartbeat(on_disk: Project, run: Run, tmp_path: Path) -> None:
    storage = on_disk.storage
    assert storage.folder is not None
    with in_use(storage):
        storage.put(folder_of(tmp_path / "a", a="1"))
    left = list((storage.folder / "runs").iterdir())
    beat = next(file for file in left if file.name.endswith(".alive"))
    began = beat.with_suffix("").stat().st_mtime
    for age, fate in ((OVER_AFTER - 60, "kept"), (OVER_AFTER, "removed")):
        for file in (*left, *storage.folder.rglob("manifest"), *storage.folder.rglob("objects.*"), *storage.folder.rglob("a")):
            os.utime(file, (began - age, began - age))
        (listed,) = {fate for fate, _ in fates(run(on_disk, "--keep-days", "0", "--delete")[1]).values()}
        assert listed == fate
    assert not list((storage.folder / "runs").iterdir())


def test_days_count_from_the_last_use(on_disk: Project, run: Run, tmp_path: Path) -> None:
    storage = on_disk.storage
    assert storage.folder is not None
    on_disk.an_hour_later()
    kept, gone = (storage.put(folder_of(tmp_path / name, a=name)) for name in ("kept", "gone"))
    for file in (
        *storage.folder.glob("objects/*/manifest"),
        *storage.folder.glob("objects/*/files/*"),
        *storage.folder.glob("uses/*"),
    ):
        month_ago = file.stat().st_mtime - 31 * 86_400
        os.utime(file, (month_ago, month_ago))
    use(storage, [f"objects/{kept}"])
    listed = fates(run(on_disk)[1])
    assert listed[f"objects/{kept}"] == ("kept", "used in the last 30 days")
    assert listed[f"objects/{gone}"] == ("would go", "nothing refers to it; not used for 31 days")
    assert fates(run(on_disk, "--keep-days", "32")[1])[f"objects/{gone}"][0] == "kept"


def test_what_a_run_begins_to_use_after_the_list_is_kept(
    project: Project, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One run begins before the list of what is about to be removed is written, the other one after it."""
    monkeypatch.setattr(uses, "_POLL", 0.05)
    storage = project.storage
    project.train(8)
    early, late, idle = (storage.put(folder_of(tmp_path / name, a=name)) for name in ("early", "late", "idle"))
    project.an_hour_later()
    real, calls = garbage._verdicts, []

    def use_late() -> None:
        storage.put(tmp_path / "late")
        # No other process has removed what it is about to read.
        storage.get(late, tmp_path / "there")

    thread = threading.Thread(target=use_late)
    with ExitStack() as stack:

        def verdicts(*arguments: Any) -> list[garbage.Verdict]:
            calls.append(arguments)
            if len(calls) == 1:
                decided = real(*arguments)
                assert all(not verdict.kept for verdict in decided)
                time.sleep(1.1)
                stack.enter_context(in_use(storage))
                use(storage, [project.name(8)])
                storage.put(tmp_path / "early")
                return decided
            stamp = f"uses/objects.{late}"
            before = storage.entries(stamp)
            thread.start()
            wait_for(lambda: storage.entries(stamp) != before, 60, "it is stamped")
            assert thread.is_alive()
            return real(*arguments)

        monkeypatch.setattr(garbage, "_verdicts", verdicts)
        listed = fates(run(project, "--keep-days", "0", "--delete")[1])
        thread.join(60)
    assert len(calls) == 2 and not thread.is_alive()
    assert [listed[name][0] for name in (project.name(8), f"objects/{early}", f"objects/{late}")] == ["kept"] * 3
    assert listed[f"objects/{idle}"][0] == "removed"
    assert project.finished(8) is not None
    assert (tmp_path / "there/a").read_text() == "late"


def test_a_trial_that_begins_while_others_are_removed_is_kept(on_disk: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a heartbeat or a stamp, by its lock alone."""
    monkeypatch.chdir(on_disk.root)
    storage = on_disk.storage
    for seed in (1, 8):
        on_disk.train(seed)
    on_disk.an_hour_later()
    execution = load_execution(on_disk.root / "execution.yaml")
    # The project's own trial may come before or after the other one; the lock is taken when all is decided.
    real = garbage._verdicts
    calls: list[int] = []
    with ExitStack() as stack:

        def verdicts(*arguments: Any) -> list[garbage.Verdict]:
            decided = real(*arguments)
            calls.append(sum(not verdict.kept for verdict in decided))
            if len(calls) == 2:
                assert storage.folder is not None
                stack.enter_context(locks.driven(storage.folder / on_disk.name(8), "a"))
            return decided

        monkeypatch.setattr(garbage, "_verdicts", verdicts)
        listed = {v.thing.name: (v.kept, v.why) for v in collect(load_params(), execution, on_disk.root, 0, delete=True)}
    assert calls == [1, 1]
    assert listed == {on_disk.name(1): (True, "this project"), on_disk.name(8): (True, "a process holds its lock")}
    assert on_disk.finished(8) is not None


def test_a_locked_trial_is_kept(on_disk: Project, run: Run) -> None:
    on_disk.train(8)
    assert on_disk.storage.folder is not None
    on_disk.an_hour_later()
    for lock in (locks.DRIVER_LOCK, locks.WRITER_LOCK):
        with locks.held(on_disk.storage.folder / on_disk.name(8) / lock):
            listed = fates(run(on_disk, "--keep-days", "0", "--delete")[1])
        assert listed[on_disk.name(8)] == ("kept", "a process holds its lock")
    assert on_disk.finished(8) is not None


def test_an_empty_storage_is_nothing_to_do(project: Project, run: Run) -> None:
    assert run(project, "--delete") == (0, "0 B kept, 0 B removed\n", "")
