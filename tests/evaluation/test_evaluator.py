from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from conftest import PLAIN
from sklearn.metrics import average_precision_score
from store import make_store, random_stores

from pipeline.config.load import load_params
from pipeline.data.token_sets import read_pairs
from pipeline.data.token_store import open_store
from pipeline.evaluation import metrics
from pipeline.evaluation.encoding import encode_all, encode_here, joined, share_of
from pipeline.evaluation.score_cache import numbers_of, read_hard
from pipeline.families.pairs import scoring
from pipeline.families.pairs.contrastive import make_objective
from pipeline.families.pairs.scoring import dev_pr_auc, score_nli, score_sts
from pipeline.families.pairs.sets import nli_metrics, sts_metrics
from pipeline.gaussian.distribution import Gaussian, similarity
from pipeline.models.encoder import GaussianEncoder
from pipeline.models.token_head import TokenProjection
from pipeline.utils.errors import UserError
from tests.trial_of import tiny_encoder

PARAMS = load_params(PLAIN)


def scored() -> pa.Table:
    # Rows 0-3 are entailments: longer and right, shorter and right, equal and wrong, longer, two-way and wrong.
    return pa.table(
        {
            "label": pa.array([0, 0, 0, 0, 1, 2], pa.int8()),
            "reverse_label": pa.array([1, 1, 2, 0, 1, 2], pa.int8()),
            "premise_tokens": [9, 4, 6, 8, 5, 5],
            "hypothesis_tokens": [5, 7, 6, 3, 5, 9],
            "score": [0.9, 0.8, 0.3, 0.7, 0.5, 0.1],
            "sim_hp": [0.9, 0.8, 0.3, 0.7, 0.5, 0.1],
            "sim_ph": [0.1, 0.2, 0.4, 0.8, 0.9, 0.9],
            "premise_log_var": [1.0, -1.0, 1.0, 1.0, 0.0, 0.0],
            "hypothesis_log_var": [0.0, 0.0, 0.0, 0.0, 1.0, 1.0],
            "reverse_score": [0.1, 0.2, 0.4, 0.8, 0.9, 0.9],
        }
    )


def test_nli_and_direction_by_hand() -> None:
    got = nli_metrics(scored(), 0.6, ">=")
    pr_auc = 100 * metrics.pr_auc([1, 1, 1, 1, 0, 0], [0.9, 0.8, 0.3, 0.7, 0.5, 0.1])
    by_subset = {
        # pairs, the longer one entails, sim, var
        "": (4, 62.5, 50, 75),
        "not_longer_": (2, 25, 50, 50),
        "one_way_": (3, 50, 200 / 3, 200 / 3),
        "one_way_not_longer_": (2, 25, 50, 50),
        "two_way_": (1, 100, 0, 100),
        "neutral_": (1, 50, 0, 0),
    }
    direction = {
        f"direction.{prefix}{name}": value
        for prefix, values in by_subset.items()
        for name, value in zip(("pairs", "length_only", "sim", "var"), values, strict=True)
    }
    assert got == pytest.approx(
        {
            "pairs": 6,
            "entailments": 4,
            "f1": 600 / 7,
            "threshold": 0.6,
            "accuracy": 100 * 5 / 6,
            "majority_accuracy": 100 * 4 / 6,
            "pr_auc": pr_auc,
            "average_precision": 95,
            # By falling score, rows 0 to 2 as they are (+) and turned round (-), rows 4 and 5 as they are (-): ++--+---.
            "directed_average_precision": 100 * (1 + 1 + 3 / 5) / 3,
            "directed_pr_auc": 100 * (1 + 1 + (1 / 2 + 3 / 5) / 2) / 3,
            # By length: +, +, {+-}, +, -.
            "average_precision_length_only": 100 * (1 + 1 + 3 / 4 + 4 / 5) / 4,
            "pr_auc_length_only": 100 * (1 + 1 + (1 + 3 / 4) / 2 + (3 / 4 + 4 / 5) / 2) / 4,
            # The same with the pairs turned round: +, -, {+--}, +, {--}.
            "directed_average_precision_length_only": 100 * (1 + 2 / 5 + 3 / 6) / 3,
            "directed_pr_auc_length_only": 100 * (1 + (1 / 2 + 2 / 5) / 2 + (2 / 5 + 3 / 6) / 2) / 3,
            **direction,
        }
    )


