"""Pushing to the Hugging Face hub: huggingface_hub itself, against a server with the hub's endpoints on loopback."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import PLAIN, ROOT
from huggingface_hub import constants

from pipeline.config.load import load_params
from pipeline.inference import hub as pushing
from pipeline.inference.hub import load_from_hub, push
from pipeline.models.encoder import GaussianEncoder
from pipeline.models.model_dir import CARD, content_digest
from pipeline.utils.atomic_io import SUMS, write_sums
from pipeline.utils.errors import UserError
from tests.inference.hub_server import TOKEN, Hub, hub
from tests.pages import python_of
from tests.relations import drawn_relation

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
        monkeypatch.setattr(pushing, "_PAUSES", (0.0, 0.0))
        yield running


@pytest.fixture
def model(tiny_backbone: Path, tmp_path: Path) -> Path:
    params = load_params(PLAIN).model.encoder.model_copy(update={"backbone": str(tiny_backbone), "max_length": 24})
    encoder = GaussianEncoder.from_backbone(params, seed=1).eval()
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
def test_the_command_sends_the_model_and_what_comes_back_is_that_model(server: Hub, model: Path, tmp_path: Path) -> None:
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


@pytest.mark.parametrize("repo", ["team/nothing", "a/b/c"])
def test_what_cannot_be_loaded_is_one_line(server: Hub, repo: str) -> None:
    with pytest.raises(UserError, match=rf"^{repo}: (the hub refuses it \(404|not a name of a repository)"):
        load_from_hub(repo)


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


@pytest.mark.parametrize("statuses", [[503], [429, 500], [0]], ids=["busy", "busy twice", "done, but the answer is lost"])
@pytest.mark.parametrize(
    "path", ["/api/repos/create", "/api/models/team/gausscse/commit/main", "/api/models/team/gausscse/tree/main"]
)
def test_what_fails_for_the_moment_is_repeated(server: Hub, model: Path, path: str, statuses: list[int]) -> None:
    server.failing[path] = list(statuses)
    push(model, "team/gausscse")
    assert server.failing[path] == []
    assert without_attributes(server.files("team/gausscse")) == contents(model)
    assert len(server.messages) == 1


def test_what_cannot_be_pushed_is_one_line(server: Hub, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"^other/gausscse: the hub refuses it \(403: You don't have the rights .*hf auth login"):
        push(model, "other/gausscse")
    with pytest.raises(UserError, match=r"^a/b/c: not a name of a repository"):
        push(model, "a/b/c")
    server.failing["/api/models/team/gausscse/commit/main"] = [503] * 3
    with pytest.raises(UserError, match=r"^team/gausscse: the hub refuses it \(503: not now\); try again later"):
        push(model, "team/gausscse")
    push(model, "team/gausscse", tag="v1")
    with pytest.raises(UserError, match=r"^team/gausscse: has a tag v1 already; name another one"):
        push(model, "team/gausscse", tag="v1")
    head = server.repos["team/gausscse"]["head"]
    # Somebody else's repository is left as it is.
    server.commits[head] = {"weights.bin": b"years of work", ".gitattributes": b""}
    with pytest.raises(UserError, match=r"^team/gausscse: holds files that are not a model of this project \(weights\.bin\)"):
        push(model, "team/gausscse")
    assert server.repos["team/gausscse"]["head"] == head
    # Nor is one whose files are listed, as many list theirs.
    sums = b"0  weights.bin\n0  config.json\n"
    server.repos["team/gausscse"]["head"] = other = "f" * 40
    server.commits[other] = {"weights.bin": b"years of work", "config.json": b"{}", SUMS: sums}
    with pytest.raises(UserError, match=r"^team/gausscse: holds files that are not a model of this project \(SHA256SUMS\)"):
        push(model, "team/gausscse")
    assert server.repos["team/gausscse"]["head"] == other
    server.repos["team/gausscse"]["head"] = head
    # Nor are files deleted that somebody has put next to a model.
    server.commits[head] = {**contents(model), "weights.bin": b"years of work"}
    with pytest.raises(UserError, match=r"^team/gausscse: holds files that are not a model of this project \(weights\.bin\)"):
        push(model, "team/gausscse")
    assert server.repos["team/gausscse"]["head"] == head
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


def test_a_tag_whose_answer_is_lost_is_made_once(server: Hub, model: Path) -> None:
    push(model, "team/gausscse")
    head = server.repos["team/gausscse"]["head"]
    server.failing[f"/api/models/team/gausscse/tag/{head}"] = [0]
    push(model, "team/gausscse", tag="v1")
    assert server.failing[f"/api/models/team/gausscse/tag/{head}"] == []
    assert server.tags == {"v1": head}


def test_a_tag_that_cannot_be_made_is_said_after_what_was_sent(server: Hub, model: Path) -> None:
    push(model, "team/gausscse")
    head = server.repos["team/gausscse"]["head"]
    tagging = f"/api/models/team/gausscse/tag/{head}"
    server.failing[tagging] = [503] * 3
    with pytest.raises(
        UserError, match=rf"\(503: not now\); try again later; the model is sent \(.*{head}\), the tag v1 is not made$"
    ):
        push(model, "team/gausscse", tag="v1")
    # Somebody else makes the tag first, of another commit.
    server.before[tagging] = lambda: server.tags.update(v1="f" * 40)
    with pytest.raises(UserError, match=r"has a tag v1 of another commit since a moment ago; the model is sent, without a tag"):
        push(model, "team/gausscse", tag="v1")
    assert server.tags == {"v1": "f" * 40}


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


def test_what_this_machine_refuses_is_not_said_of_the_hub(server: Hub, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
