"""DVC as people use it: remotes, second clones, experiments, the queue, plots, a kill; real dvc and stages, a tiny project."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import boto3
import pytest
from copies import ROOT, copy_project
from moto.server import ThreadedMotoServer

from pipeline.config.execution import TrackingParams
from pipeline.config.load import load_execution
from pipeline.registry import load_encoder
from pipeline.tracking.server import open_tracker
from tests.stages.running import BIN, CLEAN, EVERY_TIME, commit, dvc, environment, run, stages_run

pytestmark = pytest.mark.faults

STAGES = ["identity", "prepare", "tokenize", "tune", "train", "evaluate", "register", "experiment", "report"]
# What a changed key of the relation head reaches: no trial is trained again.
BEHIND = ["evaluate", "experiment", "register", "report", "train"]
BUCKET = "gausscse"
KEYS = {"AWS_ACCESS_KEY_ID": "an-id", "AWS_SECRET_ACCESS_KEY": "a-secret"}


def outs(root: Path) -> dict[str, str]:
    """Every file DVC made, with its SHA-256."""
    files = [file for folder in ("data", "models", "report", "results") for file in (root / folder).rglob("*") if file.is_file()]
    return {file.relative_to(root).as_posix(): sha256(file.read_bytes()).hexdigest() for file in files}


@pytest.fixture(scope="module")
def project(committed: Path) -> Path:
    return committed


def test_nothing_is_stale_after_repro(project: Path) -> None:
    assert json.loads(dvc(project, "status", "--json")) == CLEAN


def test_the_graph_reads_as_the_readme_draws_it(project: Path) -> None:
    drawn = re.findall(r"\| +(\w+) +\|", dvc(project, "dag"))
    assert sorted(drawn) == sorted(STAGES)
    mermaid = dvc(project, "dag", "--mermaid")
    names = dict(re.findall(r'(node\d+)\["(\w+)"\]', mermaid))
    arrows = {(names[a], names[b]) for a, b in re.findall(r"(node\d+)-->(node\d+)", mermaid)}
    readme = re.sub(r' -- "[^"]*"', "", (ROOT / "README.md").read_text(encoding="utf-8"))
    told = {(a, b) for a, b in re.findall(r"^ +(\w+) --> (\w+)$", readme, re.MULTILINE)}
    assert sorted(names.values()) == sorted(STAGES)
    assert told
    assert told <= arrows
    assert all(STAGES.index(a) < STAGES.index(b) for a, b in arrows)


# Remotes.


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """The address of an S3-compatible server on this machine, with an empty bucket."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    address = f"http://{host}:{port}"
    keys = {"aws_access_key_id": KEYS["AWS_ACCESS_KEY_ID"], "aws_secret_access_key": KEYS["AWS_SECRET_ACCESS_KEY"]}
    boto3.client("s3", endpoint_url=address, region_name="us-east-1", **keys).create_bucket(Bucket=BUCKET)
    yield address
    server.stop()


def clone(project: Path, target: Path) -> Path:
    run(project, "git", "clone", "-q", str(project), str(target))
    assert not (target / "data").exists()
    return target


def test_clones_get_the_same_bytes_from_a_local_remote(project: Path, tmp_path: Path) -> None:
    dvc(project, "remote", "add", "--default", "storage", str(tmp_path / "storage"))
    commit(project, "remote")
    dvc(project, "push")
    assert "in sync" in dvc(project, "status", "--cloud")
    second = clone(project, tmp_path / "second")
    dvc(second, "pull")
    assert outs(second) == outs(project)
    assert stages_run(dvc(second, "repro")) == EVERY_TIME
    third = clone(project, tmp_path / "third")
    assert stages_run(dvc(third, "repro", "--pull")) == EVERY_TIME
    assert outs(third) == outs(project)
    # The cache of a clone is its own: nothing above came from the project's.
    assert (third / ".dvc/cache").is_dir()


