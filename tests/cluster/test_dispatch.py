"""What a stage's run reads and leaves, its key, and a job's folder: real storage, real project files, no Ray."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from pipeline.cluster.dispatch import STAGES, Left, Work, leave, left, maker_of, placed
from pipeline.cluster.jobs import run_as_job as run_stage_as_job
from pipeline.config.job_inputs import INPUTS_FILE, Inputs, git_commit, installed
from pipeline.config.load import load_execution, load_params
from pipeline.identity.digests import digest_of_sums, library_versions, stage_sums
from pipeline.storage.object_store import Storage
from pipeline.utils.atomic_io import write_json
from pipeline.utils.errors import UserError
from tests.conftest import PLAIN, ROOT
from tests.stages.running import set_keys

NEVER = "    print('never')\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The files that a job is sent with, and a storage of their own."""
    root = tmp_path / "project"
    root.mkdir()
    for name in ("params.yaml", "dvc.yaml", "execution.yaml"):
        shutil.copy2(ROOT / name, root)
    for name in ("pipeline", "stages"):
        (root / name).symlink_to(ROOT / name)
    set_keys(root, {"cluster.storage": str(tmp_path / "storage"), "tracking.uri": "http://mlflow:5000"}, "execution.yaml")
    return root


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage.open(str(tmp_path / "storage"), tmp_path)


def test_work_is_what_dvc_follows() -> None:
    described = yaml.safe_load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))["stages"]
    for stage in STAGES:
        work = Work.of(stage, ROOT)
        assert {*work.inputs} == set(described[stage]["deps"])
        assert {*work.outs} == {*described[stage]["outs"], *described[stage].get("metrics", [])}
        assert list(work.params) == described[stage]["params"]
    assert Work.of("train", ROOT).also_read == ("data/tokens/tests/tokens.json", "data/prepared/profile.json")
    assert maker_of("results/tune/best.yaml", ROOT) == ("tune", "results/tune")
    assert maker_of("params.yaml", ROOT) is None


def test_equal_keys_mean_equal_results(project: Path) -> None:
    def key(stage: str = "tune", dev: str = "b", backbone: str = "c") -> str:
        inputs = {"data/tokens/train": "a", "data/tokens/dev": dev, "data/identity/backbone.json": backbone}
        # Of code that was edited since then, perhaps.
        inputs["data/identity/tune.json"] = "t"
        return Work.of(stage, project).key(inputs, project)

    before = key()
    assert key() == before
    assert before not in (key(dev="c"), key(backbone="d"))
    set_keys(project, {"cluster.workers": 7}, "execution.yaml")
    assert key() == before
    # Not stage tune's, and then stage tune's.
    set_keys(project, {"evaluate.threshold_step": 0.01})
    assert key() == before
    set_keys(project, {"objective.temperature": 0.06})
    assert key() != before
    set_keys(project, {"objective.temperature": 0.05})
    (project / "pipeline").unlink()
    shutil.copytree(ROOT / "pipeline", project / "pipeline")
    assert key() == before
    for module in ("gaussian/distribution", "trials/recipe_run"):
        file = project / f"pipeline/{module}.py"
        text = file.read_text(encoding="utf-8")
        file.write_text(f"{text}# changed\n", encoding="utf-8")
        assert key() == before
        file.write_text(f"{text}changed = 1\n", encoding="utf-8")
        assert key() != before
        file.write_text(text, encoding="utf-8")
        assert key() == before


def send(project: Path, storage: Storage, objects: dict[str, str]) -> dict[str, str]:
    """What a job is sent with: path → the text of its file."""
    digests: dict[str, str] = {}
    for path, text in objects.items():
        file = project.parent / "sent" / path
        if not file.suffix:
            file /= "content"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        digests[path] = storage.put(project.parent / "sent" / path)
    inputs = Inputs(objects=digests, commit="c0ffee", versions=installed())
    (project / INPUTS_FILE).write_text(inputs.model_dump_json(), encoding="utf-8")
    return digests


