"""Registered versions as the rule of promotion sees them: scored on the project's pairs by the code of stage evaluate."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
from mlflow.entities.model_registry import ModelVersion
from numpy.typing import NDArray

from pipeline.data.schema import DEV, PROMOTION
from pipeline.data.tokenizing import Encoder, tokenize
from pipeline.data.tokens import digest, read_manifest, read_pairs, read_sts, set_names
from pipeline.encoder import GaussianEncoder
from pipeline.errors import UserError
from pipeline.files import SUMS, sha256_file
from pipeline.identity import SCORES, code_digest
from pipeline.model_folder import weights_digest
from pipeline.params import EvaluateParams, ObjectiveParams, RegisterParams
from pipeline.places import Places
from pipeline.project import DEV_TOKENS, PREPARED, PROMOTION_TOKENS, TEST_TOKENS, TOKENS
from pipeline.promotion import Judged
from pipeline.registry.loading import fetched
from pipeline.registry.versions import WEIGHTS_TAG
from pipeline.scoring import Model, encode_here, score_models

# Scored separately: stage evaluate has already scored the seeds on the first two, and never sees the promotion part.
_SCORED = ((DEV_TOKENS, TEST_TOKENS), (PROMOTION_TOKENS,))


class Judge:
    """Scores versions on both development parts and the test sets; earlier scores are taken from the storage."""

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

    def weights(self, version: ModelVersion) -> str:
        """`weights_digest` of a version: its tag, or from its files if it was registered before the tag existed.

        Raises:
            UserError: its files are missing or damaged.
        """
        if WEIGHTS_TAG in version.tags:
            return version.tags[WEIGHTS_TAG]
        with fetched(version, self._uri) as folder:
            return weights_digest(folder)

    def inputs(self) -> dict[str, Any]:
        """What a decision depends on besides the two models: pairs, scorer, parameters."""
        return {
            "pairs": {store.name: digest(self._root / store) for stores in _SCORED for store in stores},
            "scorer": code_digest(SCORES),
            "evaluate": self.evaluate.model_dump(mode="json"),
            "register": self.register.model_dump(mode="json"),
        }

    def groups(self) -> Mapping[str, NDArray[Any]]:
        """Set → (n,) the premise of each pair: what is drawn together. The pairs of a graded set are drawn one by one."""
        tests = self._root / TEST_TOKENS
        nli, sts = set_names(tests)
        return (
            {name: read_pairs(self._root / TOKENS / name, name).premise for name in (DEV, PROMOTION)}
            | {name: read_pairs(tests, name).premise for name in nli}
            | {name: np.arange(len(read_sts(tests, name).score)) for name in sts}
        )

    def _score(self, name: str, folder: Path) -> Judged:
        objective = self._objective(name, folder)
        tables: dict[str, pa.Table] = {}
        with self._tokens_for(folder) as root:
            for stores in _SCORED:
                said = f"{name} on {' and '.join(store.name for store in stores)}"
                model = Model(name=said, folder=folder, objective=objective)
                (scores,) = score_models([model], root, self._places, encode_here, stores)
                tables |= scores.tables
        return Judged(
            digest=sha256_file(folder / SUMS),
            weights=weights_digest(folder),
            megabytes=sum(file.stat().st_size for file in folder.glob("*.safetensors")) / 1e6,
            tables=tables,
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
                tokenize(
                    self._root / PREPARED,
                    Path(temporary) / TOKENS,
                    reads,
                    stores=[store.name for part in _SCORED for store in part],
                )
                yield Path(temporary)
