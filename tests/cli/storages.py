"""A small project, and a storage with trials, scores and objects of it and of others, for the tests of `gausscse gc`."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
import yaml

from pipeline.config.load import load_execution, load_params
from pipeline.config.paths import DEV_TOKENS, TOKENS
from pipeline.evaluation.encoding import encode_here
from pipeline.evaluation.score_cache import Model, score_models
from pipeline.identity.digests import BACKBONE, backbone_digest
from pipeline.storage.object_store import Storage
from pipeline.tracking.server import Tracker, open_tracker
from pipeline.training.trainer import train
from pipeline.trials.store import TrialStore
from pipeline.trials.trial import Outcome, Recipe, Trial
from pipeline.utils.atomic_io import write_json
from tests.copies import PLAIN, ROOT
from tests.outcomes import CPU
from tests.registry.servers import empty_database
from tests.stages.running import set_keys
from tests.store import random_stores

Later = Callable[..., None]


@dataclass(frozen=True)
class Project:
    """One point of the grid with one seed, and a second final seed."""

    root: Path
    storage_name: str

    @staticmethod
    def made(root: Path, backbone: Path, storage: str) -> Project:
        """A project in a folder."""
        held = yaml.safe_load(PLAIN.read_text(encoding="utf-8"))
        held["model"] |= {"backbone": str(backbone), "max_length": 24}
        held["tune"] |= {"learning_rates": [3e-3], "batch_sizes": [8], "seeds": [1]}
        held["train"] |= {"seeds": [2], "precision": "fp32", "eval_every": 2, "length_groups": 3, "epochs": 2}
        random_stores(root / TOKENS)
        (root / "params.yaml").write_text(yaml.safe_dump(held), encoding="utf-8")
        for name in ("execution.yaml", "dvc.yaml"):
            shutil.copyfile(ROOT / name, root / name)
        set_keys(root, {"cluster.storage": storage}, "execution.yaml")
        write_json(root / BACKBONE, {"digest": backbone_digest(str(backbone), None), "files": {}})
        # Two threads that wait for each other take many times as long where much else runs.
        torch.set_num_threads(1)
        (root / "mlflow.db").write_bytes(empty_database())
        return Project(root, storage)

    @property
    def storage(self) -> Storage:
        return Storage.open(self.storage_name, self.root)

    @property
    def tracker(self) -> Tracker:
        return open_tracker(load_execution(self.root / "execution.yaml").tracking, self.root)

    def trial(self, seed: int) -> Trial:
        """A trial of the project's recipe; seeds 1 and 2 are the project's own."""
        p = load_params(self.root / "params.yaml")
        return Recipe.of(p.model, p.objective, p.train, self.root).trial(3e-3, 8, seed)

    @contextmanager
    def store(self) -> Iterator[TrialStore]:
        with TrialStore.of_project(self.root, self.storage_name) as store:
            yield store

    def train(self, seed: int) -> Outcome:
        """Train a trial into the storage."""
        trial = self.trial(seed)
        with self.store() as store:
            folder = store.folder(trial)
            return store.result(trial, None).outcome or train(store.train_tokens, store.dev_tokens, folder, lambda _: None, CPU)

    def score(self, seed: int) -> None:
        """Score a trained trial into the storage."""
        trial = self.trial(seed)
        with self.store() as store:
            store.result(trial, None)
            model = Model(name="a model", folder=store.folder(trial).model, objective=trial.objective)
            assert list(score_models([model], self.root, store, encode_here, [DEV_TOKENS]))

    def finished(self, seed: int) -> Outcome | None:
        """The outcome that a new run would find."""
        trial = self.trial(seed)
        with self.store() as store:
            return store.result(trial, None).outcome

    def register(self, seed: int) -> None:
        """Name a trial by a version of a model, as stage register does."""
        client = self.tracker.client
        client.create_registered_model("gausscse")
        # With a relation head, its content is not that of the trial's model.
        tags = {"trial": self.trial(seed).digest, "content_digest": "e" * 64}
        client.create_model_version("gausscse", "file:///nowhere", tags=tags)

    def name(self, seed: int) -> str:
        return f"trials/{self.trial(seed).digest}"

    @property
    def files(self) -> set[str]:
        """Every file in the storage but the stamps."""
        return {name for name in self.storage.entries() if not name.startswith("uses/")}


def fates(said: str) -> dict[str, tuple[str, str]]:
    """The list that `gausscse gc` printed: name → what becomes of it, and why."""
    lines = re.findall(r"^  (kept|would go|removed) +[\d.,]+ MB  (\S+)  (.+)$", said, re.MULTILINE)
    assert len(lines) == sum(line.startswith("  ") for line in said.splitlines()), said
    return {name: (fate, why) for fate, name, why in lines}