def test_what_has_nothing_to_compute_is_sent_nowhere(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Nobody answers there.
    set_keys(project, dict.fromkeys(("cluster.address", "tracking.uri"), "http://127.0.0.1:9"), "execution.yaml")
    monkeypatch.chdir(project)
    done: list[str] = []
    placed("experiment", lambda: done.append("here"), lambda p: bool(p.experiments.variants))()
    assert done == ["here"]


def python(project: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    env["PYTHONPATH"] = str(ROOT)
    return subprocess.run([sys.executable, *arguments], cwd=project, env=env, capture_output=True, text=True)


def run_as_job(stage: str, main: str, project: Path) -> subprocess.CompletedProcess[str]:
    """The stage in a process of its own that takes itself for a job's."""
    code = "import pathlib\nfrom pipeline.cluster.dispatch import placed\nfrom pipeline.utils.errors import run_stage\n"
    code += f"def main():\n{main}\n"
    code += f"run_stage(placed({stage!r}, main))"
    return python(project, "-c", code, RAY_JOB_CONFIG_JSON_ENV_VAR="{}")


IDENTITY = {
    f"data/identity/{name}.json": json.dumps({"digest": "b" if name == "backbone" else digest_of_sums(stage_sums(name))})
    for name in ("backbone", "tune", "train")
}
TOKENS = {"data/tokens/train": "the tokens", "data/tokens/dev": "others"}
READ = "    print(pathlib.Path('data/tokens/train/content').read_text(), pathlib.Path.cwd())\n"
WRITE = "    pathlib.Path('results/tune').mkdir(parents=True)\n    pathlib.Path('results/tune/best.yaml').write_text('x: 1')\n"


def test_a_job_finds_its_inputs_and_its_outs_go_into_the_storage(project: Path, storage: Storage) -> None:
    digests = send(project, storage, IDENTITY | TOKENS)
    done = run_as_job("tune", READ + WRITE, project)
    assert done.returncode == 0, done.stderr
    text, _, folder = done.stdout.strip().rpartition(" ")
    assert text == "the tokens"
    # It worked in a folder of its own, which is gone; in that of the code, which jobs share, there is nothing new.
    assert not Path(folder).exists()
    assert not (project / "results").exists()
    key = Work.of("tune", project).key(digests, project)
    tuned = left(storage, key)
    assert tuned is not None
    storage.get(tuned.outs["results/tune"], project.parent / "fetched")
    assert (project.parent / "fetched/best.yaml").read_text() == "x: 1"

    # The next stage's job finds them, without anybody who sent them.
    done = run_as_job(
        "train", "    print(pathlib.Path('results/tune/best.yaml').read_text())\n    raise SystemExit(3)\n", project
    )
    assert (done.returncode, done.stdout, done.stderr) == (3, "x: 1\n", "")
    # From other parameters nobody has made them.
    set_keys(project, {"objective.temperature": 0.06})
    done = run_as_job("train", NEVER, project)
    expected = (
        "error: results/tune/best.yaml: no job has made it from these data and parameters; submit `python -m stages.tune` first"
    )
    assert (done.returncode, done.stdout, done.stderr.strip()) == (2, "", expected)


def test_what_a_job_left_is_fetched_and_other_versions_are_one_line(
    project: Path, storage: Storage, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    work = Work.of("tune", project)
    for path in work.inputs:
        file = project / path if Path(path).suffix else project / path / "content"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(path, encoding="utf-8")
    (project.parent / "left").mkdir()
    (project.parent / "left/best.yaml").write_text("x: 1", encoding="utf-8")
    key = work.key({path: storage.put(project / path) for path in work.inputs}, project)
    leave(storage, key, dict.fromkeys(work.outs, storage.put(project.parent / "left")))
    monkeypatch.chdir(project)
    # Where the work is done already, only the connection is tried.
    monkeypatch.setattr("pipeline.cluster.jobs._client", lambda _: None)
    model, execution = load_params(PLAIN).model, load_execution(project / "execution.yaml")
    run_stage_as_job("tune", model, execution)
    assert (project / "results/tune/best.yaml").read_text(encoding="utf-8") == "x: 1"
    assert capsys.readouterr() == (f"tune: fetched from {storage.name}, where a job left it\n", "")
    assert storage.folder is not None
    record = storage.folder / f"work/{key}/outs.json"
    written = json.loads(record.read_text())
    write_json(record, {**written, "versions": {**written["versions"], "torch": "2.1.0"}})
    run_stage_as_job("tune", model, execution)
    expected = f"warning: results of tune that are reused were computed with torch 2.1.0 (now {library_versions()['torch']})\n"
    assert capsys.readouterr().err == expected


def test_a_job_that_fails_leaves_nothing(project: Path, storage: Storage) -> None:
    digests = send(project, storage, IDENTITY | TOKENS)
    done = run_as_job("tune", WRITE + "    raise OSError(28, 'No space left on device')\n", project)
    assert done.returncode == 1
    assert left(storage, Work.of("tune", project).key(digests, project)) is None


def test_what_a_job_lacks_or_is_not_what_was_sent_is_one_line(project: Path, storage: Storage) -> None:
    digests = send(project, storage, IDENTITY | {"data/tokens/train": "the tokens"})
    done = run_as_job("tune", NEVER, project)
    expected = "error: data/tokens/dev: was not sent with the code; run `make upload` where the data is, and submit the job again"
    assert (done.returncode, done.stdout, done.stderr.strip()) == (2, "", expected)
    assert storage.folder is not None
    kept = storage.folder / f"objects/{digests['data/tokens/train']}/files/content"
    kept.write_text("tampered", encoding="utf-8")
    done = run_as_job("tune", NEVER, project)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.strip().endswith("content differs from what was sent; remove it there and run the command again")
    (project / INPUTS_FILE).write_text("{}", encoding="utf-8")
    done = run_as_job("tune", NEVER, project)
    assert done.stderr.strip() == "error: inputs.json: not what `make upload` writes; run it again"


def test_a_damaged_word_on_what_was_left_is_refused(storage: Storage) -> None:
    assert left(storage, "0" * 64) is None
    leave(storage, "0" * 64, {"models": "1" * 64})
    assert left(storage, "0" * 64) == Left(outs={"models": "1" * 64}, versions=library_versions())
    assert storage.folder is not None
    for damaged in ({"models": "1" * 64}, ["models"]):
        write_json(storage.folder / f"work/{'0' * 64}/outs.json", damaged)
        with pytest.raises(UserError, match="is damaged; remove it and run again"):
            left(storage, "0" * 64)


UPLOAD, SUBMIT = "pipeline.cli submit --upload", "pipeline.cli submit"
STORAGE, URI = "cluster.storage", "tracking.uri"


@pytest.mark.parametrize(
    ("command", "keys", "line"),
    [
        (
            UPLOAD,
            {STORAGE: ".gausscse"},
            "execution.yaml: cluster.storage: got '.gausscse', a relative path, which is a different",
        ),
        (UPLOAD, {}, "data/tokens/train: does not exist yet; run `dvc repro tokenize` first"),
        (f"{SUBMIT} prepare", {}, "gausscse submit: argument STAGE: invalid choice: 'prepare' (choose from"),
        (f"{SUBMIT} tune", {"cluster.address": None}, "execution.yaml: cluster.address: got None; write the address of the"),
        (
            "stages.tune",
            {STORAGE: "s3://key:secret@bucket/x"},
            "execution.yaml: cluster.storage: contains a password or key; leave",
        ),
        ("stages.tune", {URI: None}, "execution.yaml: tracking.uri: is null, which a job on a cluster cannot write to; name the"),
        *(
            ("stages.tune", {URI: uri}, "execution.yaml: tracking.uri: contains a password, which Ray")
            for uri in ("https://me:secret@mlflow:5000", "postgresql://db/x?user=me&PassWord=secret&sslmode=require")
        ),
    ],
)
def test_what_cannot_be_sent_is_one_line(project: Path, command: str, keys: dict[str, str | None], line: str) -> None:
    set_keys(project, {"cluster.address": "http://10.0.0.5:8265", **keys}, "execution.yaml")
    done = python(project, "-m", *command.split())
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(f"error: {line}")
    assert "secret" not in done.stderr
    assert not (project / INPUTS_FILE).exists()


def test_a_job_s_commit_is_that_of_the_code_it_was_sent_from(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GAUSSCSE_INPUTS", Inputs(objects={}, commit="c0ffee", versions={}).model_dump_json())
    assert git_commit(project) != "c0ffee"
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    assert git_commit(project) == "c0ffee"
