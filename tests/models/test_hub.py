"""Pushing to the Hugging Face hub: the repositories of these tests are in memory, behind huggingface_hub's own signatures."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, create_autospec

import huggingface_hub
import pytest
from huggingface_hub import HfApi

from pipeline.cli.push import main
from pipeline.models.encoder import GaussianEncoder
from pipeline.models.hub import push
from pipeline.models.model_dir import CARD, content_digest
from pipeline.registry.loading import load
from pipeline.utils.atomic_io import SUMS, write_sums
from pipeline.utils.errors import UserError
from tests.relations import drawn_relation
from tests.stages.running import snapshot
from tests.trial_of import tiny_encoder

REPO = "team/gausscse"


class HubError(Exception):
    """As huggingface_hub raises it."""

    def __init__(self, status: int, said: str) -> None:
        super().__init__(said)
        self.response = SimpleNamespace(status_code=status)


class Hub:
    """Repository → the files of its head, the number of its commits, and its tags."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.files: dict[str, dict[str, bytes]] = {}
        self.commits = 0
        self.tags: dict[str, str] = {}
        self.before_commit = lambda: None
        self.api = create_autospec(HfApi, instance=True)
        for name in ("create_repo", "list_repo_refs", "repo_info", "list_repo_files", "upload_folder", "create_tag"):
            getattr(self.api, name).side_effect = getattr(self, name)
        monkeypatch.setattr(huggingface_hub, "HfApi", lambda **_: self.api)

    def create_repo(self, repo: str, **_: Any) -> None:
        self.files.setdefault(repo, {".gitattributes": b""})

    def list_repo_refs(self, repo: str) -> Any:
        return SimpleNamespace(tags=[SimpleNamespace(name=name) for name in self.tags])

    def repo_info(self, repo: str) -> Any:
        return SimpleNamespace(sha=str(self.commits))

    def list_repo_files(self, repo: str, revision: str) -> list[str]:
        return [*self.files[repo]]

    def upload_folder(self, *, repo_id: str, folder_path: Path, parent_commit: str, delete_patterns: str, **_: Any) -> Any:
        self.before_commit()
        if parent_commit != str(self.commits):
            raise HubError(412, "A commit has happened since")
        assert delete_patterns == "*"
        self.files[repo_id] = {".gitattributes": b"", **snapshot(folder_path)}
        self.commits += 1
        return SimpleNamespace(oid=str(self.commits), commit_url=f"https://hub.example/{repo_id}/commit/{self.commits}")

    def create_tag(self, repo: str, *, tag: str, revision: str) -> None:
        self.tags[tag] = revision


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    return Hub(monkeypatch)


@pytest.fixture
def model(tiny_backbone: Path, tmp_path: Path) -> Path:
    encoder = tiny_encoder(tiny_backbone)
    encoder.relation_head = drawn_relation()
    encoder.save_pretrained(tmp_path / "model")
    (tmp_path / "model" / CARD).write_text("---\nlanguage: en\n---\n\n# a model\n", encoding="utf-8")
    write_sums(tmp_path / "model")
    return tmp_path / "model"


def test_the_head_holds_the_newest_model_only(hub: Hub, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([str(model), REPO, "--tag", "v1", "--private"])
    assert f"{REPO}: https://hub.example/{REPO}/commit/1" in capsys.readouterr().out
    hub.api.create_repo.assert_called_with(REPO, private=True, exist_ok=True)
    assert hub.api.upload_folder.call_args.kwargs["commit_message"] == f"Model {content_digest(model)[:12]}"
    for name in ("relation.json", "relation.safetensors"):
        (model / name).unlink()
    write_sums(model)
    push(model, REPO, tag="v2")
    assert hub.files[REPO] == {".gitattributes": b"", **snapshot(model)}
    assert hub.tags == {"v1": "1", "v2": "2"}
    with pytest.raises(UserError, match=rf"^{REPO}: has a tag v1 already; name another one"):
        push(model, REPO, tag="v1")


def test_what_was_pushed_is_loaded_with_its_sums(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub's cache consists of links, which a model's folder may not have."""
    (tmp_path / "cache").mkdir()
    for path in model.iterdir():
        (tmp_path / "cache" / path.name).symlink_to(path)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda repo, **_: str(tmp_path / "cache"))
    texts = ["a dog runs"], ["an animal moves"]
    assert load(REPO).relation(*texts) == GaussianEncoder.from_pretrained(model).relation(*texts)
    (tmp_path / "cache" / "config.json").unlink()
    shutil.copy(model / SUMS, tmp_path / "cache" / "config.json")
    with pytest.raises(UserError, match="SHA"):
        load(REPO)


def test_files_of_others_are_not_deleted(hub: Hub, model: Path) -> None:
    hub.files[REPO] = {"weights.bin": b"years of work", ".gitattributes": b""}
    with pytest.raises(UserError, match=rf"^{REPO}: holds files that are not a model of this project \(weights\.bin\)"):
        push(model, REPO)
    hub.files[REPO] = {}

    def commit() -> None:
        hub.commits += 1

    hub.before_commit = commit
    with pytest.raises(UserError, match=rf"^{REPO}: A commit has happened since"):
        push(model, REPO)
    assert hub.files[REPO] == {}


def test_a_refusal_is_one_line(hub: Hub, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.api.create_tag.side_effect = HubError(503, "not\nnow")
    with pytest.raises(UserError, match=rf"^{REPO}: not now$"):
        push(model, REPO, tag="v1")
    hub.api.create_repo.side_effect = HubError(403, "You don't have the rights")
    with pytest.raises(UserError, match=rf"^{REPO}: You don't have the rights; log in with `hf auth login`, or set HF_TOKEN"):
        push(model, REPO)
    monkeypatch.undo()
    with pytest.raises(UserError, match=r"^a/b/c: no config\.json here: name models:/NAME@ALIAS, a folder .*, or OWNER/NAME$"):
        load("a/b/c")
    with pytest.raises(UserError, match=rf"^{REPO}: is not a folder here; on the hub: .*HF_HUB_OFFLINE"):
        load(REPO)

    full = OSError(28, os.strerror(28), "/cache/model.safetensors")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", Mock(side_effect=full))
    with pytest.raises(UserError, match=r"No space left on device: '/cache/model\.safetensors'$"):
        load(REPO)


def test_a_damaged_model_or_one_without_a_card_is_not_sent(hub: Hub, model: Path) -> None:
    (model / "secret.txt").write_text("a key", encoding="utf-8")
    with pytest.raises(UserError, match=r"secret\.txt: not listed in SHA256SUMS"):
        push(model, REPO)
    (model / "secret.txt").unlink()
    (model / CARD).unlink()
    write_sums(model)
    with pytest.raises(UserError, match=r"model: has no card \(README\.md\); push a registered version"):
        push(model, REPO)
    assert hub.commits == 0
