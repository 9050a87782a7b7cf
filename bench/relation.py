"""Pairs per second by the relation head, from stored sentences, against a cross-encoder of the same backbone; on one core."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from bench.corpus import corpus
from bench.data import BACKBONE, MAX_LENGTH
from bench.measure import Row, compared, in_turn, peak_mb
from pipeline.config.params import RelationParams
from pipeline.evaluation.encoding import joined, share_of
from pipeline.families.pairs.relation import calibrate
from pipeline.models.backbone import resolve
from pipeline.models.encoder import GaussianEncoder
from pipeline.models.token_head import DIM, TokenHead, TokenProjection

# Pairs that the cross-encoder scores in a round; the head scores this many times as many, to be measured as exactly.
PAIRS, QUICK_PAIRS = 512, 16
TIMES = 8
# Pairs in one forward pass.
BATCH, STORED_BATCH = 64, 8192


def run(quick: bool) -> list[Row]:
    """Score the same pairs of the development set both ways."""
    torch.set_num_threads(1)
    pairs = QUICK_PAIRS if quick else PAIRS
    seconds = in_turn({"head": tokens(pairs), "cross": cross_encoder(pairs)}, 1 if quick else 5)
    return [
        compared(
            f"score pairs with the relation head, {corpus().name}",
            "pairs/s",
            [[one / TIMES for one in seconds["head"]], seconds["cross"]],
            [peak_mb(f"bench.relation:{one}", pairs=pairs) for one in ("tokens", "cross_encoder")],
            done=pairs,
            note="one thread, fp32; sentences are encoded and pairs are tokenized before",
        )
    ]


def tokens(pairs: int) -> Callable[[], object]:
    """Scores stored token vectors; the weights do not matter for the time."""
    torch.set_num_threads(1)
    data, dev = corpus(), corpus().dev_pairs
    encoder = GaussianEncoder.from_backbone(data.params.model, 1).eval()
    head = TokenHead(TokenProjection(encoder.mean_head.in_features, DIM)).eval()
    sentences = joined([(0, encoder.encode_rows(data.dev, share_of(data.dev, 0, 1), project=head.projection))], 1, data.dev)
    params = RelationParams(epochs=1, similarity_weight=0.25)
    relation = calibrate(head, sentences, dev, "kl", params, seed=1, pairs_digest="")
    rows = np.arange(TIMES * pairs) % len(dev)
    premise, hypothesis = (torch.from_numpy(x[rows].astype(np.int64)) for x in (dev.premise, dev.hypothesis))

    def score() -> None:
        for start in range(0, len(rows), STORED_BATCH):
            part = slice(start, start + STORED_BATCH)
            relation.score(sentences[premise[part]], sentences[hypothesis[part]])

    return score


def cross_encoder(pairs: int) -> Callable[[], object]:
    """Scores `pairs` pairs by the backbone with both sentences as input, in batches of similar length."""
    torch.set_num_threads(1)
    location = resolve(BACKBONE, None).location
    model = AutoModelForSequenceClassification.from_pretrained(location, num_labels=3).eval()
    tokenizer = AutoTokenizer.from_pretrained(location)
    texts = (corpus().dev_texts * pairs)[:pairs]
    texts.sort(key=lambda pair: len(pair[0]) + len(pair[1]))
    batches = [
        tokenizer(texts[k : k + BATCH], padding=True, truncation=True, max_length=2 * MAX_LENGTH, return_tensors="pt")
        for k in range(0, len(texts), BATCH)
    ]

    def score() -> None:
        with torch.inference_mode():
            for batch in batches:
                model(**batch)

    return score
