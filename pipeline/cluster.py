"""Ray: a session, trials as Tune over Train, encoding spread over workers. The only importer of ray.

Finished trials are kept in our own ledger, one folder a trial under `<storage>/trials`, named by the trial's digest: a trial
found there is not run again, whoever asks for it. Ray's own experiment state is never read back.
"""

from __future__ import annotations

import logging
import math
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
import ray.train
from ray.train import FailureConfig, RunConfig, ScalingConfig

from pipeline.errors import UserError
from pipeline.files import read_json, write_json
from pipeline.params import ClusterParams
from pipeline.progress import ProgressLog
from pipeline.project import DEV_TOKENS, TRAIN_TOKENS, home
from pipeline.trial import FAILURE, Outcome, Trial, finished

# Every process of a training run imports this module, three or four of them a trial: torch, transformers, ray.tune and mlflow are
# imported where they are used, which halves the time a trial takes to start.
if TYPE_CHECKING:
    from pipeline.gaussian import Gaussian
    from pipeline.tracking import Tracker
    from pipeline.training import Progress

# A trial's driver only waits for its workers; this reservation is what places it without taking a core from them.
_DRIVER_MEMORY = 64 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Absolute paths every node can see."""

    train_tokens: Path
    dev_tokens: Path
    storage: Path

    @staticmethod
    def of_project(root: Path, params: ClusterParams) -> Places:
        """The places of the project in a folder."""
        return Places(train_tokens=root / TRAIN_TOKENS, dev_tokens=root / DEV_TOKENS, storage=home(root) / params.storage)

    def folder(self, trial: Trial) -> Path:
        """The trial's folder in the ledger."""
        return self.storage / "trials" / trial.digest


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """What became of a trial: an outcome, or the reason there is none."""

    trial: Trial
    outcome: Outcome | None
    failure: str | None
    reused: bool


@dataclass(frozen=True, slots=True)
class Session:
    """A connection to Ray and what its nodes offer."""

    params: ClusterParams
    use_gpu: bool
    concurrent: int
    """Training runs that fit side by side."""
    dashboard: str = ""
    """host:port of Ray's pages (they ask for the token)."""