@pytest.mark.faults
def test_clones_get_the_same_bytes_from_s3(project: Path, s3: str, tmp_path: Path) -> None:
    dvc(project, "remote", "add", "bucket", f"s3://{BUCKET}/dvc")
    dvc(project, "remote", "modify", "bucket", "endpointurl", s3)
    commit(project, "remote on S3")
    dvc(project, "push", "--remote", "bucket", **KEYS)
    second = clone(project, tmp_path / "second")
    dvc(second, "pull", "--remote", "bucket", **KEYS)
    assert outs(second) == outs(project)
    third = clone(project, tmp_path / "third")
    dvc(third, "remote", "default", "--local", "bucket")
    dvc(third, "remote", "modify", "--local", "bucket", "access_key_id", KEYS["AWS_ACCESS_KEY_ID"])
    dvc(third, "remote", "modify", "--local", "bucket", "secret_access_key", KEYS["AWS_SECRET_ACCESS_KEY"])
    assert stages_run(dvc(third, "repro", "--pull")) == EVERY_TIME
    assert outs(third) == outs(project)
    # Secrets went into .dvc/config.local, which git does not see.
    assert run(third, "git", "status", "--porcelain") == ""
    assert KEYS["AWS_SECRET_ACCESS_KEY"] not in (third / ".dvc/config").read_text(encoding="utf-8")


def test_a_clone_registers_the_pulled_model_in_its_own_mlflow(project: Path, tmp_path: Path) -> None:
    second = clone(project, tmp_path / "second")
    dvc(second, "cache", "dir", "--local", str(project / ".dvc/cache"))
    dvc(second, "checkout")
    assert not (second / "mlflow.db").exists()
    assert stages_run(dvc(second, "repro", "--single-item", "--force", "register")) == ["register"]
    encoder = load_encoder("models:/gausscse@champion", f"sqlite:///{second}/mlflow.db")
    # It has the threshold that evaluate found, and tells what its pipeline was.
    per_seed = json.loads((second / "results/evaluate/per_seed.json").read_text(encoding="utf-8"))["main recipe"]
    best = max((numbers["dev"] for numbers in per_seed.values()), key=lambda dev: dev["pr_auc"])
    assert encoder.calibration is not None
    assert (encoder.calibration.threshold, encoder.calibration.accuracy) == (best["threshold"], best["accuracy"])
    score = encoder.relation("A dog runs.", "A dog runs.")["entailment"]
    assert encoder.entails("A dog runs.", "A dog runs.") is (score >= best["threshold"])
    (card,) = (second / "mlartifacts").rglob("artifacts/encoder/README.md")
    assert run(second, "git", "rev-parse", "HEAD").strip() in card.read_text(encoding="utf-8")


# Experiments.


@pytest.fixture
def workspace(project: Path) -> Iterator[Path]:
    """The project, put back afterwards to what is committed."""
    yield project
    run(project, "git", "checkout", "-q", "--", ".")
    dvc(project, "checkout")


def test_a_queued_experiment_runs_what_its_key_reaches_and_leaves_the_workspace_alone(project: Path, queued: str) -> None:
    assert sorted(stages_run(queued)) == BEHIND
    assert "Success" in dvc(project, "queue", "status")
    assert run(project, "git", "status", "--porcelain") == ""
    assert json.loads(dvc(project, "status", "--json")) == CLEAN


def test_an_experiment_in_the_workspace_takes_what_the_queue_has_computed(workspace: Path, queued: str) -> None:
    output = dvc(workspace, "exp", "run", "--name", "again", "--set-param", "relation.similarity_weight=0.5")
    assert stages_run(output) == EVERY_TIME
    assert sorted(re.findall(r"Stage '(\w+)' is cached", output)) == sorted({*BEHIND} - {*EVERY_TIME})
    assert re.search(r"relation\.similarity_weight +0\.25 +0\.5", dvc(workspace, "params", "diff"))


