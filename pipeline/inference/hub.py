"""Push a model's folder to the Hugging Face hub, and load it from there."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from pipeline.models.model_dir import CARD, content_digest
from pipeline.utils.atomic_io import SUMS
from pipeline.utils.errors import UserError, first_line

if TYPE_CHECKING:
    from huggingface_hub import CommitInfo, HfApi

    from pipeline.models.encoder import GaussianEncoder

# What the hub puts into a new repository, and what a user may put there before the model.
_ATTRIBUTES = ".gitattributes"
_GIVEN = {_ATTRIBUTES, CARD}
# In the config.json of every model of this project (`pipeline.models.model_config.FORMAT`).
_OURS = '"format": "gausscse-encoder-'


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
        commit = _replace(api, repo, folder, f"Model {digest[:12]}")
    if tag:
        with _errors(repo, f"the model is sent ({commit.commit_url}), the tag {tag} is not made"):
            api.create_tag(repo, tag=tag, revision=commit.oid)
    return str(commit.commit_url)


def load_from_hub(repo: str, revision: str = "main") -> GaussianEncoder:
    """The encoder that `push` put into `repo`. All files are checked against their sums.

    Args:
        revision: a tag or a commit; "main" is the newest.

    Raises:
        UserError: there is no such repository or revision, it holds no model or a damaged one, or the hub cannot be reached.
    """
    from huggingface_hub import snapshot_download

    from pipeline.models.encoder import GaussianEncoder

    with _errors(repo):
        cached = snapshot_download(repo, revision=revision, ignore_patterns=_ATTRIBUTES)
    with TemporaryDirectory(prefix="gausscse-") as temporary:
        # The cache consists of links to files elsewhere, which a model's folder may not have.
        return GaussianEncoder.from_pretrained(shutil.copytree(cached, Path(temporary) / "model"))


def _replace(api: HfApi, repo: str, folder: Path, message: str) -> CommitInfo:
    """One commit after which the head holds the folder's files; if it holds them already, the head itself.

    Files are deleted only from the head that was looked at: the hub refuses the commit (412) if another one came first.
    """
    head = api.repo_info(repo).sha
    present = set(api.list_repo_files(repo, revision=head))
    if foreign := present - _GIVEN - _of_a_model(api, repo, head, present):
        raise UserError(f"{repo}: holds files that are not a model of this project ({min(foreign)}); name another one")
    return api.upload_folder(repo_id=repo, folder_path=folder, commit_message=message, delete_patterns="*", parent_commit=head)


def _of_a_model(api: HfApi, repo: str, head: str | None, present: set[str]) -> set[str]:
    """Names of the files of the model that a commit holds, by its sums; none if it holds no model."""
    if not {SUMS, "config.json"} <= present:
        return set()
    sums, config = (
        Path(api.hf_hub_download(repo, name, revision=head)).read_text(encoding="utf-8") for name in (SUMS, "config.json")
    )
    # Others have files of these names, too.
    if _OURS not in config:
        return set()
    return {SUMS, *(line.partition("  ")[2] for line in sums.splitlines())}


@contextmanager
def _errors(repo: str, done: str = "") -> Iterator[None]:
    """Report errors of huggingface_hub and its HTTP client as one line, which ends with what was done before."""
    from huggingface_hub import constants
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    end = f"; {done}" if done else ""
    try:
        yield
    except HFValidationError as error:
        raise UserError(f"{repo}: not a name of a repository: {first_line(error)}") from None
    except HfHubHTTPError as error:
        status, said = error.response.status_code, error.server_message or error.response.reason_phrase
        remedy = "check the name" if status == 404 else "try again later"
        if status in (401, 403):
            remedy = "log in with `hf auth login`, or set HF_TOKEN to a token that may do this"
        raise UserError(f"{repo}: the hub refuses it ({status}: {said}); {remedy}{end}") from None
    except (ValueError, RuntimeError) as error:
        # Metadata of the card that the hub does not accept, or a large file that did not arrive.
        raise UserError(f"{repo}: {' '.join(str(error).split())}{end}") from None
    except Exception as error:
        if isinstance(error, OSError) and error.filename:
            # Of this machine, such as a full disk.
            raise UserError(f"{error.filename}: {error.strerror}{end}") from None
        # huggingface_hub's HTTP client is httpx, or httpx2 in newer versions. HF_HUB_OFFLINE raises a ConnectionError; without an
        # answer and without a copy, snapshot_download raises a FileNotFoundError.
        if not isinstance(error, OSError) and type(error).__module__.partition(".")[0] not in ("httpx", "httpx2"):
            raise
        raise UserError(
            f"{constants.ENDPOINT}: the hub cannot be reached ({first_line(error)}); check the network{end}"
        ) from None
