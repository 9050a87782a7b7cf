"""The data of the benchmarks, prepared and tokenized once.

These are the shared NLI data if available, otherwise generated pairs; in a quick run, a few generated pairs with gaps.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import yaml
from numpy.typing import NDArray

from bench.data import files, write_pairs
from bench.measure import ROOT, is_quick
from pipeline.config.data_params import DataParams
from pipeline.config.load import load_params
from pipeline.config.params import Params
from pipeline.data.sentence_tokenizer import Encoder
from pipeline.data.token_sets import PairSet, read_pairs
from pipeline.data.token_store import ROW_KINDS, TRIPLETS, TokenStore, open_store, read_rows
from pipeline.data.tokenizing import tokenize
from pipeline.families.prepare import prepare
from pipeline.models.backbone import load_tokenizer, resolve
from pipeline.trials.trial import Trial

CACHE = ROOT / ".gausscse/bench"
QUICK_PAIRS = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """Triplets and a development set, as text and as tokens."""

    name: str
    params: Params
    store: TokenStore
    triplets: NDArray[np.int32]
    """(n, 4) sentence numbers of premise, entailment, contradiction and neutral, −1 for none. Except in a quick run, each triplet
    has a contradiction."""
    texts: list[tuple[str, str, str]]
    """The triplets that have a contradiction, as text."""
    dev: TokenStore
    dev_pairs: PairSet
    dev_texts: list[tuple[str, str]]


def corpus() -> Corpus:
    """The corpus; the first call makes it, under .gausscse/bench."""
    params = load_params(ROOT / "params.yaml")
    folder = CACHE / ("quick" if is_quick() else "nli" if _shared() else "generated")
    if not (folder / "tokens/tests/tokens.json").is_file():
        print(f"preparing the {folder.name} corpus in {folder}", file=sys.stderr, flush=True)
        tokenized(folder, params, _source(folder))
    triplets = read_rows(folder / "tokens/train", TRIPLETS).stacked(*ROW_KINDS[TRIPLETS])
    complete = np.flatnonzero(triplets[:, 2] >= 0)
    table = pq.read_table(folder / "prepared/train/triplets.parquet").take(complete)
    texts = zip(*(table[column].to_pylist() for column in ("premise", "entailment", "contradiction")), strict=True)
    pairs = pq.read_table(folder / "prepared/dev/dev.parquet")
    return Corpus(
        name=folder.name,
        params=params,
        store=open_store(folder / "tokens/train"),
        triplets=triplets if is_quick() else triplets[complete],
        texts=list(texts),
        dev=open_store(folder / "tokens/dev"),
        dev_pairs=read_pairs(folder / "tokens/dev", "dev"),
        dev_texts=list(zip(pairs["premise"].to_pylist(), pairs["hypothesis"].to_pylist(), strict=True)),
    )


def small(folder: Path, params: Params, pairs: int) -> tuple[Path, Path]:
    """Token stores of a few generated pairs with gaps: the triplets, and the development set."""
    tokenized(folder, params, _generated(folder, pairs))
    return folder / "tokens/train", folder / "tokens/dev"


def a_trial(params: Params, **more: Any) -> Trial:
    """A trial of the parameters; its digests are empty unless `more` gives them."""
    given = {"model": params.model.encoder, "objective": params.objective, "train": params.train}
    digests = dict.fromkeys(("train_tokens", "dev_tokens", "backbone_files", "code"), "")
    return Trial(**{**given, "learning_rate": 1e-4, "seed": 1, **digests, **more})


def tokenized(folder: Path, params: Params, source: dict[str, object]) -> None:
    """Prepare and tokenize what section `data` names, in `folder`."""
    (folder / "prepared").mkdir(parents=True, exist_ok=True)
    (folder / "tokens").mkdir(exist_ok=True)
    data, model = json.dumps(params.data.model_dump(mode="json") | source), params.model
    prepare(DataParams.model_validate_json(data), folder / "prepared")
    tokenizer = load_tokenizer(resolve(model.backbone, model.revision))
    encoder = Encoder(name=model.backbone, revision=model.revision, tokenizer=tokenizer, max_length=model.max_length)
    tokenize(folder / "prepared", folder / "tokens", encoder)


def _shared() -> Path | None:
    root = Path(os.environ.get("GAUSSCSE_DATA") or ROOT / "../shared/data").resolve()
    return root if (root / "nli/snli_train.parquet").is_file() else None


def _source(folder: Path) -> dict[str, object]:
    """Section `data` of params.yaml for the corpus in `folder`."""
    if is_quick():
        return _generated(folder, QUICK_PAIRS)
    if root := _shared():
        preset = yaml.safe_load((ROOT / "presets/nli-parquet.yaml").read_text(encoding="utf-8"))["data"]
        return {**preset, "root": str(root)}
    print("no shared NLI data (set GAUSSCSE_DATA): generated pairs instead", file=sys.stderr, flush=True)
    sizes = {"train": 60_000, "dev": 10_000, "test": 100}
    return {"source": "generated", "generated": sizes, "root": str(ROOT / "pipeline/data/lexicon/words.json")}


def _generated(folder: Path, pairs: int) -> dict[str, object]:
    (folder / "raw").mkdir(parents=True, exist_ok=True)
    write_pairs(folder / "raw", pairs, held_out=pairs, gaps=True)
    return files(folder / "raw")
