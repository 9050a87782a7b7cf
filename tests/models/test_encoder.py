from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from conftest import PLAIN
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoTokenizer, RobertaConfig, RobertaModel

from pipeline.cli.export import main
from pipeline.config.load import load_params
from pipeline.data.token_store import TokenStore
from pipeline.gaussian.distribution import Gaussian, SimilarityKind
from pipeline.inference.export import export
from pipeline.models.backbone import resolve
from pipeline.models.encoder import GaussianEncoder
from pipeline.models.model_dir import dimensions
from pipeline.models.packing import lay_out
from pipeline.models.threshold import Calibration
from pipeline.utils.errors import UserError
from tests.relations import drawn_relation
from tests.trial_of import tiny_encoder

SENTENCES = ["a dog runs", "the old man is reading a long book in the garden", "a dog", ".", "two children play outside today"]


@pytest.fixture(scope="module")
def encoder(tiny_backbone: Path) -> GaussianEncoder:
    return tiny_encoder(tiny_backbone).train()


def test_encode_does_not_depend_on_company_or_order(encoder: GaussianEncoder) -> None:
    together = encoder.encode(SENTENCES)
    assert together.mean.shape == (5, encoder.dim)
    for row, sentence in enumerate(SENTENCES):
        alone = encoder.encode([sentence])
        torch.testing.assert_close(alone.mean[0], together.mean[row], atol=1e-5, rtol=0)
        torch.testing.assert_close(alone.log_var[0], together.log_var[row], atol=1e-5, rtol=0)
    assert encoder.training  # encode() gives the mode back
    assert len(encoder.encode([])) == 0


def test_encode_takes_any_iterable_of_strings_only(encoder: GaussianEncoder) -> None:
    assert len(encoder.encode(s for s in SENTENCES)) == 5
    with pytest.raises(UserError, match="sentence 1 has half a character"):
        encoder.encode(["eine Straße", "a dog \udcff"])
    with pytest.raises(UserError, match="sentence 1 is int"):
        encoder.encode(["a", 3])  # type: ignore[list-item]
    with pytest.raises(UserError, match=r"takes a list of sentences, not str; for one sentence, write \[sentence\]"):
        encoder.encode("a dog runs")


def test_small_batches_and_a_bar_change_nothing(encoder: GaussianEncoder, capsys: pytest.CaptureFixture[str]) -> None:
    expected = encoder.encode(SENTENCES)
    assert capsys.readouterr().err == ""
    for batch_size in (1, 2, 100):
        found = encoder.encode(SENTENCES, batch_size=batch_size, show_progress_bar=True)
        torch.testing.assert_close(found.mean, expected.mean, atol=1e-5, rtol=0)
        torch.testing.assert_close(found.log_var, expected.log_var, atol=1e-5, rtol=0)
        assert "5/5" in capsys.readouterr().err
    with pytest.raises(UserError, match="batch_size is 0: write a whole number of at least 1"):
        encoder.encode(SENTENCES, batch_size=0)


def test_very_long_sentences_are_encoded_and_counted(encoder: GaussianEncoder) -> None:
    long = "the old man is reading a long book " * 2_000
    with pytest.warns(UserWarning, match="^of 3 sentences 1 are longer than 24 tokens and were cut$"):
        found = encoder.encode(["a dog", long, "a dog runs"])
    with pytest.warns(UserWarning, match="^of 1 sentences 1 are longer than 24 tokens and were cut$"):
        cut = encoder.encode([long])
    torch.testing.assert_close(found.mean[1], cut.mean[0], atol=1e-5, rtol=0)
    # The same as what the tokenizer itself cuts.
    ids = encoder.tokenizer([long], truncation=True, max_length=24)["input_ids"]
    kept, reading = encoder._ids(["a dog", long])
    assert kept == [encoder.tokenizer(["a dog"])["input_ids"][0], ids[0]]
    assert reading.cut.tolist() == [False, True]
    # Each time that it occurs.
    assert encoder.encode_counted([long, "a dog", long])[1].cut.tolist() == [True, False, True]


