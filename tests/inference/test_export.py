"""The sentence-transformers export: the same means and variances, from a process that has nothing of ours."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from safetensors.numpy import load_file
from transformers import AutoConfig, AutoModel, AutoTokenizer

from pipeline.cli.export import main
from pipeline.data.schema import RELATIONS
from pipeline.families.operations.encoder import OPERATORS
from pipeline.families.operations.operators import OperatorKind, SentenceOperators
from pipeline.inference.export import export
from pipeline.inference.onnx_export import ENCODER, export_onnx
from pipeline.models.encoder import GaussianEncoder
from pipeline.models.model_dir import CARD
from pipeline.utils.atomic_io import check_sums, write_sums
from pipeline.utils.errors import UserError
from tests.conftest import ROOT
from tests.operator_encoder import with_operators
from tests.relations import drawn_relation
from tests.trial_of import tiny_encoder

SentenceTransformer = pytest.importorskip(
    "sentence_transformers", reason="the extra 'export' is not installed"
).SentenceTransformer

SENTENCES = ["a dog runs", "the old man is reading a long book in the garden, " * 5, "two children play outside today", "a"]
LOAD = """
import json, sys
# The project is installed in this environment: its folder has to be hidden.
sys.path = [p for p in sys.path if p != sys.argv[2]]
from sentence_transformers import SentenceTransformer
model = SentenceTransformer(sys.argv[1], device="cpu", trust_remote_code=False, local_files_only=True)
assert not any(name.startswith("pipeline") for name in sys.modules)
sentences, name = json.loads(sys.argv[3]), sys.argv[4]
variances = [row[name].tolist() for row in model.encode(sentences, output_value=None)]
print(json.dumps([model.encode(sentences).tolist(), variances]))
"""


@pytest.mark.filterwarnings("ignore:of .* sentences")
@pytest.mark.parametrize(
    "changes",
    [{}, {"pooling": "mean", "mean_activation": "none", "dim": 7, "variance_head": "sigma"}],
    ids=["first token, tanh", "mean of tokens, no activation, 7 dimensions, sigma"],
)
def test_it_gives_the_same_vectors_without_us(tiny_backbone: Path, changes: dict[str, Any], tmp_path: Path) -> None:
    encoder = tiny_encoder(tiny_backbone, **changes)
    export(encoder, tmp_path / "exported")
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {"HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", LOAD, str(tmp_path / "exported"), str(ROOT), json.dumps(SENTENCES), encoder.params.variance_head],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    means, variances = map(np.asarray, json.loads(done.stdout.splitlines()[-1]))
    expected = encoder.encode(SENTENCES)
    np.testing.assert_allclose(means, expected.mean.numpy(), atol=1e-5)
    if encoder.params.variance_head == "sigma":
        variances = np.log(variances**2 + 1e-6)
    np.testing.assert_allclose(variances, expected.log_var.numpy(), atol=1e-5)
    # No file that would be unpickled, and nobody's code.
    assert not [file for file in (tmp_path / "exported").rglob("*") if file.suffix in (".bin", ".pt", ".pkl", ".py")]


def test_special_tokens_in_a_text_mean_the_same_everywhere(tiny_backbone: Path, tmp_path: Path) -> None:
    """RoBERTa models number the positions by the token ids, so that a padding token in a text moves those after it."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_backbone)
    config = AutoConfig.for_model(
        "roberta", vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=32, pad_token_id=tokenizer.pad_token_id, initializer_range=0.5,
    )  # fmt: skip
    torch.manual_seed(0)
    backbone = AutoModel.from_config(config).eval()
    backbone.save_pretrained(tmp_path / "backbone")
    tokenizer.save_pretrained(tmp_path / "backbone")
    encoder = tiny_encoder(tmp_path / "backbone")
    texts = ["a dog runs", "[PAD] a dog runs", "a [PAD] dog [PAD] [PAD] runs", "a dog runs [PAD]", "a [SEP] dog [CLS]", "[MASK]"]
    found = encoder.encode(texts).mean
    assert len(torch.unique(found, dim=0)) == len(texts)
    with torch.no_grad():
        states = backbone(**tokenizer(texts, padding=True, return_tensors="pt")).last_hidden_state[:, 0]
        expected = encoder.gaussian_of([states]).mean
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    export(encoder, tmp_path / "exported")
    vectors = SentenceTransformer(str(tmp_path / "exported"), device="cpu", local_files_only=True).encode(texts)
    np.testing.assert_allclose(vectors, expected.numpy(), atol=1e-5)
    export_onnx(encoder, tmp_path / "onnx")
    tokens = tokenizer(texts, padding=True, return_tensors="np")
    inputs = {name: tokens[name].astype(np.int64) for name in ("input_ids", "attention_mask")}
    mean, _ = onnxruntime.InferenceSession(tmp_path / "onnx" / ENCODER).run(["mean", "log_var"], inputs)
    np.testing.assert_allclose(np.asarray(mean), expected.numpy(), rtol=0, atol=1e-5)


