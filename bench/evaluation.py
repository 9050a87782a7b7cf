"""Benchmarks of scoring a development set and of encoding text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from bench.baselines import BF16, SentenceTransformersLoop, encode_in_order
from bench.corpus import Corpus, corpus
from bench.measure import Row, compared, in_turn, peak_mb, use_threads
from pipeline.data.token_sets import PairSet
from pipeline.data.token_store import Shard, TokenStore
from pipeline.families.pairs.contrastive import make_objective
from pipeline.families.pairs.scoring import dev_pr_auc
from pipeline.gaussian.distribution import Gaussian
from pipeline.models.backbone import load_tokenizer, resolve
from pipeline.models.encoder import GaussianEncoder

ENCODE_BATCH = 64


def run(quick: bool) -> list[Row]:
    """Development evaluation against encoding both columns in order, and `encode` against sentence-transformers' `encode`."""
    use_threads()
    pairs, sentences, repeats = (60, 60, 1) if quick else (2000, 3000, 3)
    evaluated, encoded = ("ours", "in order"), ("ours", "sentence-transformers")
    return [
        compared(
            f"development evaluation of {pairs} pairs against both columns in order",
            "pairs/s",
            in_turn({name: scoring(name, pairs) for name in evaluated}, repeats).values(),
            [peak_mb("bench.evaluation:scoring", name=name, pairs=pairs) for name in evaluated],
            done=pairs,
            note="bf16",
        ),
        compared(
            f"encode {sentences} sentences of text against sentence-transformers",
            "sentences/s",
            in_turn({name: encoding(name, sentences) for name in encoded}, repeats).values(),
            [peak_mb("bench.evaluation:encoding", name=name, sentences=sentences) for name in encoded],
            done=sentences,
            note="float32, both sort by length",
        ),
    ]


def scoring(name: str, pairs: int) -> Callable[[], object]:
    """A function that computes development PR-AUC of the first pairs: our way, or by encoding both columns in order."""
    use_threads()
    data = corpus()
    encoder = GaussianEncoder.from_backbone(data.params.model, 1).eval()
    objective = make_objective("ent+con+rev", "kl", 0.05)
    if name == "ours":
        store, subset = _first(data, pairs)
        # In a list, because a float would be taken for seconds.
        return lambda: [dev_pr_auc(encoder, objective.score, store, subset, bf16=BF16)]
    found = resolve(data.params.model.backbone, data.params.model.revision)
    in_order = encode_in_order(encoder.backbone, load_tokenizer(found), data.params.model.max_length, ENCODE_BATCH)
    premises, hypotheses = (list(side) for side in zip(*data.dev_texts[:pairs], strict=True))

    @torch.inference_mode()
    def plain() -> None:
        def gaussian(hidden: Tensor) -> Gaussian:
            hidden = hidden.float()
            return Gaussian(torch.tanh(encoder.mean_head(hidden)), encoder.variance_head(hidden))

        objective.score(gaussian(in_order(premises)), gaussian(in_order(hypotheses)))

    return plain


def _first(data: Corpus, pairs: int) -> tuple[TokenStore, PairSet]:
    """A store with only the sentences of the first pairs of the development set, and these pairs."""
    whole = data.dev_pairs
    used, numbers = np.unique(np.concatenate((whole.premise[:pairs], whole.hypothesis[:pairs])), return_inverse=True)
    lengths = data.dev.lengths_of(used)
    ids, _ = data.dev.lay_out(used, lengths)
    shard = Shard(ids.astype(np.int32), np.concatenate(([0], np.cumsum(lengths))), data.dev.length[used])
    store = replace(data.dev, shards=(shard,), shard_sentences=len(used))
    numbers = numbers.astype(np.int32)
    return store, PairSet("dev", numbers[:pairs], numbers[pairs:], whole.label[:pairs], whole.reverse_label[:pairs])


def encoding(name: str, sentences: int) -> Callable[[], object]:
    """A function that encodes this number of sentences as text: our way, or with sentence-transformers."""
    use_threads()
    data = corpus()
    texts = [sentence for triplet in data.texts[: -(-sentences // 3)] for sentence in triplet][:sentences]
    if name == "ours":
        return partial(GaussianEncoder.from_backbone(data.params.model, 1).eval().encode, texts)
    model = SentenceTransformersLoop(data.params.model, data.texts[:64], 64).model
    return partial(model.encode, texts, batch_size=ENCODE_BATCH, show_progress_bar=False)