PARTS = (
    "dog ",
    "a.",
    "\u0301",
    "\x01",
    " ",
    "\u200b",
    "x" * 150 + " ",
    "犬",
    "[MASK]",
    "##a",
    "e\u0301",
    "\u0130",
    "longer",
    "👍",
    "\n",
)


@pytest.mark.parametrize("longest", [24, 64])
def test_a_part_of_a_long_text_is_read_as_the_whole(longest: int) -> None:
    """Text that the tokenizer removes or does not divide leaves few tokens in the part that is read first."""
    encoder, random = GaussianEncoder.from_backbone(load_params(PLAIN).model.encoder, seed=1), Random(1)
    encoder.params = encoder.params.model_copy(update={"max_length": longest})
    mixed = [random.sample(PARTS, random.randint(1, 3)) for _ in range(300)]
    texts = ["".join(random.choices(parts, k=random.randint(1, 3000))) for parts in mixed]
    for part in PARTS:
        for start in (16 * longest - 1, 16 * longest, 16 * longest + 1, 40 * longest):
            before = (part * start)[:start]
            texts += [before + "a dog runs. " * 200, "a dog runs. " * 9 + before + "a. " * 9, " " * start + part]
    whole: Any = encoder.tokenizer(texts)["input_ids"]
    cut: Any = encoder.tokenizer(texts, truncation=True, max_length=longest)["input_ids"]
    kept, reading = encoder._ids(texts)
    assert kept == cut
    assert reading.cut.tolist() == [len(ids) > longest for ids in whole]
    assert reading.tokens.tolist() == [len(ids) for ids in cut]
    assert 50 < reading.cut.sum() < len(texts) - 50


def test_text_of_another_language_is_said_to_be_unknown(encoder: GaussianEncoder) -> None:
    texts = ["a dog runs", "犬が公園を走っている", "the old man is reading a long 犬 in the garden", "動物が動いている"]
    with pytest.warns(UserWarning, match="^of 4 sentences 2 have many words or characters that the model does not know"):
        encoder.encode(texts)
    _, reading = encoder.encode_counted(texts)
    # One word of ten, however many tokens the others have; no Japanese character is in the vocabulary.
    assert reading.unknown[[0, 1, 3]].tolist() == [0.0, 1.0, 1.0]
    assert 0 < reading.unknown[2] <= 0.1
    assert reading.of(slice(1, 3)).strange == 1
    packaged = GaussianEncoder.from_backbone(load_params(PLAIN).model.encoder, seed=1)
    assert packaged.encode_counted(texts)[1].strange == 2


