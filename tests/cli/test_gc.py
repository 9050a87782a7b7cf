"""`gausscse gc`: what it keeps and why, what it removes, and what ends it before it removes anything."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from pipeline.cli.gc import main
from pipeline.cluster.garbage import collect
from pipeline.cluster.stage_spec import leave
from pipeline.config.job_inputs import Inputs, to_text
from pipeline.config.load import load_execution, load_params
from pipeline.storage.uses import DEAD_AFTER, in_use, use
from pipeline.trials import locks
from pipeline.utils.errors import UserError, run_stage
from tests.cli.storages import Project, fates, set_key
from tests.folders import folder_of

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(params=["folder", "s3"])
def project(
    request: pytest.FixtureRequest, tmp_path: Path, tiny_backbone: Path, s3: str, monkeypatch: pytest.MonkeyPatch
) -> Project:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    storage = "kept" if request.param == "folder" else s3.replace("/gausscse?", f"/{tmp_path.name}?")
    return Project.made(tmp_path, tiny_backbone, storage)


@pytest.fixture
def on_disk(tmp_path: Path, tiny_backbone: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return Project.made(tmp_path, tiny_backbone, "kept")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The command in this process, which has imported already what takes seconds: exit code, stdout, stderr."""

    def call(project: Project, *arguments: str) -> tuple[int, str, str]:
        monkeypatch.chdir(project.root)
        capsys.readouterr()
        code = 0
        try:
            run_stage(partial(main, arguments))
        except SystemExit as end:
            code = int(end.code or 0)
        out, err = capsys.readouterr()
        return code, out, err

    return call


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
    found = fates(said)
    kept = {name: why for name, (fate, why) in found.items() if fate == "kept"}
    gone = {name for name, (fate, _) in found.items() if fate == "would go"}
    scores = {name for name in found if name.startswith("scores/")}
    (kept_scores,) = scores & kept.keys()
    # A trial's model and scores on S3 are objects, which its pointers name.
    pointed = {name: why for name, why in kept.items() if why in found and name.startswith("objects/")}
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
    assert not list(storage.entries("removals"))
    for seed in (own, registered, in_results):
        assert project.finished(seed) is not None
    assert project.finished(orphan) is None
    assert project.finished(final) is None
    project.an_hour_later()
    # Their stamps went with them, and a second time nothing is left to remove.
    assert not [name for name in storage.entries("uses") if any(one.replace("/", ".") in name for one in gone)]
    assert "removed" not in [fate for fate, _ in fates(run(project, "--keep-days", "0", "--delete")[1]).values()]


