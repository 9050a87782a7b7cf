"""Registered versions as the rule of promotion sees them: scored on the project's pairs by the code of stage evaluate."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from mlflow.entities.model_registry import ModelVersion
from numpy.typing import NDArray

from pipeline.data.tokenizing import Encoder, tokenize
from pipeline.data.tokens import digest, read_manifest, read_pairs, read_sts, set_names
from pipeline.encoder import GaussianEncoder
from pipeline.errors import UserError
from pipeline.files import SUMS, sha256_file
from pipeline.identity import SCORES, code_digest
from pipeline.params import EvaluateParams, ObjectiveParams, RegisterParams
from pipeline.places import Places
from pipeline.project import DEV_TOKENS, PREPARED, TEST_TOKENS, TOKENS
from pipeline.promotion import DEV, Judged
from pipeline.registry.loading import fetched
from pipeline.scoring import Model, encode_here, score_models

_STORES = (DEV_TOKENS.name, TEST_TOKENS.name)


class Judge:
    """Scores versions on the development and test pairs of a project; what was scored before is taken from the storage."""

    def __init__(
        self,
        *,
        register: RegisterParams,
        evaluate: EvaluateParams,
        objective: ObjectiveParams,
        root: Path,
        places: Places,
        tracking_uri: str,
    ) -> None:
        self.register, self.evaluate = register, evaluate
        self._objective_here = objective
        self._root, self._places, self._uri = root, places, tracking_uri
        self._judged: dict[int, Judged] = {}

    def __call__(self, version: ModelVersion) -> Judged:
        """A version's per-pair scores and its size.

        Raises:
            UserError: its files are damaged, or it is no model that this project can score.
        """
        number = int(version.version)
        if number not in self._judged:
            with fetched(version, self._uri) as folder:
                self._judged[number] = self._score(f"{version.name} version {number}", folder)
        return self._judged[number]

    def inputs(self) -> dict[str, Any]:
        """What a decision depends on besides the two models: pairs, scorer, parameters."""
        return {
            "pairs": {store: digest(self._root / TOKENS / store) for store in _STORES},
            "scorer": code_digest(SCORES),
            "evaluate": self.evaluate.model_dump(mode="json"),
            "register": self.register.model_dump(mode="json"),
        }

    def groups(self) -> Mapping[str, NDArray[Any]]:
        """Set → (n,) the premise of each pair: what is drawn together. The pairs of a graded set are drawn one by one."""
        dev, tests = self._root / DEV_TOKENS, self._root / TEST_TOKENS
        nli, sts = set_names(tests)
        return (
            {DEV: read_pairs(dev, DEV).premise}
            | {name: read_pairs(tests, name).premise for name in nli}
            | {name: np.arange(len(read_sts(tests, name).score)) for name in sts}
        )

    def _score(self, name: str, folder: Path) -> Judged:
        model = Model(name=name, folder=folder, objective=self._objective(name, folder))
        with self._tokens_for(folder) as root:
            (scores,) = score_models([model], root, self._places, encode_here)
        return Judged(
            digest=sha256_file(folder / SUMS),
            megabytes=sum(file.stat().st_size for file in folder.glob("*.safetensors")) / 1e6,
            tables=scores.tables,
        )

    def _objective(self, name: str, folder: Path) -> ObjectiveParams:
        """What it was trained with: how its pairs are scored hangs on that."""
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        try:
            told: dict[str, Any] = config["trial"]["objective"]
            return ObjectiveParams.model_validate(self._objective_here.model_dump() | told)
        except (KeyError, TypeError, ValueError):
            raise UserError(
                f"{name}: its config.json does not say with what objective it was trained, so it cannot be scored"
            ) from None

    @contextmanager
    def _tokens_for(self, folder: Path) -> Iterator[Path]:
        """A folder with data/tokens as this model reads text: the project's, unless it has another tokenizer."""
        encoder = GaussianEncoder.from_pretrained(folder)
        reads = Encoder(
            name=encoder.params.backbone,
            revision=encoder.params.revision,
            tokenizer=encoder.tokenizer,  # type: ignore[arg-type]
            max_length=encoder.params.max_length,
        )
        manifest = read_manifest(self._root / DEV_TOKENS)
        if (manifest.get("tokenizer_sha256"), manifest.get("max_length")) == (reads.digest(), reads.max_length):
            yield self._root
        else:
            with TemporaryDirectory(prefix="gausscse-") as temporary:
                tokenize(self._root / PREPARED, Path(temporary) / TOKENS, reads, stores=_STORES)
                yield Path(temporary)