def test_what_has_no_pairs_or_no_variances_is_left_out_and_the_rest_stays() -> None:
    # The reverse labels are unknown: no pair is one-way or two-way.
    table = scored().set_column(1, "reverse_label", pa.array([-1] * 6, pa.int8()))
    got = nli_metrics(table, 0.6, ">=")
    assert {key for key in got if key.endswith("pairs")} == {
        "pairs",
        "direction.pairs",
        "direction.not_longer_pairs",
        "direction.neutral_pairs",
    }
    plain = nli_metrics(table.drop_columns(["sim_hp", "sim_ph", "premise_log_var", "hypothesis_log_var"]), 0.6, ">=")
    assert got.keys() - plain.keys() == {key for key in got if key.endswith(("sim", "var"))}
    only = nli_metrics(table.slice(0, 4), 0.6, ">=")
    assert not {"pr_auc", "average_precision"} & only.keys()
    assert (only["majority_accuracy"], only["entailments"]) == (100, 4)


def test_a_relation_head_scores_the_pairs_and_the_similarity_stands_beside_it() -> None:
    plain = scored()
    # The head turns the scores of rows 2 and 5 around, and says the direction of row 3 the other way.
    table = (
        plain.drop_columns(["score", "reverse_score"])
        .append_column("score", pa.array([0.9, 0.8, 0.75, 0.7, 0.5, 0.1]))
        .append_column("reverse_score", pa.array([0.1, 0.2, 0.9, 0.6, 0.9, 0.9]))
        .append_column("similarity_score", plain["score"])
        .append_column("reverse_similarity_score", plain["reverse_score"])
        .append_column("relation", pa.array([0, 0, 1, 2, 1, 1], pa.int8()))
    )
    got, alone = (nli_metrics(one, 0.6, ">=") for one in (table, plain))
    areas = ("pr_auc", "average_precision", "directed_pr_auc", "directed_average_precision")
    assert {f"similarity.{name}": alone[name] for name in areas} == {k: v for k, v in got.items() if k.startswith("similarity.")}
    assert (got["pr_auc"], got["average_precision"], got["accuracy"]) == pytest.approx((100, 100, 100))
    # Rows 0, 1 and 3 are right by the head.
    by_subset = {"": 75, "not_longer_": 50, "one_way_": 200 / 3, "one_way_not_longer_": 50, "two_way_": 100, "neutral_": 0}
    assert {k: v for k, v in got.items() if k.endswith("score") and k.startswith("direction")} == pytest.approx(
        {f"direction.{prefix}score": value for prefix, value in by_subset.items()}
    )
    named = {"entailment": (50, 25, 25), "neutral": (0, 100, 0), "contradiction": (0, 100, 0)}
    confusion = {f"confusion.{gold}.{other}": x for gold, shares in named.items() for other, x in zip(named, shares, strict=True)}
    assert {key: value for key, value in got.items() if key.startswith("confusion")} == confusion
    assert got["three_way"] == 50
    assert not {key for key in alone if key.startswith(("similarity.", "confusion", "three_way")) or key.endswith("score")}