def test_what_a_queued_experiment_tracked_and_kept_outlives_its_copy(project: Path, queued: str) -> None:
    assert not list((project / ".dvc/tmp/exps").glob("tmp*"))
    tracker = open_tracker(load_execution(project / "execution.yaml").tracking, project)
    runs = tracker.client.search_runs([tracker.experiment_id], "tags.`gausscse.kind` = 'pipeline'")
    weights = {run.data.params["relation.similarity_weight"]: run.info.status for run in runs}
    assert weights == {"0.25": "FINISHED", "0.5": "FINISHED"}
    # A network of each seed, and its scale for each weight.
    assert len(list((project / ".gausscse/relations").iterdir())) == 2 + 2 * 2
    # The copy has reused the trials of the project.
    assert len(list((project / ".gausscse/trials").iterdir())) == 2


def test_experiments_are_listed_with_their_parameters_and_metrics(project: Path, queued: str) -> None:
    shown = dvc(project, "exp", "show", "--only-changed", "--drop", "models|results/.*", "--csv")
    rows = list(csv.DictReader(io.StringIO(shown)))
    # A line that can be read: no digests, no parameter that all have in common.
    assert not [column for column in rows[0] if "/" in column or column in ("models", "train.epochs")]
    (hot,) = [row for row in rows if row["Experiment"] == "hot"]
    (workspace,) = [row for row in rows if row["rev"] == "workspace"]
    assert (workspace["relation.similarity_weight"], hot["relation.similarity_weight"]) == ("0.25", "0.5")
    assert float(hot["dev.pr_auc"]) > 0


def test_metrics_and_params_diff_compare_an_experiment_with_head(project: Path, queued: str) -> None:
    assert json.loads(dvc(project, "params", "diff", "HEAD", "hot", "--json")) == {
        "params.yaml": {"relation.similarity_weight": {"old": 0.25, "new": 0.5, "diff": 0.25}}
    }
    diff = json.loads(dvc(project, "metrics", "diff", "HEAD", "hot", "--all", "--json"))["results/evaluate/metrics.json"]
    here = json.loads((project / "results/evaluate/metrics.json").read_text(encoding="utf-8"))
    assert {key: value["old"] for key, value in diff.items()} == {
        f"{set_name}.{key}": value for set_name, numbers in here.items() for key, value in numbers.items()
    }


def test_an_experiment_is_applied_and_branched(workspace: Path, queued: str) -> None:
    before = outs(workspace)
    dvc(workspace, "exp", "apply", "hot")
    assert outs(workspace) != before
    assert json.loads(dvc(workspace, "status", "--json")) == CLEAN
    # The version it registered is in the project's registry.
    version = json.loads((workspace / "results/register.json").read_text(encoding="utf-8"))["model_uri"]
    assert len(load_encoder(version, f"sqlite:///{workspace}/mlflow.db").encode(["A dog runs."])) == 1
    dvc(workspace, "exp", "branch", "hot", "hotter")
    assert "similarity_weight: 0.5\n" in run(workspace, "git", "show", "hotter:params.yaml")


# The registry.


def test_parameters_set_back_name_the_true_champion_and_the_way_back(workspace: Path, queued: str) -> None:
    def registered() -> dict[str, Any]:
        return json.loads((workspace / "results/register.json").read_text(encoding="utf-8"))

    registry = [sys.executable, "-m", "pipeline.cli", "registry"]
    dvc(workspace, "repro")
    old = registered()
    dvc(workspace, "exp", "apply", "hot")
    dvc(workspace, "repro")
    new = registered()["version"]
    run(workspace, *registry, "promote", str(new), "--force", "--reason", "to see")
    run(workspace, "git", "checkout", "-q", "--", ".")
    said = dvc(workspace, "repro")
    assert stages_run(said) == EVERY_TIME
    assert "Stage 'train' is cached" in said
    back = registered()
    assert (old["champion_version"], back["champion_version"], back["version"]) == (old["version"], new, old["version"])
    assert f"is challenger (version {new} is champion)" in said
    assert f"to make it champion again: {back['rollback']}" in said
    page = (workspace / "report/report.md").read_text(encoding="utf-8")
    assert f"is the challenger (the champion is version {new}): " in page
    assert back["rollback"] in page
    # Nothing changed since: the page is left as it is, without being made again.
    assert "report/index.html is up to date" in dvc(workspace, "repro")
    run(workspace, *registry, *back["rollback"].split()[2:-1], "it was bad")
    dvc(workspace, "repro")
    assert (registered()["champion_version"], registered()["rollback"]) == (old["version"], None)
    assert f"version {old['version']} is the champion: " in (workspace / "report/report.md").read_text(encoding="utf-8")