@contextmanager
def session(params: ClusterParams) -> Iterator[Session]:
    """Start a private Ray on this machine, or join the cluster of `cluster.address`; leave it at the end.

    Raises:
        UserError: the cluster cannot be reached, or lacks what the workers need for longer than the placement timeout.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if params.address is None:
        # Ray listens on every interface and runs what it is sent: a private cluster hears nobody without its secret, which its
        # processes alone know. (The mode, RAY_AUTH_MODE=token, is read when ray is imported: see stages/__init__.py.)
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
        # Nobody preempts a private machine, and every process less is seconds less a trial.
        os.environ.setdefault("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER", "0")
    # Ctrl-C must reach us: Tune's own handler would end the search early and call it done.
    os.environ["TUNE_DISABLE_SIGINT_HANDLER"] = "1"
    os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
    # Tune's tables, Train's chatter: the progress files say it better, and `watch` prints them.
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
    os.environ.setdefault("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", str(params.placement_timeout_s))
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    common: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False}
    ours = signal.getsignal(signal.SIGTERM)
    if params.address is None:
        cores = max(os.cpu_count() or 1, math.ceil(params.workers * params.cpus_per_worker))
        context = ray.init(
            num_cpus=cores,
            object_store_memory=params.object_store_mb * 2**20,
            dashboard_host="127.0.0.1",
            include_dashboard=True,
            **common,
        )
    else:
        try:
            context = ray.init(address=params.address, **common)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise UserError(
                f"execution.yaml: cluster.address: no Ray cluster answers at {params.address!r} ({_last_line(error)})"
            ) from None
    # Ray puts two handlers of its own in the place of ours; with them SIGTERM aborts the process, and nothing is put in order.
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, ours)
    try:
        yield _check_resources(params, context.dashboard_url or "")
    finally:
        ray.shutdown()


def _check_resources(params: ClusterParams, dashboard: str) -> Session:
    """Wait until the cluster could hold one group of workers; say what is missing if it never does."""
    deadline = time.monotonic() + params.placement_timeout_s
    while True:
        have: Mapping[str, float] = ray.cluster_resources()
        use_gpu = params.device == "cuda" or (params.device == "auto" and have.get("GPU", 0) >= params.workers)
        need = {"CPU": params.workers * params.cpus_per_worker}
        if use_gpu:
            need["GPU"] = float(params.workers)
        missing = {name: amount for name, amount in need.items() if have.get(name, 0) < amount}
        if not missing:
            concurrent = max(1, min(int(have[name] // amount) for name, amount in need.items()))
            return Session(params, use_gpu, concurrent, dashboard)
        if params.address is None or time.monotonic() > deadline:
            wanted = ", ".join(f"{amount:g} {name} (there are {have.get(name, 0):g})" for name, amount in missing.items())
            raise UserError(
                f"the cluster cannot place {params.workers} workers: it needs {wanted}; "
                "lower cluster.workers or add nodes (execution.yaml)"
            )
        time.sleep(2)


def run_trials(trials: list[Trial], places: Places, on: Session, tracker: Tracker, parent: str) -> list[TrialResult]:
    """Run the trials that the ledger does not hold, as many at once as the cluster has room for.

    A trial that fails is reported with its reason; the others go on.
    """
    from pipeline import tracking

    reused = {t.digest: o for t in trials if (o := finished(places.folder(t), t)) is not None}
    for trial in trials:
        if trial.digest in reused:
            print(f"{trial.name}: reused, trained before (best PR-AUC {reused[trial.digest].best_dev_pr_auc:.2f})")
            tracking.ensure_trial(tracker, parent, trial, reused[trial.digest])
    waiting = [t for t in trials if t.digest not in reused]
    failures = _run_tuner(waiting, places, on, tracker, parent) if waiting else {}
    results: list[TrialResult] = []
    for trial in trials:
        outcome = reused.get(trial.digest) or finished(places.folder(trial), trial)
        failure = None if outcome else failures.get(trial.digest, "did not finish")
        results.append(TrialResult(trial=trial, outcome=outcome, failure=failure, reused=trial.digest in reused))
    return results


def reuse_or_run(trials: list[Trial], places: Places, params: ClusterParams, tracker: Tracker, parent: str) -> list[TrialResult]:
    """`run_trials`, without starting Ray where the ledger holds every trial."""
    if all(finished(places.folder(trial), trial) is not None for trial in trials):
        return run_trials(trials, places, Session(params, False, 1), tracker, parent)
    with session(params) as on:
        return run_trials(trials, places, on, tracker, parent)


def _run_tuner(trials: list[Trial], places: Places, on: Session, tracker: Tracker, parent: str) -> dict[str, str]:
    """Run the trials through Ray Tune; returns the reason of each that failed, by digest."""
    from ray import tune

    from pipeline.watch import watched

    # A trial that failed is told once, in one line, by whoever asked for it.
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
    private = places.storage / "ray"
    private.mkdir(parents=True, exist_ok=True)
    private.chmod(0o700)
    for trial in trials:
        places.folder(trial).mkdir(parents=True, exist_ok=True)
        (places.folder(trial) / FAILURE).unlink(missing_ok=True)
    fixed = {
        "train_tokens": str(places.train_tokens),
        "dev_tokens": str(places.dev_tokens),
        "storage": str(places.storage),
        "cluster": on.params.model_dump(mode="json"),
        "use_gpu": on.use_gpu,
    }
    tuner = tune.Tuner(
        tune.with_resources(_drive_trial, {"memory": _DRIVER_MEMORY}),
        param_space={**fixed, "trial": tune.grid_search([t.model_dump_json() for t in trials])},
        tune_config=tune.TuneConfig(
            max_concurrent_trials=on.concurrent,
            trial_dirname_creator=lambda t: t.trial_id,
            # One driver process serves one trial after the other.
            reuse_actors=True,
        ),
        run_config=tune.RunConfig(name=f"grid-{os.getpid()}", storage_path=str(private), verbose=0),
    )
    with watched([(t, places.folder(t)) for t in trials], tracker, parent, f"trained by {on.params.workers} workers"):
        grid = tuner.fit()
    failures: dict[str, str] = {}
    for trial in trials:
        note = places.folder(trial) / FAILURE
        if note.is_file():
            failures[trial.digest] = read_json(note)["reason"]
    for result in grid:
        if result.error is not None and result.config:
            digest = Trial.model_validate_json(result.config["trial"]).digest
            failures.setdefault(digest, _last_line(result.error))
    return failures


def _drive_trial(config: dict[str, Any]) -> None:
    """Body of one Tune trial: a Ray Train run over `cluster.workers` workers."""
    from ray import tune
    from ray.train.torch import TorchConfig, TorchTrainer

    trial = Trial.model_validate_json(config["trial"])
    cluster = ClusterParams(**config["cluster"])
    resources = {"CPU": cluster.cpus_per_worker, **({"GPU": 1.0} if config["use_gpu"] else {})}
    trainer = TorchTrainer(
        _train_worker,
        train_loop_config=config,
        torch_config=TorchConfig(backend="nccl" if config["use_gpu"] else "gloo"),
        scaling_config=ScalingConfig(num_workers=cluster.workers, use_gpu=config["use_gpu"], resources_per_worker=resources),
        run_config=RunConfig(
            name=f"train-{trial.digest[:16]}",
            storage_path=str(Path(config["storage"]) / "ray"),
            failure_config=FailureConfig(max_failures=cluster.max_failures, controller_failure_limit=0),
        ),
    )
    trainer.fit()
    outcome = finished(Path(config["storage"]) / "trials" / trial.digest, trial)
    tune.report({"dev_pr_auc": outcome.best_dev_pr_auc if outcome else float("nan")})


def _train_worker(config: dict[str, Any]) -> None:
    """Body of one Train worker."""
    import torch

    from pipeline.training import train

    trial = Trial.model_validate_json(config["trial"])
    cluster = ClusterParams(**config["cluster"])
    folder = Path(config["storage"]) / "trials" / trial.digest
    if (folder / FAILURE).is_file():
        # The attempt before this one met something that no restart mends.
        return
    # Ray sets OMP_NUM_THREADS=1 whatever was reserved.
    torch.set_num_threads(max(1, int(cluster.cpus_per_worker)))
    device = torch.device("cuda", torch.cuda.current_device()) if config["use_gpu"] else torch.device("cpu")
    first = ray.train.get_context().get_world_rank() == 0
    log = ProgressLog(trial.name, folder)

    def report(progress: Progress) -> None:
        if first:
            log(progress)

    try:
        train(trial, Path(config["train_tokens"]), Path(config["dev_tokens"]), folder, report, device)
    except UserError as error:
        if first:
            write_json(folder / FAILURE, {"reason": str(error)})
        # Raised all the same, so that Ray ends the whole group: perhaps only this worker met it, and the others wait for it.
        raise


def encode_stores(model: Path, stores: list[Path], on: Session) -> list[Gaussian]:
    """Encode every sentence of each token store once, spread over `cluster.workers` tasks; float32.

    Returns:
        for each store a Gaussian of (S, D) on the CPU.
    """
    import torch

    from pipeline.data.tokens import open_store
    from pipeline.evaluation import reassemble
    from pipeline.gaussian import Gaussian

    resources = {"num_cpus": on.params.cpus_per_worker, "num_gpus": 1 if on.use_gpu else 0}
    task = ray.remote(**resources)(_encode_task)
    workers = on.params.workers
    pending = [
        task.remote(str(model), [str(s) for s in stores], share, workers, int(on.params.cpus_per_worker), on.use_gpu)
        for share in range(workers)
    ]
    shares: list[list[tuple[Any, Any]]] = ray.get(pending)
    return [
        reassemble([Gaussian(torch.tensor(part[k][0]), torch.tensor(part[k][1])) for part in shares], open_store(store))
        for k, store in enumerate(stores)
    ]


def _encode_task(model: str, stores: list[str], share: int, shares: int, threads: int, use_gpu: bool) -> list[tuple[Any, Any]]:
    import torch

    from pipeline.data.tokens import open_store
    from pipeline.encoder import GaussianEncoder
    from pipeline.evaluation import encode_share

    torch.set_num_threads(max(1, threads))
    encoder = GaussianEncoder.from_pretrained(model).to("cuda" if use_gpu else "cpu")
    parts = [encode_share(encoder, open_store(Path(store)), share, shares) for store in stores]
    return [(part.mean.cpu().numpy(), part.log_var.cpu().numpy()) for part in parts]


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # Our own errors speak for themselves.
    return lines[-1].removeprefix("pipeline.errors.UserError: ") if lines else type(error).__name__


def warn_failures(results: list[TrialResult]) -> None:
    """One line on stderr for each trial without an outcome."""
    for result in results:
        if result.failure:
            print(f"warning: trial {result.trial.name} failed: {result.failure}", file=sys.stderr)
