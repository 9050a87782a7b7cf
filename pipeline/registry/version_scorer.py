"""Scores registered versions for the promotion rule, on the project's pairs and with the code of stage evaluate.

What needs torch is imported where a version is scored: a decision that the history already has needs no scores.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
from mlflow.entities.model_registry import ModelVersion
from numpy.typing import NDArray

from pipeline.config.objectives import ObjectiveParams, own_keys
from pipeline.config.params import EvaluateParams, RegisterParams
from pipeline.config.paths import DEV_TOKENS, PREPARED, PROMOTION_TOKENS, TEST_TOKENS, TOKENS
from pipeline.data.token_store import digest
from pipeline.evaluation.set_kind import Tables, kinds_in
from pipeline.identity.digests import scorer_digest
from pipeline.registry.fetching import ENCODER, fetched
from pipeline.trials.store import TrialStore
from pipeline.utils.errors import UserError

# Scored in two steps: stage evaluate has already scored the seeds on the first two stores, and it never sees the promotion part.
_SCORED = ((DEV_TOKENS, TEST_TOKENS), (PROMOTION_TOKENS,))


@dataclass(frozen=True, slots=True)
class VersionScorer:
    """Scores versions on both parts of the development set and on the test sets; earlier scores are reused from the storage."""

    register: RegisterParams
    evaluate: EvaluateParams
    root: Path
    store: TrialStore
    tracking_uri: str
    _scored: dict[int, Tables] = field(default_factory=dict[int, Tables], init=False)

    def __call__(self, version: ModelVersion) -> Tables:
        """A version's per-row scores of each set.

        Raises:
            UserError: its files are damaged, or this project cannot score such a model.
        """
        number = int(version.version)
        if number not in self._scored:
            with fetched(version, self.tracking_uri) as model:
                self._scored[number] = self._score(f"{version.name} version {number}", model / ENCODER)
        return self._scored[number]

    def inputs(self) -> dict[str, Any]:
        """Everything a decision depends on besides the two models: pairs, scorer, parameters."""
        return {
            "pairs": {store.name: digest(self.root / store) for stores in _SCORED for store in stores},
            "scorer": scorer_digest(),
            "evaluate": self.evaluate.model_dump(mode="json"),
            "register": self.register.model_dump(mode="json"),
        }

    def groups(self) -> Mapping[str, NDArray[Any]]:
        """Set → (n,) what a row is drawn with in the bootstrap: its premise, its document, its whole sentence, or nothing."""
        stores = [self.root / store for part in _SCORED for store in part]
        return {name: kind.groups(store, name) for store in stores for kind, name in kinds_in(store)}

    def _score(self, name: str, folder: Path) -> Tables:
        from pipeline.evaluation.encoding import encode_here
        from pipeline.evaluation.score_cache import Model, score_models

        objective = self._objective(name, folder)
        tables: dict[str, pa.Table] = {}
        with self._tokens_for(folder) as root:
            for stores in _SCORED:
                label = f"{name} on {' and '.join(store.name for store in stores)}"
                model = Model(name=label, folder=folder, objective=objective)
                search = self.evaluate.transfer_search
                (scores,) = score_models([model], root, self.store, encode_here, stores, search=search)
                tables |= scores.tables
        return tables

    def _objective(self, name: str, folder: Path) -> ObjectiveParams:
        """The objective that a model was trained with, which decides how its pairs are scored."""
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        try:
            return own_keys(config["trial"]["objective"])
        except (KeyError, TypeError, ValueError):
            raise UserError(
                f"{name}: its config.json does not say with what objective it was trained, so it cannot be scored"
            ) from None

    @contextmanager
    def _tokens_for(self, folder: Path) -> Iterator[Path]:
        """A folder whose data/tokens fit this model: the project's own, or a temporary one if the model's tokenizer differs."""
        from pipeline.data.sentence_tokenizer import Encoder
        from pipeline.data.tokenizing import tokenize
        from pipeline.models.encoder import GaussianEncoder

        reads = Encoder.of(GaussianEncoder.from_pretrained(folder))
        if reads.reads(self.root / DEV_TOKENS):
            yield self.root
        else:
            with TemporaryDirectory(prefix="gausscse-") as temporary:
                tokenize(
                    self.root / PREPARED,
                    Path(temporary) / TOKENS,
                    reads,
                    stores=[store.name for part in _SCORED for store in part],
                )
                yield Path(temporary)
