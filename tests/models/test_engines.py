"""OpenVINO against torch: the same numbers in float32, nearly the same in int8, and a name of its own for what differs."""

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

import pipeline
from pipeline.cli.encode import main as encode
from pipeline.cli.search import main as search
from pipeline.config.load import load_params
from pipeline.data.token_store import TokenStore
from pipeline.gaussian.distribution import Gaussian
from pipeline.identity.digests import library_versions
from pipeline.inference.corpus import engine_of, read_gaussians
from pipeline.models import engines
from pipeline.models.canaries import record, to_text
from pipeline.models.encoder import GaussianEncoder
from pipeline.models.model_dir import CANARIES, ENGINES, Engine
from pipeline.models.token_head import TokenProjection
from pipeline.utils.atomic_io import write_sums
from pipeline.utils.errors import UserError
from tests.distributed.bulk import make_project
from tests.relations import drawn_relation
from tests.trial_of import SHAPES, shaped_encoder, tiny_encoder

pytest.importorskip("openvino", reason="the extra 'openvino' is not installed")

TEXTS = ["a dog runs", "the old man is reading a long book in the garden today " * 4, "the cat on the mat", "a", "a dog runs"]
SENTENCES = [
    f"{who} {does}." for who in ("A dog", "Nobody", "A child") for does in ("runs", "eats", "sleeps at home", "sings here")
]


def saved(encoder: GaussianEncoder, folder: Path, *, canaries: bool = True) -> Path:
    encoder.save_pretrained(folder)
    found = record(encoder, SENTENCES)
    assert found is not None
    if canaries:
        (folder / CANARIES).write_text(to_text(found), encoding="utf-8")
        write_sums(folder)
    return folder


def packed(encoded: Gaussian) -> torch.Tensor:
    assert encoded.tokens is not None
    return encoded.tokens.packed().table.int()


