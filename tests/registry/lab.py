"""A small project whose models are registered: data of the grammar, token stores, encoders that were trained and others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
import yaml

from pipeline.config.load import load_execution, load_params
from pipeline.config.params import ModelParams, Params
from pipeline.config.paths import DEV_TOKENS, PREPARED, TOKENS, TRAIN_TOKENS
from pipeline.data.sentence_tokenizer import Encoder
from pipeline.data.token_store import digest
from pipeline.data.tokenizing import tokenize
from pipeline.families.prepare import prepare
from pipeline.models.backbone import load_tokenizer, resolve
from pipeline.models.encoder import GaussianEncoder
from pipeline.registry.champions import Registration, register_model
from pipeline.registry.version_scorer import VersionScorer
from pipeline.tracking.server import Tracker
from pipeline.training.trainer import train
from pipeline.trials.store import TrialStore
from pipeline.trials.trial import Trial
from pipeline.trials.trial_folder import BEST
from tests.conftest import ROOT
from tests.tiny import make_tiny_backbone
from tests.trial_of import folder_at, plain_trial


@dataclass(frozen=True)
class Lab:
    """A project folder, and models of it."""

    root: Path
    params: Params
    _models: dict[str, Path] = field(default_factory=dict)

    @staticmethod
    def made(root: Path) -> Lab:
        """Prepared and tokenized; nothing is trained."""
        backbone = make_tiny_backbone(root / "backbone", layers=1)
        held = yaml.safe_load((ROOT / "tests/plain.yaml").read_text(encoding="utf-8"))
        held["data"] |= {
            "root": str(ROOT / "pipeline/data/lexicon/words.json"),
            "generated": {"train": 600, "dev": 300, "test": 150},
        }
        held["model"] |= {"backbone": str(backbone), "max_length": 32}
        held["register"] |= {"resamples": 200, "max_test_drop": 100.0, "max_direction_drop": 100.0}
        (root / "params.yaml").write_text(yaml.safe_dump(held), encoding="utf-8")
        (root / "execution.yaml").write_text((ROOT / "execution.yaml").read_text(encoding="utf-8"), encoding="utf-8")
        params = load_params(root / "params.yaml")
        prepare(params.data, root / PREPARED)
        model = params.model.encoder
        tokenizer = load_tokenizer(resolve(model.backbone, model.revision))
        reads = Encoder(name=model.backbone, revision=model.revision, tokenizer=tokenizer, max_length=model.max_length)
        tokenize(root / PREPARED, root / TOKENS, reads)
        return Lab(root, params)

    def trial(self, seed: int, model: ModelParams | None = None) -> Trial:
        """A point of the grid."""
        trial = plain_trial(2e-3, 32, seed, precision="fp32", epochs=20, eval_every=10_000)
        stores = {"train_tokens": digest(self.root / TRAIN_TOKENS), "dev_tokens": digest(self.root / DEV_TOKENS)}
        return trial.model_copy(update={"model": model or self.params.model.encoder, **stores})

    def untrained(self, seed: int, model: ModelParams | None = None) -> Path:
        """An encoder whose heads are drawn by a seed."""
        trial = self.trial(seed, model)

        def make(folder: Path) -> None:
            able, similarity = [*trial.objective.capabilities], trial.objective.gaussian_similarity or "cosine"
            notes = {"trial": trial.model_dump(mode="json"), "capabilities": able, "similarity": similarity}
            GaussianEncoder.from_backbone(trial.model, seed).save_pretrained(folder, **notes)

        return self._kept(f"untrained-{seed}-{trial.digest[:8]}", make)

    def trained(self, seed: int) -> Path:
        """An encoder that beats any untrained one beyond doubt."""

        def make(folder: Path) -> None:
            work = folder.with_name(f"{folder.name}-run")
            work.mkdir()
            stores = self.root / TRAIN_TOKENS, self.root / DEV_TOKENS
            train(*stores, folder_at(self.trial(seed), work), lambda _: None, torch.device("cpu"))
            (work / BEST).rename(folder)

        return self._kept(f"trained-{seed}", make)

    def _kept(self, name: str, make: Callable[[Path], object]) -> Path:
        folder = self.root / "made" / name
        if not folder.exists():
            folder.parent.mkdir(exist_ok=True)
            make(folder)
        return folder

    @contextmanager
    def scorer(self, tracker: Tracker) -> Iterator[VersionScorer]:
        """What scores versions, as the stage and the commands have it."""
        with TrialStore.of_project(self.root, load_execution(ROOT / "execution.yaml").cluster.storage) as places:
            yield VersionScorer(
                register=self.params.register_,
                evaluate=self.params.evaluate,
                root=self.root,
                store=places,
                tracking_uri=tracker.uri,
            )

    def register(self, tracker: Tracker, name: str, encoder: Path, run_id: str, score: float = 50.0, **tags: str) -> Registration:
        """Register an encoder under a name, held against its champion by the rule."""
        with self.scorer(tracker) as scorer:
            return register_model(tracker, name, encoder, run_id, tags, score, scorer)
