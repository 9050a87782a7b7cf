"""The ONNX export: the same numbers as torch, from a process that has neither torch nor us, and what int8 costs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from sklearn.metrics import auc, precision_recall_curve

from pipeline.cli.export import main
from pipeline.data.generated import generate
from pipeline.gaussian.distribution import Gaussian
from pipeline.inference import onnx_export
from pipeline.inference.onnx_export import (
    ABOUT,
    ENCODER,
    ENCODER_INT8,
    RELATION,
    _quiet,
    export_onnx,
    onnx_encode,
    write_relation,
)
from pipeline.models.encoder import GaussianEncoder
from pipeline.models.relation_head import ScoreKind
from pipeline.models.threshold import Calibration, read_calibration
from pipeline.utils.atomic_io import check_sums
from pipeline.utils.errors import UserError
from tests.pages import python_of
from tests.relations import drawn_relation
from tests.trial_of import tiny_encoder

for package in ("onnx", "onnxruntime", "onnxscript"):
    pytest.importorskip(package, reason="the extra 'onnx' is not installed")

PREMISES = ["a dog runs", "the old man is reading a long book in the garden, " * 5, "two children play outside today", "a"]
HYPOTHESES = ["an animal moves", "a man reads", "two children play outside today", "the cat"]
SHOW = """
import sys
assert not {"torch", "transformers", "pipeline"} & set(sys.modules)
premises, hypotheses = json.loads(sys.argv[1])
# Together, padded to the longest; and alone, which is another batch size and another length.
alone = [[part[0].tolist() for part in encode([sentence])] for sentence in premises]
print(json.dumps([*[part.tolist() for part in encode(premises)], alone, entails(premises, hypotheses).tolist()]))
"""


def encoder_of(backbone: Path, **changes: Any) -> GaussianEncoder:
    encoder = tiny_encoder(backbone, **changes)
    if encoder.params.variance_head == "log_var":
        with torch.no_grad():
            # Not the small differences of a new head, which would hide a wrong one.
            encoder.variance_head.weight.mul_(20)
    return encoder


@pytest.mark.faults
@pytest.mark.filterwarnings("ignore:of .* sentences")
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"pooling": "mean", "mean_activation": "none", "dim": 7, "variance_head": "sigma"},
        {"towers": "encoders"},
    ],
    ids=["first token, tanh", "mean of tokens, no activation, 7 dimensions, sigma", "two backbones"],
)
def test_it_gives_the_same_numbers_without_torch(tiny_backbone: Path, changes: dict[str, Any], tmp_path: Path) -> None:
    encoder = encoder_of(tiny_backbone, **changes)
    if encoder.second_backbone is not None:
        with torch.no_grad():
            # As after training: the two differ.
            encoder.second_backbone.embeddings.word_embeddings.weight.mul_(1.5)  # type: ignore[union-attr, operator]
    encoder.relation_head = drawn_relation(encoder.dim, "kl-dimwise", difference=True)
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
    np.testing.assert_allclose(probabilities, encoder.relation(PREMISES, HYPOTHESES).numpy(), rtol=0, atol=1e-5)
    check_sums(tmp_path / "onnx")
    assert read_calibration(tmp_path / "onnx") == encoder.calibration


@pytest.mark.parametrize("kind", ["kl", "cosine"])
def test_relation_heads_of_the_other_scores_are_exported_too(kind: ScoreKind, tmp_path: Path) -> None:
    import onnxruntime

    relation = drawn_relation(16, kind)
    with _quiet():
        write_relation(relation, tmp_path / RELATION)
    session = onnxruntime.InferenceSession(tmp_path / RELATION)
    parts = list(torch.randn(4, 50, 16, generator=torch.Generator().manual_seed(2)))
    # Two equal sentences have a similarity of 1, whose log-odds are cut.
    parts[2][:5], parts[3][:5] = parts[0][:5], parts[1][:5]
    inputs = {one.name: part.numpy() for one, part in zip(session.get_inputs(), parts, strict=True)}
    expected = relation.probabilities(Gaussian(*parts[:2]), Gaussian(*parts[2:])).numpy()
    np.testing.assert_allclose(np.asarray(session.run(None, inputs)[0]), expected, rtol=0, atol=1e-5)


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    premise, hypothesis, label, _ = zip(*(row for row, _ in zip(generate("dev", 400, 1), range(400), strict=False)), strict=True)
    # One without a gold label is left out.
    table = pa.table({"premise": [*premise, "a dog"], "hypothesis": [*hypothesis, "a cat"], "label": [*label, "-"]})
    pq.write_table(table, tmp_path / "pairs.parquet")
    return tmp_path / "pairs.parquet"


@pytest.mark.faults
def test_the_loss_of_int8_is_that_of_the_files_that_were_written(
    tiny_backbone: Path, pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import onnx

    encoder = encoder_of(tiny_backbone)
    encoder.relation_head = drawn_relation(encoder.dim)
    encoder.save_pretrained(tmp_path / "model")
    main([str(tmp_path / "model"), str(tmp_path / "out"), "--format", "onnx", "--int8", str(pairs)])
    out = tmp_path / "out"
    said = json.loads((out / ABOUT).read_text(encoding="utf-8"))["int8"]
    rows = pq.read_table(pairs).slice(0, 400).to_pydict()
    # In the same order: the activations of a batch are quantised by their common range.
    unique = list(dict.fromkeys([*rows["premise"], *rows["hypothesis"]]))
    areas: dict[str, float] = {}
    for name in (ENCODER, ENCODER_INT8):
        gaussians = onnx_encode(out / name, encoder, unique)
        p, h = (gaussians[torch.tensor([unique.index(text) for text in rows[side]])] for side in ("premise", "hypothesis"))
        precision, recall, _ = precision_recall_curve(
            [label == "entailment" for label in rows["label"]], encoder.relation_head.score(p, h).numpy()
        )
        areas[name] = 100 * float(auc(recall, precision))
    assert said["pairs"] == 400
    assert said["pr_auc"] == pytest.approx(areas[ENCODER], abs=1e-6)
    assert said["pr_auc_int8"] == pytest.approx(areas[ENCODER_INT8], abs=1e-6)
    assert said["pr_auc"] != said["pr_auc_int8"]
    assert f"a loss of {said['pr_auc'] - said['pr_auc_int8']:.2f}" in capsys.readouterr().out
    # Every linear layer of the backbone is in integers, and what is computed is still the same within their precision.
    kinds = [node.op_type for node in onnx.load(out / ENCODER_INT8).graph.node]
    assert kinds.count("MatMulInteger") >= 6 * 2
    exact, rounded = (onnx_encode(out / name, encoder, rows["premise"]).mean for name in (ENCODER, ENCODER_INT8))
    assert 1e-5 < float((exact - rounded).abs().mean()) < 0.1 * float(exact.std())
    assert (out / ENCODER_INT8).stat().st_size < 0.8 * (out / ENCODER).stat().st_size


def test_what_cannot_be_exported_is_one_line_and_no_folder(
    tiny_backbone: Path, pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = encoder_of(tiny_backbone)
    encoder.save_pretrained(tmp_path / "model")
    arguments = [str(tmp_path / "model"), str(tmp_path / "out")]
    with pytest.raises(UserError, match="--int8: only ONNX has a quantised encoder; add --format onnx"):
        main([*arguments, "--int8", str(pairs)])
    with pytest.raises(UserError, match=r"none\.parquet"):
        main([*arguments, "--format", "onnx", "--int8", str(tmp_path / "none.parquet")])
    pq.write_table(pq.read_table(pairs).filter(pa.compute.field("label") == "neutral"), tmp_path / "neutral.parquet")
    with pytest.raises(UserError, match=r"neutral\.parquet: PR-AUC needs pairs that are an entailment and pairs that are not"):
        main([*arguments, "--format", "onnx", "--int8", str(tmp_path / "neutral.parquet")])
    with pytest.raises(UserError, match="model: already exists; name a new folder"):
        main([str(tmp_path / "model"), str(tmp_path / "model"), "--format", "onnx"])
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(UserError, match=r"needs onnx, onnxruntime and onnxscript: pip install 'gausscse-pipeline\[onnx\]'"):
        export_onnx(encoder, tmp_path / "out")
    monkeypatch.undo()
    # A fault half-way leaves nothing.
    monkeypatch.setattr(onnx_export, "_quantise", lambda folder: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(UserError, match=r"out: cannot be written \(No space left on device\)"):
        main([*arguments, "--format", "onnx", "--int8", str(pairs)])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "neutral.parquet", "pairs.parquet"]
