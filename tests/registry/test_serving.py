"""`mlflow models serve` on a registered champion: its answers and refusals, and that it survives."""

from __future__ import annotations

import copy
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests
import torch

from pipeline.models.encoder import GaussianEncoder
from pipeline.models.threshold import Calibration
from pipeline.registry.loading import load
from pipeline.registry.pyfunc_model import MAX_SENTENCES, OPERATIONS
from pipeline.tracking.server import Tracker
from pipeline.utils.errors import UserError
from tests.registry.lab import Lab
from tests.registry.servers import answers, free_port
from tests.relations import drawn_relation

PAIRS = [("A dog runs across a field.", "An animal is moving."), ("An animal is moving.", "A dog runs across a field.")]


@dataclass(frozen=True)
class Scoring:
    """A scoring server, and what it serves."""

    uri: str
    encoder: GaussianEncoder

    def ask(self, body: dict[str, Any]) -> tuple[int, str]:
        """Status and text of the answer."""
        answer = requests.post(f"{self.uri}/invocations", json=body, timeout=240)
        return answer.status_code, answer.text

    def rows(self, operation: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        status, text = self.ask({"dataframe_records": rows, "params": {"operation": operation}})
        assert status == 200, text
        return json.loads(text)["predictions"]


@pytest.fixture(scope="module")
def scoring(lab: Lab, tracker: Tracker, run_id: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scoring]:
    folder, port = tmp_path_factory.mktemp("served"), free_port()
    encoder = GaussianEncoder.from_pretrained(lab.untrained(1))
    encoder.calibration = Calibration(threshold=0.5, entailment_if=">=", swept_on="dev", pairs="a" * 64, accuracy=50.0)
    with torch.no_grad():
        # Untrained, it would say nearly the same of both directions.
        encoder.variance_head.weight.normal_(std=3.0, generator=torch.Generator().manual_seed(1))
    encoder.save_pretrained(folder / "encoder")
    lab.register(tracker, "served", folder / "encoder", run_id)
    command = ["mlflow", "models", "serve", "-m", "models:/served@champion", "--env-manager", "local", "--port", str(port)]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {**os.environ, "MLFLOW_TRACKING_URI": tracker.uri, "PATH": path}
    log = folder / "server.log"
    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd=folder, env=env, stdout=out, stderr=out, start_new_session=True)
    uri = f"http://127.0.0.1:{port}"
    try:
        answers(uri, log)
        yield Scoring(uri, load("models:/served@champion", tracker.uri))
    finally:
        # MLflow's command ends without its server.
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)


def test_encode_similarity_and_entailment_are_the_encoders(scoring: Scoring) -> None:
    sentences = [sentence for pair in PAIRS for sentence in pair]
    found = scoring.rows("encode", [{"sentence": sentence} for sentence in sentences])
    expected = scoring.encoder.encode(sentences)
    torch.testing.assert_close(torch.tensor([row["mean"] for row in found]), expected.mean, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(torch.tensor([row["variance"] for row in found]), expected.variance, rtol=1e-5, atol=1e-6)
    a, b = zip(*PAIRS, strict=True)
    found = scoring.rows("similarity", [{"a": one, "b": other} for one, other in PAIRS])
    assert [row["similarity"] for row in found] == pytest.approx(scoring.encoder.similarity(a, b).tolist(), rel=1e-5)
    found = scoring.rows("entailment", [{"premise": one, "hypothesis": other} for one, other in PAIRS])
    assert [row["score"] for row in found] == pytest.approx(scoring.encoder.similarity(b, a).tolist(), rel=1e-5)
    assert [row["entails"] for row in found] == scoring.encoder.entails(a, b).tolist()
    # Not the same question the other way round.
    assert found[0]["score"] != pytest.approx(found[1]["score"], rel=1e-5)


def test_a_model_with_a_relation_head_answers_by_it(scoring: Scoring) -> None:
    a, b = (list(side) for side in zip(*PAIRS, strict=True))
    with pytest.raises(UserError, match="no relation head"):
        OPERATIONS["relation"][1](scoring.encoder, a, b)
    encoder = copy.copy(scoring.encoder)
    encoder.relation_head = drawn_relation()
    expected = encoder.relation(a, b)
    found = OPERATIONS["relation"][1](encoder, a, b)
    assert tuple(found) == ("entailment", "neutral", "contradiction", "reversed", "label")
    assert found.pop("label") == encoder.decide(a, b)
    torch.testing.assert_close(torch.tensor(list(found.values()), dtype=torch.float64), torch.stack(expected))
    assert OPERATIONS["entailment"][1](encoder, a, b)["score"] == pytest.approx(expected.entailment.tolist())


RECORDS: dict[str, Any] = {"dataframe_records": [{"sentence": "A dog runs."}]}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"dataframe_records": [{"sentence": None}]}, "row 0: a missing value is not text"),
        ({"dataframe_records": [{"sentence": "A dog runs."}, {"sentence": " \u200b\n"}]}, "row 1: is empty or only white space"),
        (RECORDS | {"params": {"operation": "summarize"}}, "operation 'summarize' is unknown; there are encode, "),
        (RECORDS | {"params": {"operation": "similarity"}}, "must be a table with column 'a' and 'b'"),
        ({"dataframe_records": [{"sentence": "a" * 2**20}]}, "row 0: 1048576 characters are too many"),
        ({"dataframe_records": [{"sentence": "a"}] * (MAX_SENTENCES + 1)}, f"send at most {MAX_SENTENCES} per request"),
    ],
)
def test_a_bad_request_is_refused_and_the_server_goes_on(scoring: Scoring, body: Any, words: str) -> None:
    status, text = scoring.ask(body)
    assert 400 <= status < 500, text[:2000]
    assert words in text
    assert "Traceback" not in json.loads(text)["message"]
    assert len(scoring.rows("encode", RECORDS["dataframe_records"])) == 1


def test_many_at_once_get_their_own_answers(scoring: Scoring) -> None:
    sentences = [f"A dog number {number} runs {'on ' * (number % 7)}." for number in range(64)]
    expected = scoring.encoder.encode(sentences).mean
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda sentence: scoring.rows("encode", [{"sentence": sentence}])[0]["mean"], sentences))
    torch.testing.assert_close(torch.tensor(found), expected, rtol=1e-5, atol=1e-6)
