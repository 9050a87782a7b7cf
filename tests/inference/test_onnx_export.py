"""The ONNX export: the same numbers as torch, from a process that has neither torch nor us."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pipeline.cli.export import main
from pipeline.gaussian.distribution import Gaussian
from pipeline.inference import onnx_export
from pipeline.inference.onnx_export import RELATION, _quiet, _write, export_onnx, export_openvino
from pipeline.models.encoder import GaussianEncoder
from pipeline.models.graphs import RelationGraph
from pipeline.models.relation_head import ScoreKind
from pipeline.models.threshold import Calibration, read_calibration
from pipeline.utils.atomic_io import check_sums
from pipeline.utils.errors import UserError
from tests.pages import python_of
from tests.relations import drawn_relation, with_tokens
from tests.trial_of import SHAPES, shaped_encoder

for package in ("onnx", "onnxruntime", "onnxscript"):
    pytest.importorskip(package, reason="the extra 'onnx' is not installed")

PREMISES = ["a dog runs", "the old man is reading a long book in the garden, " * 5, "two children play outside today", "a"]
HYPOTHESES = ["an animal moves", "a man reads", "two children play outside today", "the cat"]
SHOW = """
import sys
assert not {"torch", "transformers", "pipeline"} & set(sys.modules)
premises, hypotheses = json.loads(sys.argv[1])
# Together, padded to the longest; and alone, which is another batch size and another length.
alone = [[encode([sentence])[name][0].tolist() for name in ("mean", "log_var")] for sentence in premises]
together = [encode(premises)[name].tolist() for name in ("mean", "log_var")]
print(json.dumps([*together, alone, entails(premises, hypotheses).tolist()]))
"""


def encoder_of(backbone: Path, **changes: Any) -> GaussianEncoder:
    encoder = shaped_encoder(backbone, **changes)
    if encoder.params.variance_head == "log_var":
        with torch.no_grad():
            # Not the small differences of a new head, which would hide a wrong one.
            encoder.variance_head.weight.mul_(20)
    return encoder


@pytest.mark.faults
@pytest.mark.filterwarnings("ignore:of .* sentences")
@pytest.mark.parametrize("changes", SHAPES.values(), ids=SHAPES)
def test_it_gives_the_same_numbers_without_torch(tiny_backbone: Path, changes: dict[str, Any], tmp_path: Path) -> None:
    encoder = encoder_of(tiny_backbone, **changes)
    encoder.relation_head = drawn_relation(kind="kl-dimwise")
    encoder.calibration = Calibration(threshold=0.25, entailment_if=">=", swept_on="dev", pairs="d" * 64, accuracy=81.5)
    export_onnx(encoder, tmp_path / "onnx")
    done = subprocess.run(
        [sys.executable, "-c", "\n".join([*python_of("export.md", "ONNX"), SHOW]), json.dumps([PREMISES, HYPOTHESES])],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    mean, log_var, alone, probabilities = json.loads(done.stdout.splitlines()[-1])
    expected = encoder.encode(PREMISES)
    np.testing.assert_allclose(mean, expected.mean.numpy(), rtol=0, atol=1e-5)
    np.testing.assert_allclose(log_var, expected.log_var.numpy(), rtol=0, atol=1e-5)
    np.testing.assert_allclose(alone, torch.stack((expected.mean, expected.log_var), 1).numpy(), rtol=0, atol=1e-5)
    # A number of a token that is near the middle may be rounded the other way.
    np.testing.assert_allclose(probabilities, np.stack(encoder.relation(PREMISES, HYPOTHESES), 1), rtol=0, atol=1e-3)
    check_sums(tmp_path / "onnx")
    assert read_calibration(tmp_path / "onnx") == encoder.calibration


@pytest.mark.parametrize("kind", ["kl", "cosine"])
def test_relation_heads_of_the_other_scores_are_exported_too(kind: ScoreKind, tmp_path: Path) -> None:
    import onnxruntime

    relation = drawn_relation(kind=kind)
    with _quiet():
        _write(RelationGraph(relation, 16), tmp_path / RELATION)
    session = onnxruntime.InferenceSession(tmp_path / RELATION)
    parts = list(torch.randn(4, 50, 16, generator=torch.Generator().manual_seed(2)))
    # Two equal sentences have a similarity of 1, whose log-odds are cut.
    parts[2][:5], parts[3][:5] = parts[0][:5], parts[1][:5]
    pair = with_tokens(Gaussian(*parts[:2])), with_tokens(Gaussian(*parts[2:]), seed=1)
    inputs: dict[str, Any] = {}
    for name, one in zip(("premise", "hypothesis"), pair, strict=True):
        vectors, mask = one.tokens.padded()  # type: ignore[union-attr]
        tokens = (127 * vectors).round().to(torch.int8)
        own = {"mean": one.mean, "log_var": one.log_var, "tokens": tokens, "mask": mask.long()}
        inputs |= {f"{name}_{part}": numbers.numpy() for part, numbers in own.items()}
    expected = relation.probabilities(*pair).numpy()
    np.testing.assert_allclose(np.asarray(session.run(None, inputs)[0]), expected, rtol=0, atol=1e-5)


READ = """
import json, sys
import numpy as np
import openvino
assert not {"torch", "transformers", "pipeline"} & set(sys.modules)
ids, mask, other, other_mask = (np.array(part) for part in json.loads(sys.argv[1]))
core, exact = openvino.Core(), {"INFERENCE_PRECISION_HINT": "f32"}
encoder, relation = (core.compile_model(f"out/{name}.xml", "CPU", exact) for name in ("encoder", "relation"))
read = [encoder({"input_ids": ids, "attention_mask": mask}), encoder({"input_ids": other, "attention_mask": other_mask})]
pair = {f"{side}_mask": mask for side, mask in (("premise", mask), ("hypothesis", other_mask))}
for side, one in zip(("premise", "hypothesis"), read):
    pair |= {f"{side}_{part}": one[part] for part in ("mean", "log_var", "tokens")}
print(json.dumps([read[0]["mean"].tolist(), read[0]["log_var"].tolist(), relation(pair)["probabilities"].tolist()]))
"""


@pytest.mark.filterwarnings("ignore:of .* sentences")
def test_openvino_reads_an_export_without_torch(tiny_backbone: Path, tmp_path: Path) -> None:
    encoder = encoder_of(tiny_backbone, pooling="mean")
    encoder.relation_head = drawn_relation(kind="kl-dimwise")
    export_openvino(encoder, tmp_path / "out")
    check_sums(tmp_path / "out")
    texts: list[Any] = []
    for sentences in (PREMISES, HYPOTHESES):
        read = encoder.tokenizer(sentences, truncation=True, max_length=24, padding=True)
        texts += [read["input_ids"], read["attention_mask"]]
    done = subprocess.run([sys.executable, "-c", READ, json.dumps(texts)], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    mean, log_var, probabilities = json.loads(done.stdout.splitlines()[-1])
    expected = encoder.encode(PREMISES)
    np.testing.assert_allclose(mean, expected.mean.numpy(), rtol=0, atol=1e-5)
    np.testing.assert_allclose(log_var, expected.log_var.numpy(), rtol=0, atol=1e-5)
    np.testing.assert_allclose(probabilities, np.stack(encoder.relation(PREMISES, HYPOTHESES), 1), rtol=0, atol=1e-3)


def test_what_cannot_be_exported_is_one_line_and_no_folder(
    tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = encoder_of(tiny_backbone)
    encoder.save_pretrained(tmp_path / "model")
    with pytest.raises(UserError, match="model: already exists; name a new folder"):
        main([str(tmp_path / "model"), str(tmp_path / "model"), "--format", "onnx"])
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(UserError, match=r"needs onnx, onnxruntime and onnxscript: pip install 'gausscse-pipeline\[onnx\]'"):
        export_onnx(encoder, tmp_path / "out")
    monkeypatch.undo()

    def full(_: Path) -> None:
        raise OSError(28, "No space left on device")

    # The graph itself takes seconds.
    monkeypatch.setattr(onnx_export, "_write", lambda *_: None)
    monkeypatch.setattr(encoder, "write_weights", full)
    with pytest.raises(UserError, match=r"out: cannot be written \(No space left on device\)"):
        export_onnx(encoder, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
