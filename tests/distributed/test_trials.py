"""Trials through a real Ray: Tune over Train, a killed worker, a trial that cannot be trained, and what MLflow is told."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, redirect_stderr
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray
import torch
from ray._private.worker import get_dashboard_url

from pipeline.cluster import capacity
from pipeline.cluster.bulk import encode_parts
from pipeline.cluster.encoding import compute_where_encoded, encode_stores
from pipeline.cluster.grid_search import run_trials
from pipeline.cluster.session import Session, _unusable_gpu
from pipeline.cluster.session import session as open_session
from pipeline.config.job_inputs import INPUTS_VARIABLE, Inputs, installed
from pipeline.config.load import load_execution, load_params
from pipeline.config.paths import DEV_TOKENS, TRAIN_TOKENS
from pipeline.data.token_store import open_store
from pipeline.evaluation.encoding import Encode
from pipeline.families.pairs.relation_store import relation_for
from pipeline.identity.digests import library_versions
from pipeline.inference.bulk_plan import planned
from pipeline.models.encoder import GaussianEncoder
from pipeline.models.relation_head import read_relation
from pipeline.models.token_head import TokenProjection
from pipeline.tracking import mlflow_runs, server
from pipeline.tracking.server import Tracker
from pipeline.trials.recipe_run import choose
from pipeline.trials.store import TrialStore
from pipeline.trials.trial import Trial, TrialResult
from pipeline.utils.errors import RunError, UserError
from tests.conftest import PLAIN, ROOT
from tests.store import make_store, random_stores
from tests.trial_of import tiny_encoder, trial_on

pytestmark = pytest.mark.faults
P = load_params(PLAIN)
Undisturbed = tuple[TrialStore, list[TrialResult], str]
PRICE = 2.5

SAID = io.StringIO()
"""The output when the session below began, and when it trained."""


@pytest.fixture(scope="module")
def ray_session() -> Iterator[Session]:
    """Ray believes that this machine has a GPU, which torch here cannot use, and the workers may use four cores."""
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setenv("RAY_OVERRIDE_RESOURCES", '{"GPU": 1}')
        patch.setenv("OMP_NUM_THREADS", "4")
        if torch.cuda.is_available():
            pytest.skip("there is a GPU that can be used")
        with redirect_stderr(SAID):
            cluster = load_execution(ROOT / "execution.yaml").cluster.model_copy(update={"workers": 2})
            on = stack.enter_context(open_session(cluster))
        # What tests start is not meant to have them.
        patch.setenv("OMP_NUM_THREADS", "1")
        yield on


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return random_stores(tmp_path_factory.mktemp("stores"), sentences=400, triplets=820, alone=20)


@pytest.fixture(scope="module")
def tracker(tmp_path_factory: pytest.TempPathFactory) -> Tracker:
    return server.open_tracker(load_execution(ROOT / "execution.yaml").tracking, tmp_path_factory.mktemp("mlflow"))


def make_trial(backbone: Path, stores: tuple[Path, Path], rate: float) -> Trial:
    return trial_on(backbone, stores, rate, eval_every=20, epochs=2)


def places(stores: tuple[Path, Path], storage: Path) -> TrialStore:
    return TrialStore(train_tokens=stores[0], dev_tokens=stores[1], storage=storage)


@pytest.fixture(scope="module")
def undisturbed(
    ray_session: Session,
    stores: tuple[Path, Path],
    tracker: Tracker,
    tiny_backbone: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Undisturbed:
    """A good trial and one whose learning rate is absurd."""
    here = places(stores, tmp_path_factory.mktemp("storage"))
    parent = mlflow_runs.pipeline_run(tracker, "undisturbed", {}, {})
    trials = [make_trial(tiny_backbone, stores, rate) for rate in (1e-3, 1e30)]
    with mlflow_runs.stage_of(tracker, parent):
        paid = replace(ray_session, params=ray_session.params.model_copy(update={"price_per_hour": PRICE}))
        return here, run_trials(trials, here, lambda: paid, tracker, parent), parent


def test_a_trial_that_fails_is_reported_and_the_others_go_on(undisturbed: Undisturbed) -> None:
    here, (good, bad), _ = undisturbed
    assert good.outcome is not None
    assert good.outcome.total_steps == 200
    assert bad.outcome is None
    assert bad.failure is not None
    assert "the loss is nan" in bad.failure or "not finite" in bad.failure
    # Ray writes nothing into the storage.
    assert {entry.name for entry in here.storage.iterdir()} == {"trials", "uses"}
    with pytest.raises(Exception, match="first failure was"):
        choose([bad])


def refused() -> Session:
    raise AssertionError("Ray was started")


def test_stores_are_encoded_the_same_in_this_process_and_by_ray(
    undisturbed: Undisturbed, stores: tuple[Path, Path], ray_session: Session
) -> None:
    here, (good, _), _ = undisturbed
    model, params = here.folder(good.trial).model, ray_session.params

    project = TokenProjection(32, 8)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        in_process = encode_stores(model, stores, params, refused, project=project)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    by_ray = encode_stores(model, stores, params.model_copy(update={"address": "auto"}), lambda: ray_session, project=project)
    for a, b, store in zip(in_process, by_ray, stores, strict=True):
        assert len(a) == len(open_store(store))
        torch.testing.assert_close(a.mean, b.mean)
        torch.testing.assert_close(a.log_var, b.log_var)
        one, other = (x.tokens.packed() for x in (a, b) if x.tokens is not None)
        assert one.length.tolist() == open_store(store).lengths.tolist() == other.length.tolist()
        # Batches differ, so a number may be rounded the other way.
        assert (one.table.int() - other.table.int()).abs().max() <= 1 < one.table.int().abs().max()


def test_on_a_cluster_a_relation_head_is_fitted_by_a_task_that_may_die(
    ray_session: Session, tiny_backbone: Path, tmp_path: Path
) -> None:
    """The driver has no encodings; the task is killed when it has them, and then fits the head that this process would fit."""
    r = np.random.default_rng(0)
    sentences = [[2, *r.integers(5, 30, r.integers(1, 11)).tolist(), 3] for _ in range(300)]
    pairs = [(int(a), int(b), k % 3) for k, (a, b) in enumerate(r.integers(0, 300, (600, 2)))]
    for store, name in ((TRAIN_TOKENS, "pairs"), (DEV_TOKENS, "dev")):
        make_store(tmp_path / store, sentences, pairs={name: pairs})
    tiny_encoder(tiny_backbone, 1).save_pretrained(tmp_path / "model")
    params = ray_session.params.model_copy(update={"address": "auto", "storage": str(tmp_path / "shared")})
    there = partial(compute_where_encoded, params=params, session=lambda: ray_session)
    seen = tmp_path / "seen"

    def watched(what: Callable[[Path, Path, Encode], Any], model: Path, store: Path, /) -> Any:
        def killed_once(model: Path, store: Path, encode: Encode) -> Any:
            def killed(*where: Any, **how: Any) -> Any:
                encoded = encode(*where, **how)
                first = not seen.exists()
                with seen.open("a") as file:
                    file.write(f"{os.getpid()}\n")
                if first:
                    os.kill(os.getpid(), signal.SIGKILL)
                return encoded

            return what(model, store, killed)

        return there(killed_once, model, store)

    def here(what: Callable[[Path, Path, Encode], Any], model: Path, store: Path, /) -> Any:
        def encode(*where: Any, **how: Any) -> Any:
            # As many shares as by Ray, and one thread for each and for the fit.
            torch.set_num_threads(params.workers * ray_session.concurrent)
            encoded = encode_stores(*where, params=ray_session.params, session=refused, **how)
            torch.set_num_threads(1)
            return encoded

        return what(model, store, encode)

    def fitted(name: str, compute: Any) -> tuple[Any, Any]:
        trials = TrialStore(train_tokens=tmp_path, dev_tokens=tmp_path, storage=tmp_path / name)
        kept = read_relation(relation_for(name, tmp_path / "model", "kl", P.relation, 1, tmp_path, trials, compute))
        assert kept is not None
        return dict(kept.head.state_dict()), kept.scale

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        (weights, scale), (expected, expected_scale) = fitted("there", watched), fitted("here", here)
    finally:
        torch.set_num_threads(before)
    # Killed once, and the development set.
    died, fit, scaled = map(int, seen.read_text().splitlines())
    assert os.getpid() not in {died, fit, scaled}
    assert died != fit
    torch.testing.assert_close(weights, expected, rtol=0, atol=0)
    assert scale == expected_scale

    def fails(model: Path, store: Path, encode: Encode) -> None:
        raise UserError("these are all of one kind")

    def dies(model: Path, store: Path, encode: Encode) -> None:
        with seen.open("a") as file:
            file.write("died\n")
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(UserError, match=r"^these are all of one kind$"):
        there(fails, tmp_path / "model", tmp_path / DEV_TOKENS)
    with pytest.raises(UserError, match=rf"^{tmp_path}/model: .*died") as error:
        there(dies, tmp_path / "model", tmp_path / DEV_TOKENS)
    assert "\n" not in str(error.value)
    assert seen.read_text().count("died") == 1 + params.max_failures


@pytest.mark.parametrize(
    ("device", "gpus", "where"),
    [
        *(("auto", 0, "here, no GPU"), ("cpu", 2, "here, no GPU"), ("auto", 1, "here, GPU")),
        *(("auto", 2, "Ray"), ("cuda", 0, "Ray")),
    ],
)
def test_ray_is_started_only_for_what_this_process_cannot_do(
    device: Literal["auto", "cpu", "cuda"], gpus: int, where: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Decided(Exception):
        pass

    def by_ray() -> Session:
        raise Decided("Ray")

    def here(model: Path, stores: Sequence[Path], *, gpu: bool, **_: object) -> None:
        raise Decided("here, GPU" if gpu else "here, no GPU")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    # A driver may count GPUs that torch cannot use.
    monkeypatch.setattr(torch.cuda, "device_count", lambda: max(gpus, 1))
    monkeypatch.setattr("pipeline.cluster.encoding.encode_here", here)
    params = load_execution(ROOT / "execution.yaml").cluster.model_copy(update={"device": device})
    with pytest.raises(Decided, match=f"^{where}$"):
        encode_stores(tmp_path, [], params, by_ray)


def test_mlflow_has_every_step_once_and_no_run_is_left_running(
    undisturbed: Undisturbed, tracker: Tracker, ray_session: Session
) -> None:
    _, (good, bad), parent = undisturbed
    runs = tracker.client.search_runs([tracker.experiment_id], f"tags.`{mlflow_runs.PARENT_TAG}` = '{parent}'")
    by_trial = {run.data.tags[mlflow_runs.TRIAL_TAG]: run for run in runs}
    assert {digest: run.info.status for digest, run in by_trial.items()} == {
        good.trial.digest: "FINISHED",
        bad.trial.digest: "FAILED",
    }
    assert by_trial[bad.trial.digest].data.tags["gausscse.failure"] == bad.failure
    run = by_trial[good.trial.digest]
    versions = ", ".join(f"{name} {version}" for name, version in sorted(library_versions().items()))
    # The four cores are for two workers of each trial, and there are two trials if there is room for both at a time.
    threads = " of 2 threads" if ray_session.concurrent == 1 else ""
    assert run.data.tags["gausscse.how"] == f"trained by 2 workers{threads} on cpu in fp32 with {versions}"
    assert good.outcome is not None
    history = tracker.client.get_metric_history(run.info.run_id, "loss")
    assert [m.step for m in history] == [entry["step"] for entry in good.outcome.history]
    assert run.data.metrics["best_dev_pr_auc"] == good.outcome.best_score
    assert run.data.params["learning_rate"] == "0.001"
    # Of 8 rows each worker has 4. In a step it receives the other 4 rows' entailment, contradiction and premise (mean and
    # log-variance, 32 dimensions, 4 bytes), the gradients of its own as much, and a number for each entailment and contradiction.
    assert run.data.metrics["gathered_mb"] == (2 * 4 * 3 * 2 * 32 * 4 + 2 * 4 * 4) / 1e6
    # The pipeline has the time of the one machine, of which each trial has a part.
    whole, *parts = [tracker.client.get_run(parent), *runs]
    hours = [part.data.metrics.get("machine_hours", 0.0) for part in parts]
    assert 0 < whole.data.metrics["machine_hours"] == pytest.approx(sum(hours))
    assert whole.data.metrics["price"] == pytest.approx(PRICE * sum(hours))


def test_an_unusable_gpu_is_told_and_cuda_is_refused_at_once(ray_session: Session) -> None:
    assert [node["GPU"] for node in capacity.nodes()] == [1.0]
    assert (ray_session.device, ray_session.params.workers) == ("cpu", 2)
    why = r"torch finds no CUDA on node [\d.]+; install a CUDA build of torch there, or set"
    assert re.match(rf"warning: 1 GPU not used: {why} cluster\.device: cpu \(execution\.yaml\)\n", SAID.getvalue())
    cuda = ray_session.params.model_copy(update={"device": "cuda"})
    with pytest.raises(UserError, match=rf"^execution\.yaml: cluster\.device: got 'cuda', but {why} cpu$"):
        capacity.on_device(cuda, capacity.nodes(), _unusable_gpu(cuda), may_grow=False)


@pytest.fixture
def another_torch(ray_session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Session, str]:
    """A session that has begun on this machine alone and whose work is then sent as from a machine with another torch; and what
    a node says that joins later.
    """
    versions = installed()
    monkeypatch.setenv(INPUTS_VARIABLE, Inputs(objects={}, commit="a", versions={**versions, "torch": "1.0.0"}).model_dump_json())
    params = ray_session.params.model_copy(update={"address": "auto", "storage": str(tmp_path / "storage")})
    ours = re.escape(versions["torch"])
    said = rf"^node [\d.]+ of the cluster has torch {ours}, this project was sent with 1\.0\.0; use one image"
    return replace(ray_session, params=params), said


def test_a_worker_refuses_a_late_node_with_other_versions(
    another_torch: tuple[Session, str], stores: tuple[Path, Path], tracker: Tracker, tiny_backbone: Path, tmp_path: Path
) -> None:
    on, said = another_torch
    here, trial = places(stores, tmp_path / "storage"), make_trial(tiny_backbone, stores, 1e-3)
    with pytest.raises(RunError, match=f"{said}.* is kept"):
        run_trials([trial], here, lambda: on, tracker, mlflow_runs.pipeline_run(tracker, "another torch", {}, {}))
    # The node is to blame, not the trial.
    assert here.folder(trial).failure() is None


def test_what_encodes_refuses_such_a_node_as_well(
    another_torch: tuple[Session, str], stores: tuple[Path, Path], tiny_backbone: Path, tmp_path: Path
) -> None:
    on, said = another_torch
    model, out = tmp_path / "model", tmp_path / "encoded"
    encoder = GaussianEncoder.from_backbone(load_params(PLAIN).model.model_copy(update={"backbone": str(tiny_backbone)}), 1)
    encoder.save_pretrained(model)
    with pytest.raises(UserError, match=said):
        encode_stores(model, stores, on.params, lambda: on)
    pq.write_table(pa.table({"sentence": ["A dog runs."]}), tmp_path / "corpus.parquet")
    plan = planned(str(tmp_path / "corpus.parquet"), "sentence", [], "a", encoder.dim)
    with pytest.raises(UserError, match=said):
        list(encode_parts(model, str(tmp_path / "corpus.parquet"), plan, plan.parts, str(out), on))
    assert not out.exists()


def test_a_private_ray_hears_nobody_without_its_token(ray_session: Session) -> None:
    assert (get_dashboard_url() or "").startswith("127.0.0.1:")
    answers: list[int] = []
    for token in (None, "0" * 64, os.environ["RAY_AUTH_TOKEN"]):
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        request = urllib.request.Request(f"http://{get_dashboard_url()}/api/jobs/", headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                answers.append(answer.status)
        except urllib.error.HTTPError as error:
            answers.append(error.code)
    assert answers == [401, 403, 200]

    address = ray.get_runtime_context().gcs_address
    code = "import ray, sys; ray.init(sys.argv[1], logging_level='ERROR', log_to_driver=False); print(len(ray.nodes()))"
    said: list[str] = []
    for changes in ({"RAY_AUTH_MODE": "disabled"}, {"RAY_AUTH_TOKEN": "0" * 64}, {}):
        # One try instead of twenty; and the address 127.0.0.1 is not turned into another one.
        env = {**os.environ, "RAY_NUM_REDIS_GET_RETRIES": "1", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", **changes}
        done = subprocess.run([sys.executable, "-c", code, address], env=env, capture_output=True, text=True)
        said.append(done.stdout or done.stderr.splitlines()[-1])
    refused = f"ConnectionError: Failed to connect to Ray cluster at {address}"
    assert said == [refused, refused, "1\n"]


def test_the_processes_that_only_watch_a_run_do_not_load_torch() -> None:
    # What a trial's driver imports, and what Ray Train's controller unpickles.
    code = """
import sys
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
from pipeline.cluster import training_run, worker_group
print("torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr
