"""Operators and decoder of a saved model, as users call them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from pipeline.families.operations.encoder import Encoder
from pipeline.models.encoder import GaussianEncoder
from pipeline.utils.atomic_io import write_sums
from pipeline.utils.errors import UserError
from tests.operator_encoder import operator_encoder, save_operator_model
from tests.trial_of import tiny_encoder

# Words of the tiny vocabulary.
A, B = "two dogs run.", "a woman is reading a book in the park."


@pytest.fixture(scope="module")
def folder(tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_operator_model(tiny_backbone, tmp_path_factory.mktemp("model") / "model", [A, B])


@pytest.fixture(scope="module")
def encoder(folder: Path) -> Encoder:
    return operator_encoder(folder)


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_operators_are_those_that_were_saved(encoder: Encoder, folder: Path) -> None:
    weights = load_file(folder / "objective.safetensors")
    a, b = encoder.encode([A, B]).mean

    def mlp(name: str, x: torch.Tensor) -> torch.Tensor:
        first, second = (f"operators.networks.{name}.{layer}" for layer in (0, 2))
        inner = (weights[f"{first}.weight"] @ x + weights[f"{first}.bias"]).clamp(min=0)
        return weights[f"{second}.weight"] @ inner + weights[f"{second}.bias"]

    fused = a + b + mlp("fusion", torch.cat((a, b)))
    close(encoder.fuse(A, B), fused)
    close(encoder.fuse(a, B), fused)
    close(encoder.fuse([A, A], encoder.encode([B, B])), torch.stack((fused, fused)))
    close(encoder.difference(A, B), a - b + mlp("difference", torch.cat((a, b))))
    close(encoder.compress(encoder.fuse(A, B)), fused + mlp("compression", fused))
    assert not any(name.startswith("operators") for name in encoder.state_dict())


def test_a_model_that_is_saved_again_keeps_its_operators(encoder: Encoder, folder: Path, tmp_path: Path) -> None:
    encoder.save_pretrained(tmp_path / "again")
    again = load_file(tmp_path / "again/objective.safetensors")
    for name, value in load_file(folder / "objective.safetensors").items():
        assert torch.equal(again[name], value)
    assert torch.equal(operator_encoder(tmp_path / "again").fuse(A, B), encoder.fuse(A, B))


def test_decoding_one_or_several_and_never_longer_than_a_sentence_may_be(encoder: Encoder) -> None:
    one = encoder.decode(A)
    assert isinstance(one, str)
    several = encoder.decode(encoder.encode([A, B, A]))
    assert several[0] == several[2] == one
    assert encoder.decode([]) == []
    assert encoder.decode(encoder.encode([A]).mean[0]) == one
    words = set(encoder.tokenizer.tokenize(f"{A} {B}"))
    for text in several:
        tokens = encoder.tokenizer.tokenize(text)
        assert len(tokens) <= 30 and set(tokens) <= words


def test_what_is_wrong_is_one_line(encoder: Encoder, tiny_backbone: Path) -> None:
    with pytest.raises(UserError, match="2 sentences with 1: each goes with the one at the same position"):
        encoder.fuse([A, B], [B])
    # A model of another family has no such methods.
    plain = tiny_encoder(tiny_backbone)
    assert not {"fuse", "difference", "compress", "decode"} & {*dir(plain)}
    with pytest.raises(UserError, match="this model has no operation 'fuse'"):
        plain.operate("fuse", [A], [B])


def test_operators_of_another_form_are_refused(folder: Path, tmp_path: Path) -> None:
    old = tmp_path / "old"
    shutil.copytree(folder, old)
    weights = {name.replace(".networks", ""): value for name, value in load_file(folder / "objective.safetensors").items()}
    save_file(weights, old / "objective.safetensors")
    write_sums(old)
    with pytest.raises(UserError, match=r"objective\.safetensors: these are not the operators of this version; use the version"):
        GaussianEncoder.from_pretrained(old)