def test_hard_pairs_have_areas_and_a_direction_of_their_own() -> None:
    table, hard = scored(), np.array([True, False, True, True, True, False])
    plain = nli_metrics(table, 0.6, ">=")
    got = nli_metrics(table, 0.6, ">=", hard)
    assert {key: got[key] for key in plain} == plain
    # Rows 0, 2, 3 and 4: entailments with 0.9, 0.3 and 0.7, one other with 0.5; turned round, rows 0 and 2 have 0.1 and 0.4.
    # Row 3 holds both ways, so it has no direction.
    expected = {
        "hard.pairs": 4,
        "hard.entailments": 3,
        "hard.pr_auc": 100 * (2 / 3 + (2 / 3 + 3 / 4) / 2 / 3),
        "hard.average_precision": 100 * average_precision_score([1, 1, 1, 0], [0.9, 0.3, 0.7, 0.5]),
        "hard.directed_pr_auc": 100 * (1 / 2 + (1 / 3 + 2 / 4) / 2 / 2),
        "hard.directed_average_precision": 100 * average_precision_score([1, 1, 0, 0, 0], [0.9, 0.3, 0.5, 0.1, 0.4]),
        "direction.hard_pairs": 2,
        "direction.hard_length_only": 75,
        "direction.hard_sim": 50,
        "direction.hard_var": 100,
    }
    assert {key: value for key, value in got.items() if key not in plain} == pytest.approx(expected)


def test_hard_pairs_are_read_for_the_sets_that_were_scored_and_must_fit_them(tmp_path: Path) -> None:
    folder = tmp_path / "data/prepared/hard"
    folder.mkdir(parents=True)
    for name, rows in {"dev": [True] * 6, "some": [False, True], "unscored": [True]}.items():
        pq.write_table(pa.table({"hard": rows}), folder / f"{name}.parquet")
    tables = {"dev": scored(), "some": scored().slice(0, 2), "graded": pa.table({"score": [1.0], "cosine": [0.1]})}
    found = read_hard(tmp_path, tables)
    assert {name: hard.tolist() for name, hard in found.items()} == {"dev": [True] * 6, "some": [False, True]}
    with pytest.raises(UserError, match=r"some\.parquet: 2 rows for 6 scored pairs; run `dvc repro`"):
        read_hard(tmp_path, {"some": scored()})
    assert read_hard(tmp_path / "none", tables) == {}


def test_each_set_is_judged_at_the_threshold_of_the_set_that_is_named_for_it() -> None:
    def table(label: list[int], score: list[float]) -> pa.Table:
        tokens = pa.array([5] * len(label))
        rest = dict.fromkeys(("premise_tokens", "hypothesis_tokens", "reverse_label"), tokens)
        return pa.table({"label": pa.array(label, pa.int8()), "score": score, "reverse_score": score, **rest})

    # dev is divided at 0.501, own_dev would be at 0.201; the two test sets are the same.
    tables = {
        "dev": table([0, 1], [0.8, 0.5]),
        "own_dev": table([0, 1], [0.4, 0.2]),
        "named": table([0, 1], [0.3, 0.1]),
        "plain": table([0, 1], [0.3, 0.1]),
        "graded": pa.table({"score": [1.0, 2.0], "cosine": [0.1, 0.2]}),
    }
    evaluate = PARAMS.evaluate.model_copy(update={"threshold_step": 0.001, "threshold_on": {"named": "own_dev"}})
    found = numbers_of(tables, evaluate)
    thresholds = {name: found[name]["threshold"] for name in ("dev", "own_dev", "named", "plain")}
    assert thresholds == {"dev": 0.501, "own_dev": 0.501, "named": 0.201, "plain": 0.501}
    assert (found["named"]["accuracy"], found["plain"]["accuracy"]) == (100, 50)
    assert found["graded"] == {"pairs": 2, "spearman_cosine": pytest.approx(100)}


@pytest.fixture(scope="module")
def encoder(tiny_backbone: Path) -> GaussianEncoder:
    return tiny_encoder(tiny_backbone)