@pytest.mark.filterwarnings("ignore:of .* sentences")
@pytest.mark.parametrize("changes", SHAPES.values(), ids=SHAPES)
def test_float32_gives_the_numbers_of_torch(tiny_backbone: Path, changes: dict[str, Any], tmp_path: Path) -> None:
    encoder = shaped_encoder(tiny_backbone, **changes)
    encoder.relation_head = drawn_relation()
    folder = saved(encoder, tmp_path / "model", canaries=False)
    expected, loaded = encoder.encode(TEXTS), pipeline.load(folder, engine="openvino")
    # Together, and alone: other shapes.
    for rows in (slice(0, 5), slice(1, 2), slice(3, 4)):
        given = loaded.encode(TEXTS[rows])
        torch.testing.assert_close(given.mean, expected[rows].mean, rtol=0, atol=1e-5)
        torch.testing.assert_close(given.log_var, expected[rows].log_var, rtol=0, atol=1e-5)
        # A number near the middle may be rounded the other way.
        assert (packed(given) - packed(expected[rows])).abs().max() <= 1
        assert given.tokens is not None and expected.tokens is not None
        assert given.tokens.length.tolist() == expected.tokens.length[rows].tolist()
    # Other token vectors than those of the head are torch's.
    store, rows = TokenStore.of(encoder.tokenizer(TEXTS[:1])["input_ids"], 0), np.zeros(1, np.int64)  # type: ignore[arg-type]
    other = TokenProjection(32, 5).eval()
    assert packed(loaded.encode_rows(store, rows, project=other)).shape[1] == 5
    assert loaded.digest == pipeline.load(folder).digest
    assert loaded.score(TEXTS, TEXTS[::-1]).tolist() == pytest.approx(encoder.score(TEXTS, TEXTS[::-1]).tolist(), abs=1e-3)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packaged encoder, whose heads are drawn."""
    encoder = GaussianEncoder.from_backbone(load_params(Path("params.yaml")).model.encoder, 1).eval()
    encoder.relation_head = drawn_relation(hidden=384)
    return saved(encoder, tmp_path_factory.mktemp("real") / "model")


def test_int8_is_near_and_is_told_apart(real: Path) -> None:
    encoder, one, two = pipeline.load(real), *(pipeline.load(real, engine="openvino-int8") for _ in range(2))
    texts = [*SENTENCES, "The museum is open on Mondays.", "No.", "SELECT * FROM users WHERE id = 7;", "Der Hund läuft."]
    expected, given, again = (model.encode(texts) for model in (encoder, one, two))
    assert torch.nn.functional.cosine_similarity(given.mean, expected.mean).min() > 0.98
    assert (given.log_var - expected.log_var).abs().max() < 0.1
    # It computes in int8 indeed, activations too, and always the same.
    assert (given.mean - expected.mean).abs().max() > 1e-4
    assert one.compiled is not None
    assert one.compiled._request.get_compiled_model().get_property("DYNAMIC_QUANTIZATION_GROUP_SIZE") == 128
    for part in (Gaussian.stacked, packed):
        assert torch.equal(part(given), part(again))
    assert one.digest == f"{encoder.digest} openvino-int8"
    # The heads are float32: quantized like the backbone, they would have weights of int8.
    model = engines.converted(engines.EncoderGraph(encoder), "openvino-int8")
    constants = [op for op in model.get_ops() if op.get_type_name() == "Constant"]
    eights = [op.get_friendly_name() for op in constants if "int8" in str(op.get_element_type())]
    assert len(eights) > 6 * 6 and all("backbone" in name for name in eights)
    # Dimensions that are cut leave nothing that still computes them all.
    assert one.cut(8) is None and one.encode(texts).mean.shape == (len(texts), 8)


def test_what_cannot_be_computed_is_one_line(
    real: Path, tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = saved(tiny_encoder(tiny_backbone), tmp_path / "plain", canaries=False)
    with pytest.raises(UserError, match=r"^engine is 'onnx': write one of torch, openvino, openvino-int8$"):
        pipeline.load(plain, engine="onnx")  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"^device 'cuda': openvino computes on the CPU only; use the engine torch$"):
        pipeline.load(plain, engine="openvino", device="cuda")
    for missing in ("openvino", "nncf"):
        with monkeypatch.context() as without:
            without.setitem(sys.modules, missing, None)
            with pytest.raises(
                UserError, match=r"^engine openvino-int8: needs openvino and nncf: pip install 'gausscse-pipeline\[openvino\]'$"
            ):
                pipeline.load(real, engine="openvino-int8")


def test_it_reports_nothing_to_its_makers(tmp_path: Path, tiny_backbone: Path) -> None:
    folder = saved(tiny_encoder(tiny_backbone), tmp_path / "model")
    load = f"pipeline.load({str(folder)!r}, engine='openvino-int8')"
    code = f"import sys, pipeline; {load}; print(sys.modules['openvino_telemetry'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "None\n"), done.stderr


def test_threads_are_those_that_were_asked_for(real: Path) -> None:
    for threads in (1, 2):
        model = GaussianEncoder.from_pretrained(real, "openvino", threads)
        assert model.compiled is not None
        assert model.compiled._request.get_compiled_model().get_property("INFERENCE_NUM_THREADS") == threads


@pytest.mark.slow
@pytest.mark.faults
def test_a_corpus_is_searched_by_the_engine_that_encoded_it(
    tmp_path: Path, tiny_backbone: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = make_project(tmp_path, tiny_backbone)
    encoder = GaussianEncoder.from_pretrained(root / "model")
    with torch.no_grad():
        encoder.variance_head.weight.mul_(20)
    folder = str(saved(encoder, root / "registered"))
    pq.write_table(pa.table({"text": SENTENCES}), root / "texts.parquet")
    monkeypatch.chdir(root)
    results: dict[Engine, Any] = {}
    for engine in ENGINES:
        encode(["texts.parquet", engine, "--column", "text", "--keep", "text", "--model", folder, "--engine", engine])
        own = pipeline.load(folder, engine=engine)
        versions = json.loads((root / engine / "_manifest.json").read_text(encoding="utf-8"))["parts"][0]["versions"]
        assert versions == library_versions(*(() if engine == "torch" else ("openvino", "nncf")))
        torch.testing.assert_close(read_gaussians(engine).gaussians.mean, own.encode(SENTENCES).mean, rtol=0, atol=1e-5)
        capsys.readouterr()
        search([engine, SENTENCES[0], "--model", folder, "-k", "3"])
        results[engine] = capsys.readouterr().out
    rows = {engine: [line.partition("row")[2] for line in lines.splitlines()] for engine, lines in results.items()}
    assert len(rows["torch"]) == 3 and rows["torch"] == rows["openvino"]
    assert [engine_of(engine) for engine in ENGINES] == ["torch", "torch", "openvino-int8"]
    # From Python: float32 of either, int8 only with itself.
    mixed: list[tuple[Engine, Engine, bool]] = [
        ("torch", "openvino", True),
        ("openvino", "torch", True),
        ("openvino-int8", "torch", False),
        ("torch", "openvino-int8", False),
        ("openvino-int8", "openvino-int8", True),
    ]
    for corpus, engine, fits in mixed:
        model = pipeline.load(folder, engine=engine)
        if fits:
            assert len(pipeline.search(model, corpus, SENTENCES[0], k=3)) == 3
        else:
            with pytest.raises(UserError, match="was encoded by another model or engine; name those that did"):
                pipeline.search(model, corpus, SENTENCES[0], k=3)
    # Another engine is another run.
    with pytest.raises(UserError, match="--update"):
        encode(["texts.parquet", "torch", "--column", "text", "--keep", "text", "--model", folder, "--engine", "openvino-int8"])
    with pytest.raises(UserError, match=r"^--bf16: has no effect on --engine openvino; leave one of the two out$"):
        encode(["texts.parquet", "other", "--engine", "openvino", "--bf16"])