def test_a_sentence_that_occurs_several_times_is_encoded_once(encoder: GaussianEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[int] = []
    real = encoder.encode_rows

    def counted(store: TokenStore, rows: Any, **options: Any) -> Gaussian:
        encoded.append(len(rows))
        return real(store, rows, **options)

    monkeypatch.setattr(encoder, "encode_rows", counted)
    texts = [SENTENCES[row] for row in (3, 0, 3, 1, 0, 3)]
    several = encoder.encode(texts)
    assert encoded == [3]
    for row, text in enumerate(texts):
        alone = encoder.encode([text])
        torch.testing.assert_close(several.mean[row], alone.mean[0], atol=1e-5, rtol=0)
        torch.testing.assert_close(several.log_var[row], alone.log_var[0], atol=1e-5, rtol=0)


def test_heads_are_what_the_parameters_say(tiny_backbone: Path) -> None:
    tanh = tiny_encoder(tiny_backbone)
    plain = tiny_encoder(tiny_backbone, mean_activation="none")
    torch.testing.assert_close(torch.tanh(plain.encode(SENTENCES).mean), tanh.encode(SENTENCES).mean)
    sigma = tiny_encoder(tiny_backbone, variance_head="sigma")
    # The same weights read as σ instead of log σ².
    torch.testing.assert_close(sigma.encode(SENTENCES).variance, tanh.encode(SENTENCES).log_var.square() + 1e-6)
    wide = tiny_encoder(tiny_backbone, dim=7)
    assert wide.encode(SENTENCES).mean.shape == (5, 7)


def test_heads_depend_on_the_seed_alone(tiny_backbone: Path) -> None:
    torch.manual_seed(5)
    first = tiny_encoder(tiny_backbone).mean_head.weight
    torch.manual_seed(6)
    assert torch.equal(first, tiny_encoder(tiny_backbone).mean_head.weight)
    assert not torch.equal(first, tiny_encoder(tiny_backbone, seed=2).mean_head.weight)


def test_the_mean_may_start_as_the_pooled_hidden_state(tiny_backbone: Path) -> None:
    tokenizer, backbone = AutoTokenizer.from_pretrained(tiny_backbone), AutoModel.from_pretrained(tiny_backbone).eval()
    with torch.inference_mode():
        hidden = backbone(**tokenizer(SENTENCES[1], return_tensors="pt", truncation=True, max_length=24)).last_hidden_state[0]
    changes: dict[str, Any] = {"mean_start": "identity", "mean_activation": "none", "pooling": "mean", "dim": 2 * hidden.shape[1]}
    for towers in ("heads", "encoders"):
        encoder = tiny_encoder(tiny_backbone, **changes, towers=towers)
        torch.testing.assert_close(encoder.encode(SENTENCES[1:2]).mean[0], hidden.mean(0).repeat(2), atol=1e-5, rtol=1e-5)
    # The variances are drawn as with a random start.
    changes["mean_start"] = "random"
    random = tiny_encoder(tiny_backbone, **changes)
    assert torch.equal(random.variance_head.weight, encoder.variance_head.weight)
    with pytest.raises(UserError, match=r"model\.dim 33 is not a multiple of 32; use one, or null"):
        tiny_encoder(tiny_backbone, mean_start="identity", dim=33)


@pytest.mark.parametrize("kind", ["kl", "kl-dimwise"])
def test_the_first_dimensions_are_a_model_of_their_own(tiny_backbone: Path, tmp_path: Path, kind: SimilarityKind) -> None:
    whole = tiny_encoder(tiny_backbone)
    whole.score_kind, whole.relation_head = kind, drawn_relation(kind=kind)
    whole.calibration = Calibration(threshold=0.5, entailment_if=">=", swept_on="dev", pairs="d" * 64, accuracy=80.0)
    whole.save_pretrained(tmp_path / "whole", similarity=kind)
    assert main([str(tmp_path / "whole"), str(tmp_path / "cut"), "--format", "gausscse", "--dims", "12"]) is None
    cut, expected = GaussianEncoder.from_pretrained(tmp_path / "cut"), whole.encode(SENTENCES)
    found = cut.encode(SENTENCES)
    assert (cut.dim, dimensions(tmp_path / "cut"), cut.score_kind) == (12, 12, kind)
    torch.testing.assert_close(found.mean, expected.mean[:, :12])
    torch.testing.assert_close(found.log_var, expected.log_var[:, :12])
    # The same token vectors, and the similarity of twelve dimensions.
    assert expected.tokens is not None and found.tokens is not None
    assert torch.equal(found.tokens.table, expected.tokens.table)
    shorter = Gaussian(expected.mean[:, :12], expected.log_var[:, :12], tokens=expected.tokens)
    if kind == "kl-dimwise":
        torch.testing.assert_close(cut.relation(SENTENCES[:2], SENTENCES[2:4]), whole.relation(shorter[:2], shorter[2:4]))
    # Where all dimensions say the same, the head says the same with fewer of them.
    same = Gaussian(expected.mean[:, :1].expand(-1, 32), expected.log_var[:, :1].expand(-1, 32), tokens=expected.tokens)
    few = Gaussian(same.mean[:, :12], same.log_var[:, :12], tokens=same.tokens)
    torch.testing.assert_close(cut.relation(few[:2], few[2:4]), whole.relation(same[:2], same[2:4]), atol=1e-6, rtol=1e-5)
    assert cut.calibration == whole.calibration
    with pytest.raises(UserError, match="already exists"):
        main([str(tmp_path / "whole"), str(tmp_path / "cut"), "--format", "gausscse", "--dims", "12"])


def test_only_dimensions_that_a_model_has_are_kept(tiny_backbone: Path) -> None:
    encoder, without_head = tiny_encoder(tiny_backbone), tiny_encoder(tiny_backbone)
    for dims in (0, encoder.dim + 1):
        with pytest.raises(UserError, match=f"{dims} dimensions: the model has {encoder.dim}; keep 1 to {encoder.dim}"):
            encoder.cut(dims)
    without_head.score_kind = "kl-dimwise"
    without_head.calibration = Calibration(threshold=0.5, entailment_if=">=", swept_on="dev", pairs="d" * 64, accuracy=80.0)
    without_head.cut(12)
    assert without_head.calibration is None
    two = GaussianEncoder.from_backbone(encoder.params.model_copy(update={"towers": "encoders"}), seed=1)
    with pytest.raises(UserError, match="needs all its dimensions"):
        two.cut(12)


def test_an_exported_model_is_a_backbone(tiny_backbone: Path, tmp_path: Path) -> None:
    encoder = tiny_encoder(tiny_backbone)
    with torch.no_grad():
        for parameter in encoder.backbone.parameters():
            parameter.add_(0.01)
    export(encoder, tmp_path / "exported")
    started = tiny_encoder(tmp_path / "exported").backbone.state_dict()
    assert all(torch.equal(started[name], tensor) for name, tensor in encoder.backbone.state_dict().items())


def test_saved_and_loaded_it_is_the_same(encoder: GaussianEncoder, tmp_path: Path) -> None:
    encoder.save_pretrained(tmp_path / "model", note="kept")
    loaded = GaussianEncoder.from_pretrained(tmp_path / "model")
    assert not loaded.training
    assert torch.equal(loaded.encode(SENTENCES).mean, encoder.encode(SENTENCES).mean)
    assert torch.equal(loaded.encode(SENTENCES).log_var, encoder.encode(SENTENCES).log_var)
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(
    "harm",
    [
        lambda folder: (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-1] + b"x"),
        lambda folder: (folder / "added_tokens.json").write_text("{}"),
        lambda folder: (folder / "SHA256SUMS").unlink(),
    ],
    ids=["another byte", "another file", "no sums"],
)
def test_a_harmed_model_is_refused(encoder: GaussianEncoder, tmp_path: Path, harm: Callable[[Path], object]) -> None:
    encoder.save_pretrained(tmp_path / "model")
    harm(tmp_path / "model")
    with pytest.raises(UserError, match="SHA"):
        GaussianEncoder.from_pretrained(tmp_path / "model")


