"""`python -m bench.alternatives PROJECT --out FILE`: what people would use instead of a relation head, on a project's own data.

A logistic regression on six numbers of a pair, and a cross-encoder of the same backbone, fitted to the labelled pairs of a
project in which `dvc repro evaluate` has run; a count of tokens; and what a pair costs from stored embeddings by each score.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor
from transformers import AutoModelForSequenceClassification

from bench.baselines import BF16
from bench.measure import in_turn
from pipeline.config.data_params import test_set_names
from pipeline.config.load import load_params
from pipeline.config.params import Params
from pipeline.config.paths import DEV_TOKENS, MODELS, TEST_TOKENS, TRAIN_TOKENS
from pipeline.data.schema import DEV, ENTAILMENT, TRAIN_PAIRS
from pipeline.data.token_sets import PairSet, read_pairs
from pipeline.data.token_store import TokenStore, open_store
from pipeline.evaluation import metrics
from pipeline.evaluation.encoding import encode_here
from pipeline.families.pairs.relation import CLASS_WEIGHTS, examples
from pipeline.gaussian.distribution import Gaussian, similarity
from pipeline.models.backbone import resolve
from pipeline.models.encoder import GaussianEncoder

Scores = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Of n pairs, (n,) each: of "premise entails hypothesis", and of the same pairs turned round."""

_RATE, _WARMUP, _DECAY = 5e-5, 0.1, 0.01
# Tokens of a batch, padding included.
_TOKENS = 2048
# Pairs scored at a time for the costs.
_PAIRS = 8192


def main() -> None:
    """Fit both, score every set, write the figures.

    Training times are core seconds, so that other work on the machine hardly counts. The microseconds need a quiet machine.
    """
    parser = argparse.ArgumentParser(prog="python -m bench.alternatives", description=__doc__)
    parser.add_argument("project", type=Path, help="a checkout in which `dvc repro evaluate` has run")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--pairs", type=int, help="training pairs of the cross-encoder; default: all")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    params = load_params(options.project / "params.yaml")
    sets = _sets(options.project, params)
    model = options.project / MODELS / f"seed-{options.seed}"
    found = {
        "length-only": {name: areas(pairs, length_only(store, pairs)) for name, (store, pairs) in sets.items()},
        "cross-encoder": cross_encoder(params, options.project, sets, options.pairs, options.seed),
        "six numbers": six_numbers(model, options.project, sets),
    }
    figures = {"seed": options.seed, "threads": torch.get_num_threads(), "alternatives": found, "microseconds": costs(model)}
    options.out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def _sets(project: Path, params: Params) -> dict[str, tuple[Path, PairSet]]:
    """Name of a set → its store and pairs."""
    tests = {name: (project / TEST_TOKENS, read_pairs(project / TEST_TOKENS, name)) for name in test_set_names(params.data)}
    return {DEV: (project / DEV_TOKENS, read_pairs(project / DEV_TOKENS, DEV)), **tests}


def areas(pairs: PairSet, scores: Scores) -> dict[str, float]:
    """PR-AUC and directed PR-AUC, in percent."""
    truth, directed, _ = metrics.directed(pairs.label, pairs.reverse_label, *scores)
    return {
        "pr_auc": 100 * metrics.pr_auc(np.asarray(pairs.label) == ENTAILMENT, scores[0]),
        "directed_pr_auc": 100 * metrics.pr_auc(truth, directed),
    }


def length_only(store: Path, pairs: PairSet) -> Scores:
    """Tokens by which the premise is longer, before it is cut."""
    lengths = open_store(store).length.astype(np.float64)
    excess = lengths[pairs.premise] - lengths[pairs.hypothesis]
    return excess, -excess


def numbers_of(p: Gaussian, h: Gaussian) -> NDArray[np.float64]:
    """(n, 6): cosine of the means, both similarities both ways, difference of Σ log-variance."""
    columns = [
        torch.cosine_similarity(p.mean, h.mean, dim=-1),
        *(similarity(a, b, kind) for kind in ("kl", "kl-dimwise") for a, b in ((p, h), (h, p))),
        (p.log_var - h.log_var).sum(-1),
    ]
    return torch.stack([column.double() for column in columns], 1).numpy()


