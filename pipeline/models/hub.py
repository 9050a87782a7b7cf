"""Push a model's folder to the Hugging Face hub, and load it from there."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from pipeline.models.model_dir import CARD, content_digest
from pipeline.utils.atomic_io import SUMS
from pipeline.utils.errors import UserError

# What the hub puts into a new repository, and what a user may put there before the model.
_ATTRIBUTES = ".gitattributes"
_GIVEN = {_ATTRIBUTES, CARD}
REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+(@[\w./-]+)?")
"""The name of a repository, and of one of its revisions."""


def push(folder: Path, repo: str, *, tag: str | None = None, private: bool = False) -> str:
    """Make `repo` hold exactly the files of a model's folder, by one commit; files of an earlier model are deleted from its head.

    The hub and the token are those of huggingface_hub: HF_ENDPOINT, HF_TOKEN, `hf auth login`. After an error, call it again:
    what the hub has already is not sent twice.

    Args:
        folder: a folder of `save_pretrained` with a card (README.md), as registered versions have it.
        repo: OWNER/NAME; made if it does not exist.
        tag: name of a git tag for the commit.
        private: whether a new repository is private; one that exists stays as it is.

    Returns:
        the address of the commit.

    Raises:
        UserError: the folder is damaged or has no card, the repository holds something else, the tag exists, or the hub refuses
            or cannot be reached.
    """
    # Compares all files with their sums, and refuses files that are not listed.
    digest = content_digest(folder)
    if not (folder / CARD).is_file():
        raise UserError(f"{folder}: has no card ({CARD}); push a registered version, which has one")
    from huggingface_hub import HfApi

    api = HfApi(library_name="gausscse-pipeline")
    with _errors(repo):
        api.create_repo(repo, private=private, exist_ok=True)
        if tag and tag in {ref.name for ref in api.list_repo_refs(repo).tags}:
            raise UserError(f"{repo}: has a tag {tag} already; name another one")
        head = api.repo_info(repo).sha
        present = set(api.list_repo_files(repo, revision=head))
        # The sums list every file of a model. A repository without them holds something else, which would be deleted.
        if (foreign := present - _GIVEN) and SUMS not in present:
            raise UserError(f"{repo}: holds files that are not a model of this project ({min(foreign)}); name another one")
        # Files are deleted only from the head that was looked at: the hub refuses the commit (412) if another one came first.
        commit = api.upload_folder(
            repo_id=repo, folder_path=folder, commit_message=f"Model {digest[:12]}", delete_patterns="*", parent_commit=head
        )
        if tag:
            api.create_tag(repo, tag=tag, revision=commit.oid)
    return str(commit.commit_url)


@contextmanager
def fetched_from_hub(name: str) -> Iterator[Path]:
    """A copy of the folder that `push` put into a repository, while the block runs. The caller checks its files.

    Args:
        name: OWNER/NAME for its newest commit, OWNER/NAME@REVISION for a tag or a commit.

    Raises:
        UserError: there is no such repository or revision, or the hub cannot be reached.
    """
    from huggingface_hub import snapshot_download

    repo, _, revision = name.partition("@")
    with _errors(f"{name}: is not a folder here; on the hub"):
        cached = snapshot_download(repo, revision=revision or None, ignore_patterns=_ATTRIBUTES)
    with TemporaryDirectory(prefix="gausscse-") as temporary:
        # The cache consists of links to files elsewhere, which a model's folder may not have.
        yield Path(shutil.copytree(cached, Path(temporary) / "model"))


@contextmanager
def _errors(repo: str) -> Iterator[None]:
    """Report an error of the hub, of the network or of this machine's disk as one line."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        # huggingface_hub, its HTTP client and the network raise many types, which differ by version.
        said = " ".join(str(error).split())
        if (response := getattr(error, "response", None)) is not None and response.status_code in (401, 403):
            said += "; log in with `hf auth login`, or set HF_TOKEN to a token that may do this"
        raise UserError(f"{repo}: {said}") from error