def test_sentences_are_encoded_alike_in_shares_of_any_size(
    encoder: GaussianEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    r = np.random.default_rng(7)
    folder = make_store(tmp_path / "s", [[2, *r.integers(5, 90, r.integers(1, 12)).tolist(), 3] for _ in range(41)])
    store = open_store(folder)
    whole = encode_all(encoder, store)
    encoder.save_pretrained(tmp_path / "model")
    found: list[Gaussian] = []
    for shares in (2, 7):
        parts = ((k, encoder.encode_rows(store, share_of(store, k, shares))) for k in reversed(range(shares)))
        found.append(joined(parts, shares, store))
    found.append(Gaussian.cat([encoder.encode_rows(store, np.array([row])) for row in range(41)]))
    for share in (2048, 3):
        monkeypatch.setattr("pipeline.evaluation.encoding._SHARE", share)
        found += encode_here(tmp_path / "model", [folder], gpu=False)
    for ours in found:
        torch.testing.assert_close(ours.mean, whole.mean, atol=1e-5, rtol=0)
        torch.testing.assert_close(ours.log_var, whole.log_var, atol=1e-5, rtol=0)


MEMORY = """
import sys
import threading
import time
from pathlib import Path
from pipeline.evaluation.encoding import encode_here
from pipeline.families.pairs.relation_store import _fitted
peak = 0

def watch():
    global peak
    while True:
        peak = max(peak, int(Path("/proc/self/status").read_text().partition("RssAnon:")[2].split()[0]) * 1024)
        time.sleep(0.01)

def encode(*where, table, **how):
    encoded = encode_here(*where, gpu=False, table=table, **how)
    print(table.tell())
    return encoded

threading.Thread(target=watch, daemon=True).start()
_fitted(*map(Path, sys.argv[1:]), encode, fitted_on=["pairs"], epochs=1, seed=1, name="head")
print(peak)
"""


@pytest.mark.faults
def test_token_vectors_for_a_fit_are_on_disk(encoder: GaussianEncoder, tmp_path: Path) -> None:
    """Those of 10⁷ sentences are 90 GB. Of their numbers and lengths, and of the pairs, the fit holds less than 1 GB."""
    r, model, took = np.random.default_rng(7), tmp_path / "model", list[tuple[int, int]]()
    encoder.save_pretrained(model)
    for size in (60_000, 600_000):
        pairs = [(a, b, k % 3) for k, (a, b) in enumerate(r.integers(0, size, (size // 8, 2)).tolist())]
        sentences = [[2, word, 3] for word in r.integers(5, 90, size).tolist()]
        folder = make_store(tmp_path / f"s{size}", sentences, pairs={"pairs": pairs}, shard_sentences=2**18)
        done = subprocess.run([sys.executable, "-c", MEMORY, model, folder], check=True, capture_output=True, text=True)
        took.append((int(done.stdout.split()[0]), int(done.stdout.split()[-1])))
    (small_table, small), (large_table, large) = took
    assert large_table - small_table > 540_000 * 80
    assert large - small < 540_000 * 60
    folder = make_store(tmp_path / "some", [[2, *r.integers(5, 90, r.integers(8, 20)).tolist(), 3] for _ in range(5_000)])
    project = TokenProjection(encoder.mean_head.in_features, 384).eval()
    expected, found = (
        encode_here(model, [folder], gpu=False, project=project, table=table)[0]
        for table in (None, (tmp_path / "vectors").open("w+b"))
    )
    assert found.tokens is not None and expected.tokens is not None
    assert (found.mean.shape, found.log_var.shape) == ((5_000, 0), (5_000, 0))
    assert found.tokens.packed().table.equal(expected.tokens.packed().table)
    assert found.tokens.length.equal(expected.tokens.length)


def test_bf16_is_computed_in_bf16_and_comes_near_float32(
    encoder: GaussianEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Autocast multiplies in bf16 on every CPU: without instructions for it torch emulates them.
    folder = random_stores(tmp_path)[1]
    store = open_store(folder)
    exact, rough = encode_all(encoder, store), encode_all(encoder, store, bf16=True)
    for ours, theirs in ((rough.mean, exact.mean), (rough.log_var, exact.log_var)):
        assert ours.dtype == torch.float32
        # bf16 rounds each number to within 2⁻⁹ of itself; float32 differs by at most 1e-6.
        difference = float((ours - theirs).norm() / theirs.norm())
        assert 3e-4 < difference < 2e-2
    pairs, objective = read_pairs(folder, "dev"), make_objective("ent+con+rev", "kl", 0.05)
    for bf16, sentences in ((False, exact), (True, rough)):
        area = 100 * metrics.pr_auc(pairs.label == 0, score_nli(sentences, store, pairs, objective)["score"].to_numpy())
        assert dev_pr_auc(encoder, objective.score, store, pairs, bf16=bf16) == area
    # Stage evaluate asks for bf16 too, and gets it where there are instructions for it.
    encoder.save_pretrained(tmp_path / "model")
    for instructions in (True, False):
        monkeypatch.setattr("pipeline.evaluation.encoding.has_bf16", lambda device, found=instructions: found)
        (found,) = encode_here(tmp_path / "model", [folder], gpu=False, bf16=True)
        difference = float((found.mean - exact.mean).norm() / exact.mean.norm())
        assert (3e-4 < difference < 2e-2) if instructions else difference < 1e-5
    # Scores that are not finite have no PR-AUC.
    assert np.isnan(dev_pr_auc(encoder, lambda p, h: p.mean.sum(-1) * float("nan"), store, pairs))


def test_scores_are_those_of_the_pairs(encoder: GaussianEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Some pairs at a time, fewer the last time.
    monkeypatch.setattr(scoring, "_PAIRS", 7)
    folder = random_stores(tmp_path)[1]
    store, pairs = open_store(folder), read_pairs(folder, "dev")
    sentences = encode_all(encoder, store)
    table = score_nli(sentences, store, pairs, make_objective("ent+con+rev", "kl", 0.05))
    for row, found in enumerate(table.to_pylist()):
        premise, hypothesis = int(pairs.premise[row]), int(pairs.hypothesis[row])
        p, h = sentences[premise], sentences[hypothesis]
        forward, back = similarity(h, p).item(), similarity(p, h).item()
        expected = {"label": pairs.label[row], "reverse_label": pairs.reverse_label[row]}
        expected |= {"premise_tokens": len(store[premise]), "hypothesis_tokens": len(store[hypothesis])}
        expected |= {"score": forward, "reverse_score": back, "sim_hp": forward, "sim_ph": back}
        expected |= {"premise_log_var": p.log_var.sum().item(), "hypothesis_log_var": h.log_var.sum().item()}
        assert found == pytest.approx(expected, rel=1e-5)
    cosine = score_nli(sentences, store, pairs, make_objective("simcse", "kl", 0.05))
    assert cosine.column_names == ["label", "reverse_label", "premise_tokens", "hypothesis_tokens", "score", "reverse_score"]
    assert cosine["reverse_score"] == cosine["score"]


def test_sts_is_spearman_of_cosine_and_of_the_symmetrised_similarity() -> None:
    from pipeline.data.token_sets import StsSet

    mean = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [-1.0, 0.0]])
    sentences = Gaussian(mean, torch.zeros_like(mean))
    pairs = StsSet("s", np.array([0, 0, 0], np.int32), np.array([1, 2, 3], np.int32), np.array([5.0, 2.5, 0.0]))
    got = sts_metrics(score_sts(sentences, pairs, "kl"))
    assert got == {"pairs": 3, "spearman_cosine": pytest.approx(100), "spearman_similarity": pytest.approx(100)}
    assert "spearman_similarity" not in sts_metrics(score_sts(sentences, pairs, None))
    # By hand: two of three in the wrong order, 1 − 6·(1 + 1) / (3·8).
    swapped = StsSet("s", pairs.sentence1, pairs.sentence2, np.array([2.5, 5.0, 0.0]))
    assert sts_metrics(score_sts(sentences, swapped, None)) == {"pairs": 3, "spearman_cosine": pytest.approx(50)}


def test_a_correlation_that_is_not_defined_is_left_out() -> None:
    table = pa.table({"score": [1.0, 1.0, 1.0], "cosine": [0.1, 0.2, 0.3], "similarity": [0.3, 0.2, 0.1]})
    assert sts_metrics(table) == {"pairs": 3}
    half = pa.table({"score": [1.0, 2.0, 3.0], "cosine": [0.1, 0.2, 0.3], "similarity": [0.5, 0.5, 0.5]})
    assert sts_metrics(half) == {"pairs": 3, "spearman_cosine": pytest.approx(100.0)}
    assert sts_metrics(table.slice(0, 1)) == {"pairs": 1}
