"""`gausscse ask` prints what the encoder says, and `gausscse --version` the version of the package."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from pipeline.cli import ask
from pipeline.cli.main import COMMANDS
from pipeline.models.encoder import GaussianEncoder
from pipeline.models.threshold import Calibration
from pipeline.utils.errors import UserError
from tests.copies import ROOT
from tests.relations import drawn_relation
from tests.trial_of import tiny_encoder

A, B = "a dog runs across a field", "an animal is moving"


def asked(model: Path, a: str, b: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    # Its project names the model that is asked by default.
    monkeypatch.chdir(ROOT)
    ask.main([a, b, "--model", str(model)])
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(("head", "threshold"), [(True, 0.2), (True, 0.999), (True, 0.0), (False, 0.2)])
def test_the_answer_is_the_encoders(
    tiny_backbone: Path,
    tmp_path: Path,
    head: bool,
    threshold: float,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = tiny_encoder(tiny_backbone)
    made.relation_head = drawn_relation() if head else None
    made.calibration = Calibration(threshold=threshold, entailment_if=">=", swept_on="dev", pairs="d" * 64, accuracy=80.0)
    made.save_pretrained(tmp_path / "model")
    encoder = GaussianEncoder.from_pretrained(tmp_path / "model")
    for a, b in ((A, B), (B, A)):
        first, *because, second = asked(tmp_path / "model", a, b, capsys, monkeypatch)
        if head:
            name, _, chances = first.partition(": ")
            assert name == encoder.decide(a, b)
            expected = {one: f"{100 * chance:.1f}" for one, chance in encoder.relation(a, b).items()}
            assert dict(re.findall(r"(\w+) ([\d.]+) %", chances)) == expected
            score = f"because the score of entailment is {encoder.score([a], [b]).item():.3f} and its threshold {threshold:.3f}"
            assert because == ([score] if name != max(expected, key=lambda one: float(expected[one])) else [])
        else:
            assert first == ("entailment" if encoder.entails(a, b) else "no entailment")
        assert second == f"similarity: sim(B‖A) {encoder.similarity(b, a):.4f}, sim(A‖B) {encoder.similarity(a, b):.4f}"


def test_texts_that_the_model_does_not_know_are_said(
    tiny_backbone: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    tiny_encoder(tiny_backbone).save_pretrained(tmp_path / "model")
    asked(tmp_path / "model", A, "犬が走る", capsys, monkeypatch)
    assert "of 2 sentences 1 have many words or characters that the model does not know" in caplog.text
    with pytest.raises(UserError, match="sentence 1 is empty"):
        asked(tmp_path / "model", A, " ", capsys, monkeypatch)


def test_the_version_is_that_of_the_package() -> None:
    printed = subprocess.run(
        [sys.executable, "-m", "pipeline.cli", "--version"], capture_output=True, text=True, cwd=ROOT, check=True
    )
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert printed.stdout == f"gausscse {project['version']}\n"


def test_the_shell_completes_commands() -> None:
    script = f'eval "$({sys.executable} -m pipeline.cli --completion)" && complete -p gausscse'
    said = subprocess.run(["bash", "-c", script], capture_output=True, text=True, cwd=ROOT, check=True).stdout
    assert {*COMMANDS, "curl"} <= set(said.replace("'", " ").split())
