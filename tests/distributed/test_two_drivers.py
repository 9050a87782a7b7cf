"""Two drivers that train the same trial in a storage without locks, and not to the same numbers: their files are never mixed."""

from __future__ import annotations

import itertools
import json
import random
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pipeline.cluster import worker
from pipeline.models.model_dir import content_digest
from pipeline.storage.object_store import Storage
from pipeline.storage.sync import Mirror
from pipeline.trials import locks
from pipeline.trials.trial import LATEST, OUTCOME, PREVIOUS, Outcome, Trial
from pipeline.trials.trial_folder import BEST, TrialFolder
from pipeline.utils.atomic_io import check_sums, read_json, write_directory, write_json, write_sums
from tests.outcomes import CPU, assert_together, finished, rising_trial
from tests.store import random_stores
from tests.trial_of import worker_config

STEPS = 5


class Turns:
    """Lets threads make their calls to a storage one at a time, in the order of a schedule."""

    def __init__(self, order: Iterator[str], *names: str) -> None:
        self._order, self._left, self._now = order, set(names), next(order)
        self._changed = threading.Condition()
        self.errors: list[BaseException] = []

    def take(self, call: Callable[[], Any]) -> Any:
        """Make a call when it is the turn of this thread, or of the one whose checkpoints it writes."""
        me = threading.current_thread().name.partition("-")[0]
        if me not in self._left:
            return call()
        with self._changed:
            assert self._changed.wait_for(lambda: self._now == me, 60)
            try:
                return call()
            finally:
                self._next()

    def run(self, **bodies: Callable[[], object]) -> None:
        """Run a body in a thread for each name, and raise the first error."""

        def body(name: str) -> None:
            try:
                bodies[name]()
            except BaseException as error:
                self.errors.append(error)
            finally:
                with self._changed:
                    self._left.discard(name)
                    if self._now == name and self._left:
                        self._next()

        threads = [threading.Thread(target=body, args=(name,), name=name) for name in bodies]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.errors:
            raise self.errors[0]

    def _next(self) -> None:
        self._now = next(name for name in self._order if name in self._left)
        self._changed.notify_all()


@pytest.fixture
def in_turns(monkeypatch: pytest.MonkeyPatch) -> Callable[[Turns], None]:
    """Have every small call to a storage wait for its turn."""
    now: list[Turns] = []
    for name in ("read_bytes", "write", "remove"):
        real = getattr(Storage, name)

        def call(self: Storage, *args: object, real: Callable[..., Any] = real) -> Any:
            return now[-1].take(partial(real, self, *args)) if now else real(self, *args)

        monkeypatch.setattr(Storage, name, call)
    return now.append


def schedule(seed: int, *names: str) -> Iterator[str]:
    """Turns, some alone and some many in a row."""
    r = random.Random(seed)
    while True:
        name = r.choice(names)
        yield from itertools.repeat(name, r.choice((1, 1, 2, 3, 8, 20)))


def write_checkpoint(folder: Path, step: int, who: str) -> None:
    """As training: what was there before becomes the checkpoint before it, and every second step has a new best."""
    latest = folder / LATEST
    with write_directory(latest, keep=folder / PREVIOUS) as new:
        if step % 2 or not (latest / BEST).exists():
            (new / BEST).mkdir()
            write_json(new / BEST / "config.json", {"step": step, "dev_pr_auc": float(step), "weights": f"{who} {step}"})
            write_sums(new / BEST)
        else:
            shutil.copytree(latest / BEST, new / BEST)
        write_json(new / "state.json", {"step": step, "who": who, "best": read_json(new / BEST / "config.json")})
        write_sums(new)


def write_outcome(folder: Path, trial: Trial) -> None:
    shutil.copytree(folder / LATEST / BEST, folder / BEST)
    best = read_json(folder / BEST / "config.json")
    outcome = Outcome(
        digest=trial.digest,
        name=best["weights"],
        best_step=best["step"],
        score_name="dev_pr_auc",
        best_score=best["dev_pr_auc"],
        weights=content_digest(folder / BEST),
        total_steps=STEPS,
        rows=8,
        same_source_pairs=0,
        history=[],
    )
    write_json(folder / OUTCOME, {"outcome": asdict(outcome), "timing": {"seconds": 1.0, "workers": 1}})
    for name in (LATEST, PREVIOUS):
        shutil.rmtree(folder / name, ignore_errors=True)


def pulled(trial: Trial, mirror: Mirror) -> None:
    """Download what the storage has of a trial, and its model."""
    folder = TrialFolder(trial, mirror)
    folder.refresh()
    assert folder.model == mirror.folder / BEST


def assert_unmixed(folder: Path, trial: Trial) -> None:
    """The files that a reader sees of a trial belong together."""
    if (folder / OUTCOME).exists():
        outcome = finished(folder, trial)
        assert outcome is not None
        assert read_json(folder / BEST / "config.json")["weights"] == outcome.name
    for name in (LATEST, PREVIOUS):
        if (folder / name).exists():
            check_sums(folder / name)
            assert read_json(folder / name / BEST / "config.json") == read_json(folder / name / "state.json")["best"]