def test_an_empty_mlflow_gets_what_came_from_the_cache(workspace: Path, tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    said = dvc(workspace, "repro", MLFLOW_TRACKING_URI=uri)
    assert stages_run(said) == EVERY_TIME
    client = open_tracker(TrackingParams(uri=uri, experiment="gausscse"), workspace).client
    (experiment,) = [found.experiment_id for found in client.search_experiments() if found.name == "gausscse"]
    runs = client.search_runs([experiment])
    (parent,) = [one for one in runs if one.data.tags["gausscse.kind"] == "pipeline"]
    summary = json.loads((workspace / "results/evaluate/summary.json").read_text(encoding="utf-8"))["main recipe"]
    assert parent.data.metrics["dev.pr_auc.mean"] == pytest.approx(summary["dev"]["pr_auc"]["mean"])
    assert "report" in [file.path for file in client.list_artifacts(parent.info.run_id)]
    trials = [one for one in runs if one.data.tags["gausscse.kind"] == "trial"]
    assert len(trials) == 2
    assert all("dev.pr_auc" in one.data.metrics and one.info.status == "FINISHED" for one in trials)


# Plots.


def lines(spec: dict[str, Any]) -> dict[tuple[str, ...], list[dict[str, str]]]:
    """The points of each line that a filled Vega-Lite specification draws: one for each value of what it groups by."""
    channels = ("color", "strokeDash", "facet", "row", "column")
    groups = [spec["encoding"][channel]["field"] for channel in channels if channel in spec["encoding"]]
    found: dict[tuple[str, ...], list[dict[str, str]]] = defaultdict(list)
    for point in spec["data"]["values"]:
        found[tuple(point[field] for field in groups)].append(point)
    return found


def specifications(output: str) -> dict[str, dict[str, Any]]:
    # One without points is not drawn.
    drawn = {name: plots[0]["content"] for name, plots in json.loads(output)["data"].items() if plots}
    return {name: json.loads(spec) if isinstance(spec, str) else spec for name, spec in drawn.items()}


REPORTED = {
    "similarity": "label,similarity,sim_hp,sim_ph",
    "direction_by_length": "log2_length_ratio,pairs,sim,var,length_only",
    "variance_by_length": "tokens,sentences,mean_log_var,sd",
    "calibration": "mean_score,entailed,pairs",
}


def of_report(columns: str) -> str:
    """Points of two recipes, sets and seeds."""
    rows = [
        ",".join([recipe, name, seed, *(str(x + k) for k in range(len(columns.split(","))))])
        for recipe in "ab"
        for name in ("dev", "test")
        for seed in ("seed-1", "seed-2")
        for x in (1, 2)
    ]
    return "\n".join([f"recipe,set,seed,{columns}", *rows, ""])


def test_every_trial_set_and_seed_has_its_own_line(tmp_path: Path) -> None:
    root = copy_project(tmp_path)
    trials = [f"{trial},{step},5.0,0.001,{'' if step == 1 else 50 + step}" for trial in ("s1", "s2") for step in (1, 2, 3)]
    curves = "\n".join(["variant,trial,step,loss,learning_rate,dev_score", *(f"v,{trial}" for trial in trials), ""])
    points = [f"{name},{seed},{1 - t},{t},{t}" for name in ("dev", "test") for seed in ("seed-1", "seed-2") for t in (0.0, 0.5)]
    pr_curves = "\n".join(["variant,set,seed,recall,precision,threshold", *(f"v,{point}" for point in points), ""])
    for name, text in (
        *((f"{stage}/curves.csv", curves) for stage in ("train", "tune", "experiments")),
        *((f"{stage}/pr_curves.csv", pr_curves) for stage in ("evaluate", "experiments")),
        *((f"../report/curves/{name}.csv", of_report(columns)) for name, columns in REPORTED.items()),
    ):
        (root / "results" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "results" / name).write_text(text, encoding="utf-8")
    drawn = specifications(dvc(root, "plots", "show", "--json"))
    assert set(drawn) == {
        "learning_curves",
        "loss",
        "grid_curves",
        "precision_recall",
        "variant_curves",
        "variant_precision_recall",
        "similarity",
        "similarity_reversed",
        "direction_by_length",
        "direction_by_length_var",
        "variance_by_length",
        "calibration",
    }
    for name in ("learning_curves", "loss", "grid_curves"):
        assert set(lines(drawn[name])) == {("s1", "workspace"), ("s2", "workspace")}
        assert all([point["step"] for point in line] == ["1", "2", "3"] for line in lines(drawn[name]).values())
        # A step without a score is no score of nought.
        assert drawn[name]["transform"] == [{"filter": f"datum['{drawn[name]['encoding']['y']['field']}'] !== ''"}]
    assert len(lines(drawn["precision_recall"])) == 4
    assert drawn["precision_recall"]["encoding"]["order"]["field"] == "threshold"
    for name, channel, field in (("variant_curves", "detail", "trial"), ("variant_precision_recall", "row", "set")):
        assert {line[0] for line in lines(drawn[name])} == {"v"}
        assert drawn[name]["encoding"]["color"]["field"] == "variant"
        assert drawn[name]["encoding"][channel]["field"] == field
    for name in ("direction_by_length", "direction_by_length_var", "variance_by_length", "calibration"):
        assert set(lines(drawn[name])) == {
            (r, s, n, "workspace") for r in "ab" for s in ("seed-1", "seed-2") for n in ("dev", "test")
        }
    for name in ("similarity", "similarity_reversed"):
        assert len(lines(drawn[name])) == 8
        assert drawn[name]["encoding"]["detail"]["field"] == "recipe"


def test_plots_diff_draws_head_beside_the_experiment(project: Path, queued: str, tmp_path: Path) -> None:
    drawn = specifications(dvc(project, "plots", "diff", "HEAD", "hot", "--json", "--out", str(tmp_path / "plots")))
    for spec in drawn.values():
        assert (spec["encoding"].get("facet") or spec["encoding"]["column"])["field"] == "rev"
        assert {point["rev"] for point in spec["data"]["values"]} == {"HEAD", "hot"}


# A kill.


def test_a_killed_repro_leaves_no_lock_behind(tmp_path: Path) -> None:
    root = copy_project(tmp_path)
    process = subprocess.Popen(
        [str(BIN / "dvc"), "repro", "prepare"],
        cwd=root,
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
        # Its own group, so that dvc and its stage die together.
        start_new_session=True,
    )
    assert process.stdout is not None
    assert any("python -m stages.prepare" in line for line in process.stdout)
    os.killpg(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    process.stdout.close()
    assert "  prepare:\n" not in (root / "dvc.lock").read_text(encoding="utf-8")
    assert stages_run(dvc(root, "repro", "prepare")) == ["prepare"]
    assert json.loads(dvc(root, "status", "--json", "prepare")) == {}
    # Nor does a list of locks that a kill left half-written, once the project is checked, as `make repro` does first.
    (root / ".dvc/tmp/rwlock").write_text('{"write": {"resu', encoding="utf-8")
    said = subprocess.run([str(BIN / "dvc"), "repro", "prepare"], cwd=root, env=environment(), capture_output=True, text=True)
    assert "RWLock-file" in said.stderr
    subprocess.run([sys.executable, "-m", "pipeline.cli", "check"], cwd=root, env=environment(), check=True)
    assert stages_run(dvc(root, "repro", "prepare")) == []