def test_what_a_run_uses_is_kept_while_it_goes_on(project: Project, run: Run, tmp_path: Path) -> None:
    storage = project.storage
    project.train(8)
    project.an_hour_later()
    old, taken = (storage.put(folder_of(tmp_path / name, a=name)) for name in ("old", "taken"))
    with in_use(storage):
        # What the run finds in the storage, what it puts there, and what it has no use for.
        use(storage, [project.name(8)])
        assert storage.put(tmp_path / "taken") == taken
        new = storage.put(folder_of(tmp_path / "new", a="new"))
        found = fates(run(project, "--keep-days", "0", "--delete")[1])
        kept = {name: why for name, (fate, why) in found.items() if fate == "kept"}
        assert {f"objects/{taken}", f"objects/{new}", project.name(8)} <= kept.keys()
        assert re.fullmatch(rf"in use by \S+ \(\S+, process {os.getpid()}\)", kept[project.name(8)])
        assert found[f"objects/{old}"] == ("removed", "nothing refers to it; not used for 0 days")
    assert project.finished(8) is not None
    # The next stage begins within the hour.
    found = fates(run(project, "--keep-days", "0", "--delete")[1])
    assert {fate for fate, _ in found.values()} == {"kept"}
    project.an_hour_later()
    found = fates(run(project, "--keep-days", "0", "--delete")[1])
    assert {name for name, (fate, _) in found.items() if fate == "removed"} >= {
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
    for age, fate in ((DEAD_AFTER - 60, "kept"), (DEAD_AFTER, "removed")):
        for file in (*left, *storage.folder.rglob("manifest"), *storage.folder.rglob("objects.*"), *storage.folder.rglob("a")):
            os.utime(file, (began - age, began - age))
        (found,) = {fate for fate, _ in fates(run(on_disk, "--keep-days", "0", "--delete")[1]).values()}
        assert found == fate
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
        os.utime(file, (file.stat().st_mtime - 31 * 86_400,) * 2)
    use(storage, [f"objects/{kept}"])
    found = fates(run(on_disk)[1])
    assert found[f"objects/{kept}"] == ("kept", "used in the last 30 days")
    assert found[f"objects/{gone}"] == ("would go", "nothing refers to it; not used for 31 days")
    assert fates(run(on_disk, "--keep-days", "32")[1])[f"objects/{gone}"][0] == "kept"


def test_a_locked_trial_is_kept(on_disk: Project, run: Run) -> None:
    on_disk.train(8)
    assert on_disk.storage.folder is not None
    on_disk.an_hour_later()
    for lock in (locks.DRIVER_LOCK, locks.WRITER_LOCK):
        with locks.held(on_disk.storage.folder / on_disk.name(8) / lock):
            found = fates(run(on_disk, "--keep-days", "0", "--delete")[1])
        assert found[on_disk.name(8)] == ("kept", "a process holds its lock")
    assert on_disk.finished(8) is not None


@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        (lambda root: (root / "mlflow.db").unlink(), "mlflow.db: no MLflow database here"),
        (lambda root: (root / "mlflow.db").write_text("no database" * 100), "MLflow at sqlite:"),
        (lambda root: (root / "data/identity/backbone.json").unlink(), "data/identity/backbone.json: no such file"),
        (lambda root: (root / "data/tokens/train/tokens.json").unlink(), "data/tokens/train"),
        (lambda root: (root / "inputs.json").write_text("{}"), "inputs.json: not what `make upload` writes"),
    ],
    ids=["no database", "damaged database", "no identity", "no tokens", "damaged inputs"],
)
def test_what_cannot_be_asked_ends_it_before_it_removes_anything(
    on_disk: Project, run: Run, break_it: Callable[[Path], object], said: str
) -> None:
    on_disk.train(8)
    before = on_disk.storage.entries()
    break_it(on_disk.root)
    for delete in ([], ["--delete"]):
        code, out, err = run(on_disk, "--keep-days", "0", *delete)
        assert (code, out) == (2, "")
        assert err.startswith("error: ") and said in err and err.count("\n") == 1
    assert on_disk.storage.entries() == before


def test_a_registry_storage_or_cluster_that_does_not_answer_is_one_line(
    on_disk: Project, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_disk.train(8)
    before = on_disk.storage.entries()
    set_key(on_disk, "cluster", storage=str(on_disk.storage.folder))
    with monkeypatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
        code, out, err = run(on_disk, "--keep-days", "0", "--delete")
        assert (code, out, err.count("\n")) == (2, "", 1), err
        assert err.startswith("error: MLflow at http://127.0.0.1:9: ")
    execution = load_execution(on_disk.root / "execution.yaml")
    away = execution.model_copy(update={"cluster": execution.cluster.model_copy(update={"address": "http://127.0.0.1:9"})})
    with pytest.raises(UserError, match=r"cluster\.address: no Ray cluster answers at 'http://127.0.0.1:9'"):
        list(collect(load_params(on_disk.root / "params.yaml"), away, on_disk.root, 0, delete=True))
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    set_key(on_disk, "cluster", storage="s3://team/x?endpoint_override=127.0.0.1:9&scheme=http&region=us-east-1")
    code, out, err = run(on_disk, "--keep-days", "0", "--delete")
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert "see cluster.storage" in err
    assert on_disk.storage.entries() == before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--keep-days", "-1"], "--keep-days: got -1; write 0 or more"),
        (
            ["--keep-days", "soon"],
            "gausscse gc: argument --keep-days: invalid int value: 'soon' (`gausscse gc --help` says more)",
        ),
        (["now"], "gausscse gc: unrecognized arguments: now (`gausscse gc --help` says more)"),
    ],
)
def test_wrong_usage_is_one_line(on_disk: Project, run: Run, arguments: list[str], said: str) -> None:
    assert run(on_disk, *arguments) == (2, "", f"error: {said}\n")


def test_an_empty_storage_is_nothing_to_do(project: Project, run: Run) -> None:
    assert run(project, "--delete") == (0, "0 B kept, 0 B removed\n", "")
