"""The mteb wrapper, through mteb's own evaluation of the tasks that it has for trying out models (nothing is fetched)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from pipeline.inference.mteb import MtebEncoder
from pipeline.models.encoder import GaussianEncoder
from tests.trial_of import tiny_encoder

mteb = pytest.importorskip("mteb", reason="the extra 'mteb' is not installed")

SENTENCES = ["a dog runs", "the old man is reading a long book", "two children play outside today", "a", ""]


@pytest.fixture(scope="module")
def encoder(tiny_backbone: Path) -> GaussianEncoder:
    return tiny_encoder(tiny_backbone)


def loader(sentences: list[str]) -> Any:
    """As mteb hands over its texts."""
    return [{"text": sentences[start : start + 2]} for start in range(0, len(sentences), 2)]


@pytest.mark.parametrize("kind", ["kl", "kl-dimwise", "cosine"])
def test_its_similarity_is_the_encoders(encoder: GaussianEncoder, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder, "score_kind", kind)
    model = MtebEncoder(encoder)
    with pytest.warns(UserWarning, match="of 5 texts 1 are empty"):
        vectors = np.asarray(model.encode(loader(SENTENCES)))
    assert vectors.shape == (5, 2 * encoder.dim)
    assert vectors.dtype == np.float32
    gaussians, _ = encoder.encode_counted(SENTENCES, allow_empty=True)
    backwards = gaussians[torch.arange(4, -1, -1)]
    expected = encoder.similarity(gaussians, backwards)
    torch.testing.assert_close(model.similarity_pairwise(vectors, vectors[::-1].copy()), expected, rtol=1e-5, atol=1e-6)
    every = model.similarity(vectors, vectors)
    assert every.shape == (5, 5)
    torch.testing.assert_close(every.flip(1).diagonal(), expected, rtol=1e-4, atol=1e-5)
    # The first of a pair is the premise, and what is scored is sim(hypothesis‖premise).
    turned = MtebEncoder(encoder, premise_first=True)
    torch.testing.assert_close(
        turned.similarity_pairwise(vectors, vectors[::-1].copy()), encoder.similarity(backwards, gaussians), rtol=1e-5, atol=1e-6
    )
    torch.testing.assert_close(turned.similarity(vectors, vectors), every.T, rtol=1e-4, atol=1e-5)
    # One vector is a batch of one.
    assert model.similarity(vectors[0], vectors[1:]).shape == (1, 4)


@pytest.mark.filterwarnings("ignore")
def test_mteb_evaluates_it_by_our_similarity(encoder: GaussianEncoder) -> None:
    from mteb.mocks.mock_tasks import MockPairClassificationTask, MockRetrievalTask, MockSTSTask

    tasks = [MockPairClassificationTask(), MockRetrievalTask(), MockSTSTask()]
    found = mteb.evaluate(MtebEncoder(encoder), tasks=tasks, cache=None, show_progress_bar=False)
    scores = {result.task_name: result.scores["test"][0] for result in found.task_results}
    assert set(scores) == {task.metadata.name for task in tasks}
    assert all(np.isfinite(one["main_score"]) for one in scores.values())
    tasks[-1].load_data()
    data = tasks[-1].dataset["test"]
    ours = encoder.similarity(list(data["sentence1"]), list(data["sentence2"]))
    assert scores[tasks[-1].metadata.name]["spearman"] == pytest.approx(spearmanr(ours, data["score"]).statistic)