def six_numbers(model: Path, project: Path, sets: Mapping[str, tuple[Path, PairSet]]) -> dict[str, Any]:
    """A logistic regression fitted to the selection part of the development set and its entailment pairs turned round."""
    encoded = dict(zip((DEV_TOKENS, TEST_TOKENS), encode_here(model, [project / DEV_TOKENS, project / TEST_TOKENS]), strict=True))

    def both_ways(name: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        store, pairs = sets[name]
        sentences = encoded[store.relative_to(project)]
        p, h = (sentences[torch.from_numpy(rows.astype(np.int64))] for rows in (pairs.premise, pairs.hypothesis))
        return numbers_of(p, h), numbers_of(h, p)

    forward, backward = both_ways(DEV)
    entailed = np.asarray(sets[DEV][1].label) == ENTAILMENT
    one_way = entailed & (np.asarray(sets[DEV][1].reverse_label) != ENTAILMENT)
    start = time.process_time()
    regression = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    regression.fit(np.concatenate((forward, backward[one_way])), np.concatenate((entailed, np.zeros(one_way.sum(), np.bool_))))
    seconds = time.process_time() - start
    out: dict[str, Any] = {"training_core_seconds": seconds}
    for name, (_, pairs) in sets.items():
        a, b = (regression.decision_function(numbers) for numbers in both_ways(name))
        out[name] = areas(pairs, (a, b))
    return out


def cross_encoder(
    params: Params, project: Path, sets: Mapping[str, tuple[Path, PairSet]], most: int | None, seed: int
) -> dict[str, Any]:
    """One pass of the backbone with both sentences as its input over the labelled pairs and the entailment pairs turned round."""
    torch.manual_seed(seed)
    location = resolve(params.model.backbone, params.model.revision).location
    model = AutoModelForSequenceClassification.from_pretrained(location, num_labels=len(CLASS_WEIGHTS)).train()
    store, pairs = open_store(project / TRAIN_TOKENS), read_pairs(project / TRAIN_TOKENS, TRAIN_PAIRS)
    left, right, target = examples(pairs)
    random = np.random.default_rng(seed)
    rows = random.permutation(len(target))[:most]
    left, right, target = left[rows], right[rows], target[rows]
    batches = list(_batches(store, left, right))
    random.shuffle(batches)
    optimizer = torch.optim.AdamW(model.parameters(), lr=_RATE, weight_decay=_DECAY, fused=True)
    warm = max(1, int(_WARMUP * len(batches)))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warm, (len(batches) - step) / max(1, len(batches) - warm))
    )
    start = time.process_time()
    for number, batch in enumerate(batches):
        with torch.autocast("cpu", torch.bfloat16, enabled=BF16):
            logits = model(**_inputs(store, left[batch], right[batch])).logits
        loss = F.cross_entropy(logits.float(), torch.from_numpy(target[batch]).long(), CLASS_WEIGHTS)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if number % 200 == 0:
            print(f"cross-encoder: batch {number:,} of {len(batches):,}, loss {loss.item():.3f}", flush=True)
    out: dict[str, Any] = {"training_core_seconds": time.process_time() - start, "pairs": len(target)}
    model.eval()
    for name, (folder, scored) in sets.items():
        sentences = open_store(folder)
        forward = _log_odds(model, sentences, scored.premise, scored.hypothesis)
        out[name] = areas(scored, (forward, _log_odds(model, sentences, scored.hypothesis, scored.premise)))
    folder, dev = sets[DEV]
    texts = _inputs(open_store(folder), dev.premise[:64], dev.hypothesis[:64])
    out["microseconds"] = _microseconds(lambda: model(**texts), len(texts["input_ids"]))
    return out


def _batches(store: TokenStore, left: NDArray[np.int32], right: NDArray[np.int32]) -> Iterator[NDArray[np.intp]]:
    """Rows of pairs of similar length, `_TOKENS` tokens at a time."""
    lengths = store.lengths[left] + store.lengths[right]
    order, start = np.argsort(lengths, kind="stable"), 0
    while start < len(order):
        size = max(1, _TOKENS // int(lengths[order[start]]))
        while size > 1 and size * int(lengths[order[min(start + size, len(order)) - 1]]) > _TOKENS:
            size -= 1
        yield order[start : start + size]
        start += size


def _inputs(store: TokenStore, left: NDArray[np.int32], right: NDArray[np.int32]) -> dict[str, Tensor]:
    """[CLS] premise [SEP] hypothesis [SEP], padded."""
    pairs = [(store[int(a)], store[int(b)][1:]) for a, b in zip(left, right, strict=True)]
    width = max(len(a) + len(b) for a, b in pairs)
    ids = np.full((len(pairs), width), store.pad_id, np.int64)
    segment, mask = np.zeros_like(ids), np.zeros_like(ids)
    for row, (a, b) in enumerate(pairs):
        end = len(a) + len(b)
        ids[row, :end] = np.concatenate((a, b))
        segment[row, len(a) : end] = 1
        mask[row, :end] = 1
    return {
        "input_ids": torch.from_numpy(ids),
        "token_type_ids": torch.from_numpy(segment),
        "attention_mask": torch.from_numpy(mask),
    }


@torch.inference_mode()
def _log_odds(model: Any, store: TokenStore, left: NDArray[np.int32], right: NDArray[np.int32]) -> NDArray[np.float64]:
    scores = np.empty(len(left))
    for rows in _batches(store, left, right):
        logits = model(**_inputs(store, left[rows], right[rows])).logits.double()
        scores[rows] = (logits[:, ENTAILMENT] - logits[:, 1:].logsumexp(-1)).numpy()
    return scores


def costs(model: Path) -> dict[str, float]:
    """Microseconds of a pair from stored embeddings, one thread: the cosine, the similarity, the model's score, six numbers."""
    encoder = GaussianEncoder.from_pretrained(model)
    draw = torch.Generator().manual_seed(1)
    width = encoder.encode(["One."]).mean.shape[-1]
    # With the tokens of a sentence of fifteen words, if the model stores some.
    tokens = encoder.encode(["word " * 15]).tokens
    p, h = (
        Gaussian(*torch.randn(2, _PAIRS, width, generator=draw).mul(0.1).unbind(), tokens=tokens and tokens[[0] * _PAIRS])
        for _ in range(2)
    )
    kind = encoder.score_kind
    ways: dict[str, Callable[[], object]] = {
        "cosine": lambda: torch.cosine_similarity(p.mean, h.mean, dim=-1),
        "score": lambda: encoder.score(p, h),
        "six numbers": lambda: numbers_of(p, h),
    }
    if kind != "cosine":
        ways["similarity"] = lambda: similarity(h, p, kind)
    return {name: _microseconds(way, _PAIRS) for name, way in ways.items()}


@torch.inference_mode()
def _microseconds(work: Callable[[], object], pairs: int) -> float:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    seconds = in_turn({"work": work}, 5)["work"]
    torch.set_num_threads(threads)
    return 1e6 * statistics.median(seconds) / pairs


if __name__ == "__main__":
    main()