def test_a_folder_that_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no config\.json here"):
        GaussianEncoder.from_pretrained(tmp_path)


def test_a_roberta_has_fewer_positions_than_it_says(tiny_backbone: Path, tmp_path: Path) -> None:
    """Its first position has the number of the padding token + 1."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_backbone)
    config = RobertaConfig(
        vocab_size=len(tokenizer), hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
        max_position_embeddings=18, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    RobertaModel(config, add_pooling_layer=False).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    most = 18 - (tokenizer.pad_token_id + 1)
    with pytest.raises(UserError, match=rf"model\.max_length: {most + 1} exceeds the {most} positions"):
        tiny_encoder(tmp_path, max_length=most + 1)
    with pytest.warns(UserWarning, match="longer than"):
        tiny_encoder(tmp_path, max_length=most).encode(["a dog " * 20])


def test_weights_that_would_have_to_be_unpickled_are_not_read(tmp_path: Path, tiny_backbone: Path) -> None:
    folder = tmp_path / "pickled"
    shutil.copytree(tiny_backbone, folder)
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"model\.backbone: .*cannot be loaded \(.*safetensors"):
        tiny_encoder(folder)


def weights_of(backbone: Path, folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> Path:
    """A copy of a backbone with other weights."""
    shutil.copytree(backbone, folder)
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


def test_a_backbone_that_lacks_weights_is_refused_with_their_names(tmp_path: Path, tiny_backbone: Path) -> None:
    norm, query = "embeddings.LayerNorm.weight", "encoder.layer.1.attention.self.query.weight"

    def incomplete(weights: dict[str, torch.Tensor]) -> None:
        del weights[query]
        weights[norm] = weights[norm][:3].clone()

    folder = weights_of(tiny_backbone, tmp_path / "incomplete", incomplete)
    with pytest.raises(UserError) as raised:
        tiny_encoder(folder)
    assert str(raised.value) == (
        f"model.backbone: the weights of {folder} do not fit its config.json: {query} is missing; {norm} is (3,) and not (32,); "
        "use a complete copy"
    )
    # As if the weights were of another architecture.
    folder = weights_of(tiny_backbone, tmp_path / "other", lambda weights: [weights.pop(name) for name in list(weights)[:-1]])
    with pytest.raises(UserError, match=r"(\S+ is missing; ){4}\S+ is missing and 3\d more; use a complete copy$"):
        tiny_encoder(folder)


def test_an_unused_pooler_may_be_missing_and_other_tensors_may_be_there(tmp_path: Path, tiny_backbone: Path) -> None:
    def other_heads(weights: dict[str, torch.Tensor]) -> None:
        for name in [name for name in weights if name.startswith("pooler.")]:
            del weights[name]
        weights["cls.predictions.bias"] = torch.zeros(7)

    folder = weights_of(tiny_backbone, tmp_path / "other-heads", other_heads)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    found = tiny_encoder(folder)
    expected = tiny_encoder(tiny_backbone)
    assert all(torch.equal(found.state_dict()[name], value) for name, value in expected.state_dict().items())
    # The caller's random numbers do not change: neither by the pooler that transformers draws, nor when a model is loaded again.
    found.save_pretrained(tmp_path / "model")
    GaussianEncoder.from_pretrained(tmp_path / "model")
    assert torch.equal(torch.get_rng_state(), before)


def test_the_packaged_encoder_loads_without_a_hub() -> None:
    encoder = GaussianEncoder.from_backbone(load_params(PLAIN).model, seed=1)
    assert encoder.dim == 384
    assert torch.isfinite(encoder.encode(["A dog runs."]).mean).all()


@pytest.mark.parametrize("changed", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_packaged_backbone_of_other_bytes_is_refused(changed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    params = load_params(PLAIN).model
    package = Path(resolve(params.backbone, None).location).parent
    (tmp_path / package.name / "model").mkdir(parents=True)
    (tmp_path / package.name / "__init__.py").touch()
    for file in (package / "model").iterdir():
        if file.name != changed:
            (tmp_path / package.name / "model" / file.name).symlink_to(file)
    # Found before the installed one.
    monkeypatch.syspath_prepend(tmp_path)
    here = tmp_path / package.name / "model" / changed
    for found in ("no such file", "2d711642b726"):
        said = (
            rf"^model\.backbone: {here} is not the file that is pinned \(SHA-256 \w{{12}}…, found {found}\); "
            r"run: uv pip install .*$"
        )
        with pytest.raises(UserError, match=said):
            GaussianEncoder.from_backbone(params, seed=1)
        here.write_bytes(b"x")


def test_a_trained_model_of_before_0_3_is_refused_in_one_line(tiny_backbone: Path, tmp_path: Path) -> None:
    encoder = tiny_encoder(tiny_backbone)
    encoder.save_pretrained(tmp_path / "old", trial={"objective": {"name": "simcse", "temperature": 0.05}})
    with pytest.raises(UserError, match=r"config\.json: not one that this version knows .* train the model again$"):
        GaussianEncoder.from_pretrained(tmp_path / "old")


def test_a_short_pair_has_few_spare_tokens(tiny_backbone: Path) -> None:
    """They took most of its time. A training step keeps its shapes, on which the random numbers of dropout depend."""
    encoder, rows = tiny_encoder(tiny_backbone), list[int]()
    encoder.backbone.embeddings.word_embeddings.register_forward_hook(lambda _, ids, __: rows.append(len(ids[0])))  # type: ignore[union-attr]
    for texts in (["A dog."], ["A dog.", "An animal moves."], [f"A dog and {number} animals move." for number in range(60)]):
        encoder.encode(texts)
    assert rows[:2] == [16, 32]
    assert rows[2] > 256 and rows[2] % 64 == 0
    with torch.no_grad():
        ids = encoder.tokenizer(["A dog."])["input_ids"]
        encoder(lay_out(TokenStore.of(ids, 0), np.zeros(1, np.int64), 1, "cpu"))
    assert rows[3] == 64