# The numbers of the first steps are equal, as on a processor: the same objects then belong to both drivers.
@pytest.mark.parametrize("equal", [0, 3, STEPS])
@pytest.mark.parametrize("seeds", [(2, 5), pytest.param(range(6, 18), marks=pytest.mark.faults)], ids=["few", "many"])
def test_files_of_two_drivers_are_never_mixed_at_any_point(
    tmp_path: Path, tiny_backbone: Path, in_turns: Callable[[Turns], None], seeds: Sequence[int], equal: int
) -> None:
    trial = rising_trial(tiny_backbone, random_stores(tmp_path))
    begun: list[int] = []
    for seed in seeds:
        storage = Storage.open(f"kept-{seed}", tmp_path)
        number = itertools.count()

        def fresh(seed: int = seed, storage: Storage = storage, number: Iterator[int] = number) -> Mirror:
            """The mirror of a process that has just started."""
            folder = tmp_path / f"{seed}-{next(number)}"
            folder.mkdir()
            return Mirror(folder, storage, "trials/x")

        def drive(who: str, dies: int, fresh: Callable[[], Mirror] = fresh) -> None:
            mirror = fresh()
            while True:
                pulled(trial, mirror)
                assert_unmixed(mirror.folder, trial)
                if finished(mirror.folder, trial) is not None:
                    return
                mirror.pull(PREVIOUS, LATEST)
                assert_unmixed(mirror.folder, trial)
                locks.tidy(mirror.folder)
                latest = mirror.folder / LATEST
                begun.append(read_json(latest / "state.json")["step"] if latest.exists() else 0)
                for step in range(begun[-1] + 1, STEPS + 1):
                    write_checkpoint(mirror.folder, step, who if step > equal else "both")
                    mirror.push(PREVIOUS, LATEST)
                    if step == dies:
                        break
                else:
                    write_outcome(mirror.folder, trial)
                    TrialFolder(trial, mirror).show()
                # Killed and started again; or done, and another process of this driver looks at the result.
                dies = 0
                mirror = fresh()

        def read(fresh: Callable[[], Mirror] = fresh) -> None:
            for _ in range(12):
                mirror = fresh()
                pulled(trial, mirror)
                mirror.pull(PREVIOUS, LATEST)
                assert_unmixed(mirror.folder, trial)

        turns = Turns(schedule(seed, "a", "b", "reader"), "a", "b", "reader")
        in_turns(turns)
        r = random.Random(seed)
        turns.run(a=partial(drive, "a", r.randint(1, 4)), b=partial(drive, "b", r.randint(1, 4)), reader=read)
        mirror = fresh()
        pulled(trial, mirror)
        assert finished(mirror.folder, trial) is not None
    # Restarts went on from checkpoints of either driver, and seldom from the beginning.
    assert sum(step > 0 for step in begun) > len(begun) / 5


@pytest.mark.faults
def test_two_workers_of_one_trial_leave_the_result_of_one(
    s3: str, tmp_path: Path, tiny_backbone: Path, in_turns: Callable[[Turns], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = random_stores(tmp_path)
    trial = rising_trial(tiny_backbone, stores)
    trial = trial.model_copy(update={"train": trial.train.model_copy(update={"eval_every": 4})})
    storage = Storage.open(s3.replace("/gausscse?", f"/{tmp_path.name}?"), tmp_path)
    # As on GPUs, which add up in another order each time, but easier to see.
    rates = {"a": 3e-3, "b": 1e-3}
    monkeypatch.setattr("pipeline.training.trainer.learning_rate_at", lambda *_: rates[threading.current_thread().name])

    def fresh(name: str) -> Mirror:
        (tmp_path / name).mkdir()
        return Mirror(tmp_path / name, storage, "trials/x")

    def drive(who: str) -> Outcome | None:
        mirror = fresh(who)
        worker._train(worker_config(trial, stores, search=who), TrialFolder(trial, mirror), CPU, first=True)
        # Its own driver then reads a result of one of the two.
        again = fresh(f"{who}-again")
        pulled(trial, again)
        return assert_together(again.folder, trial, stores[1])

    turns = Turns(schedule(3, "a", "b"), "a", "b")
    in_turns(turns)
    turns.run(a=partial(drive, "a"), b=partial(drive, "b"))
    outcomes = [json.dumps(read_json(tmp_path / name / OUTCOME)["outcome"]) for name in ("a", "b")]
    assert outcomes[0] != outcomes[1]
    last = fresh("last")
    pulled(trial, last)
    assert json.dumps(read_json(last.folder / OUTCOME)["outcome"]) in outcomes
    assert_together(last.folder, trial, stores[1])
