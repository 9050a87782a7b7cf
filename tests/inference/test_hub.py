"""Pushing to the Hugging Face hub: huggingface_hub itself, against a server with the hub's endpoints on loopback."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from pipeline.inference.hub import load_from_hub, push
from pipeline.models.encoder import GaussianEncoder
from pipeline.models.model_dir import CARD, content_digest
from pipeline.utils.atomic_io import SUMS, write_sums
from pipeline.utils.errors import UserError
from tests.conftest import ROOT
from tests.inference.hub_server import TOKEN, Hub, hub
from tests.pages import python_of
from tests.relations import drawn_relation
from tests.trial_of import tiny_encoder

CARD_TEXT = "---\nlanguage: en\ntags: [gausscse]\n---\n\n# a model\n"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with hub() as running:
        # Read from the environment when huggingface_hub was imported.
        monkeypatch.setattr(constants, "ENDPOINT", running.url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", f"{running.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        )
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        # Its protocol is for the hub's own storage; a server without it gets files by LFS.
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield running


@pytest.fixture
def model(tiny_backbone: Path, tmp_path: Path) -> Path:
    encoder = tiny_encoder(tiny_backbone)
    encoder.relation_head = drawn_relation(encoder.dim)
    encoder.save_pretrained(tmp_path / "model")
    (tmp_path / "model" / CARD).write_text(CARD_TEXT, encoding="utf-8")
    write_sums(tmp_path / "model")
    return tmp_path / "model"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def without_attributes(files: dict[str, bytes]) -> dict[str, bytes]:
    return {name: content for name, content in files.items() if name != ".gitattributes"}


@pytest.mark.faults
def test_the_command_sends_the_model_and_it_loads_from_the_hub(server: Hub, model: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "HF_ENDPOINT": server.url, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "pipeline.cli", "push", str(model), "team/gausscse", "--tag", "v1", "--private"],
        cwd=ROOT, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"team/gausscse: {server.url}/team/gausscse/commit/" in done.stdout
    assert server.repos["team/gausscse"]["private"] is True
    # Every file, the card among them, and nothing else; in one commit, which has the tag.
    assert without_attributes(server.files("team/gausscse")) == contents(model)
    assert server.messages == [f"Model {content_digest(model)[:12]}"]
    assert server.tags == {"v1": server.repos["team/gausscse"]["head"]}
    # What the page shows loads it from there.
    (code,) = python_of("export.md", "The Hugging Face hub")
    show = "print(encoder.encode(['a dog runs']).log_var.tolist(), list(encoder.relation('a dog', 'a cat').values()))"
    loaded = subprocess.run(
        [sys.executable, "-c", f"{code}\n{show}"],
        cwd=ROOT, env=environment | {"HF_HOME": str(tmp_path / "home")}, capture_output=True, text=True,
    )  # fmt: skip
    assert loaded.returncode == 0, loaded.stderr
    here = GaussianEncoder.from_pretrained(model)
    expected = f"{here.encode(['a dog runs']).log_var.tolist()} {list(here.relation('a dog', 'a cat').values())}"
    assert loaded.stdout.splitlines()[-1] == expected


def test_the_head_holds_the_newest_model_only(server: Hub, model: Path) -> None:
    push(model, "team/gausscse", tag="v1")
    for name in ("relation.json", "relation.safetensors"):
        (model / name).unlink()
    write_sums(model)
    push(model, "team/gausscse", tag="v2")
    assert without_attributes(server.files("team/gausscse")) == contents(model)
    assert "relation.json" in server.files("team/gausscse", "v1")
    # The weights were there already, so they were not sent again.
    assert len([line for line in server.asked if line.startswith("PUT")]) == 2
    # The same once more is no commit.
    push(model, "team/gausscse")
    assert len(server.messages) == 2


def test_a_refusal_is_one_line(server: Hub, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"^other/gausscse: the hub refuses it \(403: You don't have the rights .*hf auth login"):
        push(model, "other/gausscse")
    with pytest.raises(UserError, match=r"^team/nothing: the hub refuses it \(404"):
        load_from_hub("team/nothing")
    for call in (load_from_hub, lambda repo: push(model, repo)):
        with pytest.raises(UserError, match=r"^a/b/c: not a name of a repository"):
            call("a/b/c")
    server.failing["/api/models/team/gausscse/commit/main"] = [503]
    with pytest.raises(UserError, match=r"^team/gausscse: the hub refuses it \(503: not now\); try again later"):
        push(model, "team/gausscse")
    push(model, "team/gausscse", tag="v1")
    with pytest.raises(UserError, match=r"^team/gausscse: has a tag v1 already; name another one"):
        push(model, "team/gausscse", tag="v1")
    monkeypatch.setenv("HF_TOKEN", "hf_of_nobody")
    with pytest.raises(UserError, match=r"^team/gausscse: the hub refuses it \(401: Invalid username or password\.\)"):
        push(model, "team/gausscse")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match=r"the hub cannot be reached .*offline mode"):
        push(model, "team/gausscse")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(UserError, match=r"^http://127\.0\.0\.1:9: the hub cannot be reached"):
        push(model, "team/gausscse")


def test_files_of_others_are_not_deleted(server: Hub, model: Path) -> None:
    push(model, "team/gausscse")
    others = {"weights.bin": b"years of work"}
    for commit, held, named in (
        ("a", {**others, ".gitattributes": b""}, "weights.bin"),
        # Files are listed, as many list theirs.
        ("b", {**others, "config.json": b"{}", SUMS: b"0  weights.bin\n0  config.json\n"}, "SHA256SUMS"),
        # Somebody has put a file next to a model.
        ("c", {**contents(model), **others}, "weights.bin"),
    ):
        head = server.repos["team/gausscse"]["head"] = commit * 40
        server.commits[head] = held
        with pytest.raises(UserError, match=rf"^team/gausscse: holds files that are not a model of this project \({named}\)"):
            push(model, "team/gausscse")
        assert server.repos["team/gausscse"]["head"] == head


def test_a_tag_that_fails_is_made_by_the_next_push(server: Hub, model: Path) -> None:
    push(model, "team/gausscse")
    head = server.repos["team/gausscse"]["head"]
    tagging = f"/api/models/team/gausscse/tag/{head}"
    server.failing[tagging] = [503]
    with pytest.raises(
        UserError, match=rf"\(503: not now\); try again later; the model is sent \(.*{head}\), the tag v1 is not made$"
    ):
        push(model, "team/gausscse", tag="v1")
    # Called again, it makes the tag; nothing is sent twice.
    push(model, "team/gausscse", tag="v1")
    assert (server.tags, len(server.messages)) == ({"v1": head}, 1)


def test_files_that_come_while_the_model_is_sent_are_not_deleted(server: Hub, model: Path) -> None:
    push(model, "team/gausscse")
    (model / CARD).write_text(CARD_TEXT + "\nmore\n", encoding="utf-8")
    write_sums(model)

    def commit() -> None:
        server.commits["f" * 40] = {**server.files("team/gausscse"), "weights.bin": b"years of work"}
        server.repos["team/gausscse"]["head"] = "f" * 40

    server.before["/api/models/team/gausscse/commit/main"] = commit
    with pytest.raises(UserError, match=r"^team/gausscse: the hub refuses it \(412: A commit has happened since"):
        push(model, "team/gausscse")
    assert server.files("team/gausscse")["weights.bin"] == b"years of work"


def test_a_full_disk_is_not_blamed_on_the_hub(server: Hub, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    push(model, "team/gausscse")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, os.strerror(28), "/cache/model.safetensors")

    monkeypatch.setattr("huggingface_hub.snapshot_download", full)
    with pytest.raises(UserError, match=r"^/cache/model\.safetensors: No space left on device$"):
        load_from_hub("team/gausscse")


def test_a_damaged_model_or_one_without_a_card_is_not_sent(server: Hub, model: Path) -> None:
    (model / "secret.txt").write_text("a key", encoding="utf-8")
    with pytest.raises(UserError, match=r"secret\.txt: not listed in SHA256SUMS"):
        push(model, "team/gausscse")
    (model / "secret.txt").unlink()
    (model / CARD).write_text("# no metadata\n", encoding="utf-8")
    write_sums(model)
    with pytest.raises(UserError, match=r"Invalid metadata in README\.md. - the card has no metadata$"):
        push(model, "team/gausscse")
    (model / CARD).unlink()
    write_sums(model)
    with pytest.raises(UserError, match=r"model: has no card \(README\.md\); push a registered version"):
        push(model, "team/gausscse")
    assert (model / SUMS).is_file()
    assert server.messages == []