@pytest.mark.filterwarnings("ignore:of .* sentences")
@pytest.mark.parametrize("kind", ["mlp", "arithmetic"])
def test_its_operators_turn_exported_vectors_into_the_model_s_outputs(
    tiny_backbone: Path, kind: OperatorKind, tmp_path: Path
) -> None:
    encoder = tiny_encoder(tiny_backbone)
    torch.manual_seed(3)
    modules = SentenceOperators(encoder.dim, kind, None).eval()
    for parameter in modules.operators.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    encoder = with_operators(encoder, modules)
    export(encoder, tmp_path / "exported")
    file = tmp_path / "exported" / OPERATORS
    assert file.exists() == (kind == "mlp")
    if kind == "mlp":
        weights = load_file(file)
        vectors = SentenceTransformer(str(tmp_path / "exported"), device="cpu", local_files_only=True).encode(SENTENCES[:2])
        a, b = vectors
        inputs = {"fusion": np.concatenate(vectors), "difference": np.concatenate(vectors), "compression": a}
        plain = {"fusion": a + b, "difference": a - b, "compression": a}
        outputs = {
            name: plain[name]
            + weights[f"{name}.2.weight"] @ np.maximum(weights[f"{name}.0.weight"] @ x + weights[f"{name}.0.bias"], 0)
            + weights[f"{name}.2.bias"]
            for name, x in inputs.items()
        }
        assert outputs.keys() == {name.partition(".")[0] for name in weights}
        for name, x in (
            ("fusion", encoder.fuse(*SENTENCES[:2])),
            ("difference", encoder.difference(*SENTENCES[:2])),
            ("compression", encoder.compress(SENTENCES[0])),
        ):
            np.testing.assert_allclose(outputs[name], x.numpy(), atol=1e-5)
        export_onnx(encoder, tmp_path / "onnx")
        check_sums(tmp_path / "onnx")
        assert (tmp_path / "onnx" / OPERATORS).read_bytes() == file.read_bytes()


def test_a_model_s_folder_is_exported_by_a_command(
    tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    encoder = tiny_encoder(tiny_backbone)
    encoder.relation_head = drawn_relation()
    encoder.save_pretrained(tmp_path / "model")
    (tmp_path / "model" / CARD).write_text(
        '---\nlanguage: en\n---\n\ngausscse.load("this folder")\n\n# A card\n', encoding="utf-8"
    )
    write_sums(tmp_path / "model")
    loads = {"sentence-transformers": "modules.json", "onnx": "onnx.json", "gausscse": "config.json"}
    for form, file in loads.items():
        main([str(tmp_path / "model"), str(out := tmp_path / form), "--format", form, "--dims", "8"])
        assert "8 dimensions" in capsys.readouterr().out
        assert (out / file).is_file()
        check_sums(out)
        assert {path.stat().st_mode & 0o777 for path in out.rglob("*") if path.is_file()} == {0o644}
        card = (out / CARD).read_text(encoding="utf-8")
        assert "0 entailment, 1 neutral, 2 contradiction, 3 reversed" in card and card.endswith("\n\n# A card\n")
        assert "the first 8 of 32 dimensions" in card
        # What the card says to load can be loaded.
        loaded = re.search(r'gausscse\.load\("(.*)"\)', card)
        assert loaded is not None and loaded[1] == ("this folder" if form == "gausscse" else str(tmp_path / "model"))
    assert json.loads((tmp_path / "onnx/onnx.json").read_text())["relations"] == list(RELATIONS)
    assert GaussianEncoder.from_pretrained(tmp_path / "gausscse").dim == 8
    # Not over the model itself, nor anything else.
    with pytest.raises(UserError, match="model: already exists; name a new folder"):
        main([str(tmp_path / "model"), str(tmp_path / "model")])
    assert (tmp_path / "model/config.json").is_file()
    with pytest.raises(UserError, match=r"nothing: no config\.json here"):
        main([str(tmp_path / "nothing"), str(tmp_path / "none")])
    assert not (tmp_path / "none").exists()
