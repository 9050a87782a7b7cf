"""Where things are in a project folder, and the digest that names a pipeline run."""

from __future__ import annotations

import subprocess
from pathlib import Path

from pipeline.data.tokens import digest as tokens_digest
from pipeline.files import sha256_json
from pipeline.identity import SCORES, WEIGHTS, backbone_seen, code_digest
from pipeline.job import commit_sent
from pipeline.params import Params

PREPARED = Path("data/prepared")
PROFILE = PREPARED / "profile.json"
TOKENS = Path("data/tokens")
TRAIN_TOKENS = TOKENS / "train"
DEV_TOKENS = TOKENS / "dev"
PROMOTION_TOKENS = TOKENS / "promotion"
TEST_TOKENS = TOKENS / "tests"
MODELS = Path("models")
TUNE = Path("results/tune")
TRAIN = Path("results/train")
EVALUATE = Path("results/evaluate")
EXPERIMENTS = Path("results/experiments")
REGISTER = Path("results/register.json")
REPORT = Path("report")
# Where DVC copies the project to for `dvc exp run --queue` and `--temp`; it deletes the copy when the experiment has ended.
_EXPERIMENTS = (".dvc", "tmp", "exps")


def home(root: Path) -> Path:
    """Where a stage that runs in `root` keeps what must outlive it: `root` itself, or the project it is a queued copy of."""
    for folder in root.resolve().parents:
        if folder.parts[-len(_EXPERIMENTS) :] == _EXPERIMENTS:
            return folder.parents[len(_EXPERIMENTS) - 1]
    return root


def data_digests() -> dict[str, str]:
    """Content digest of each token store that a model and its figures depend on: "train", "dev", "tests"."""
    return {store.name: tokens_digest(store) for store in (TRAIN_TOKENS, DEV_TOKENS, TEST_TOKENS)}


def pipeline_digest(params: Params) -> str:
    """Digest of the tokenized data, the backbone's files, the code that trains and scores, and every result key that affects
    them.

    Section `data` is not in it: what it made is, so the same data read from another folder is the same pipeline run. Nor are the
    variants that are compared with it, by what rule it is promoted, and what the report shows.
    """
    said = params.model_dump(mode="json", by_alias=True, exclude={"data", "experiments", "report", "register_"})
    made_with = {"backbone": backbone_seen(Path()), "code": code_digest((*WEIGHTS, *SCORES))}
    return sha256_json({"tokens": data_digests(), "params": said, **made_with})


def flat_params(params: Params) -> dict[str, object]:
    """Result keys of the main recipe as `section.key` → value, for MLflow."""
    return {
        f"{section}.{key}": value
        for section, keys in params.model_dump(mode="json", by_alias=True, exclude={"experiments", "report"}).items()
        for key, value in keys.items()
    }


def git_commit(root: Path) -> str:
    """The commit of the checkout, in a job of the one that its code was sent from; "unknown" outside git.

    "-dirty" stands behind it if tracked files were changed, params.yaml and dvc.lock aside: a run logs its parameters itself.
    """

    if (sent := commit_sent(root)) is not None:
        return sent

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!params.yaml", ":!dvc.lock")
        return git("rev-parse", "HEAD") + ("-dirty" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
