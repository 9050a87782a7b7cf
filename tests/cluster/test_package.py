"""The files of the project that travel to a cluster as a job's working_dir: those that are listed, and no secret."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from ray._private.runtime_env.packaging import create_package

from pipeline.cluster.dispatch import STAGES
from pipeline.identity.digests import stage_sums
from tests.conftest import ROOT, copy_project

LIMIT = 1_850_000
NAMED = {"params.yaml", "execution.yaml", "dvc.yaml", "pyproject.toml", "inputs.json"}
SECRET = b"a-secret-of-somebody"
# In every folder that travels, and next to it; git does not ignore them.
SECRETS = (".env", "token", "key.pem", "credentials.json", "id_ed25519", "a token.yaml", "x")
STAYS = (
    "data/tokens/train/0.arrow",
    "models/seed-1/model.safetensors",
    ".venv/lib/torch.so",
    ".gausscse/trials/x/best/a",
    "my/pairs.jsonl",
    "my/pairs.py",
    ".dvc/cache/files/a",
    "mlruns/0/meta",
    "dvc.lock",
    "pipeline/.ipynb_checkpoints/find-checkpoint.py",
    "pipeline/data/my/pairs",
)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with everything that one may contain, after one job was sent from it."""
    root = copy_project(tmp_path_factory.mktemp("travel") / "project")
    (root / "inputs.json").write_text("{}", encoding="utf-8")
    folders = {path.parent for name in ("pipeline", "stages") for path in (root / name).rglob("*.py")}
    for file in [*(root / name for name in STAYS), *(folder / name for folder in {root, *folders} for name in SECRETS)]:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(SECRET)
    return root


def code() -> set[str]:
    names = {p.relative_to(ROOT).as_posix() for folder in ("pipeline", "stages") for p in (ROOT / folder).rglob("*.py")}
    # All files that a stage of a job depends on: without one, its code counts as edited.
    names |= {
        Path("pipeline", name).as_posix()
        for stage in ("prepare", "tokenize", *STAGES)
        for name in stage_sums(stage)
        if not name.startswith("..")
    }
    names |= {"pipeline/data/lexicon/words.json", "pipeline/registry/card.txt", "pipeline/serving/answers.json"}
    # Pages are made where the results are.
    return {name for name in names if not name.startswith("pipeline/report/")}


def unpacked(archive: Path, there: Path) -> set[str]:
    """The names of the files, after a check that none is a secret and that they run."""
    with zipfile.ZipFile(archive) as held:
        assert not [one.filename for one in held.infolist() if SECRET in held.read(one)]
        assert sum(one.file_size for one in held.infolist()) < 2 * LIMIT
        held.extractall(there)
    return {p.relative_to(there).as_posix() for p in there.rglob("*") if p.is_file()}


def gausscse(root: Path, *arguments: str) -> tuple[int, str]:
    """The exit status of a command of the code in a folder, and what it complains of."""
    command, env = [sys.executable, "-m", "pipeline.cli", *arguments], {"PYTHONPATH": str(root), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, env=env)
    return done.returncode, done.stderr


@pytest.mark.parametrize("gitignore", [True, False])
def test_ray_job_submit_sends_the_listed_files_and_no_secret(project: Path, tmp_path: Path, gitignore: bool) -> None:
    package = tmp_path / "package.zip"
    # As `ray job submit --working-dir .` makes it; with RAY_RUNTIME_ENV_IGNORE_GITIGNORE=1 it does not look at .gitignore.
    create_package(str(project), package, include_gitignore=gitignore)
    assert package.stat().st_size < LIMIT
    assert unpacked(package, tmp_path / "there") == NAMED | code()
    assert gausscse(tmp_path / "there", "check") == (0, "")


def test_the_package_has_the_same_files_and_runs_as_it_is(project: Path, tmp_path: Path) -> None:
    (project / "inputs.json").rename(tmp_path / "inputs.json")
    assert gausscse(project, "submit", "--package") == (2, "error: inputs.json: no such file; run `make upload` first\n")
    (tmp_path / "inputs.json").rename(project / "inputs.json")
    assert gausscse(project, "submit", "--package") == (0, "")
    assert (project / "gausscse.zip").stat().st_size < LIMIT
    assert unpacked(project / "gausscse.zip", tmp_path / "there") == {f"gausscse/{name}" for name in NAMED | code()}
    assert gausscse(tmp_path / "there/gausscse", "check") == (0, "")
