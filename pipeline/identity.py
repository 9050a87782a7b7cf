"""What a result depends on besides parameters and data: the code that decides it, the backbone's files, library versions.

A trial, a checkpoint to resume from, a cached score, a cluster job's work and a bulk run are all named by the digests computed
here, so none of them is confused with the result of other code or another backbone. No torch here: stages ask before they load
it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.backbone import files_of, resolve
from pipeline.errors import RunError, UserError
from pipeline.files import read_json, sha256_file, sha256_json
from pipeline.job import installed
from pipeline.source import imported_files, source_digest

if TYPE_CHECKING:
    from pipeline.trial import Trial

PACKAGE = Path(__file__).parent
BACKBONE = Path("data/backbone.json")
"""What stage backbone writes: the SHA-256 of each of the backbone's files, and of all of them."""

# Where the code starts that computes a trial's weights, a model's per-pair scores, the Gaussians of a bulk run.
WEIGHTS = ("training.py",)
SCORES = ("scoring.py", "cluster/encoding.py")
VECTORS = ("bulk.py", "cluster/bulk.py")

NEUTRAL = {
    "calibration.py": "a finished model's threshold",
    "__init__.py": "names the package",
    "cluster/capacity.py": "waits for room on the cluster",
    "cluster/session.py": "starts or joins Ray",
    "errors.py": "words of an error",
    "execution.py": "where work is done",
    "files.py": "writes files whole, and their sums",
    "identity.py": "names results",
    "job.py": "what a job was sent with",
    "key_errors.py": "words of an error",
    "mirror.py": "copies folders",
    "model_folder.py": "names a model by its files",
    "package.py": "packs the code for a job",
    "params.py": "reads parameters; their values are in what they name",
    "place.py": "reads and writes files on any file system",
    "places.py": "where folders are",
    "progress.py": "prints how far it is",
    "project.py": "where folders are",
    "reasons.py": "words of an error",
    "sentence_pairs.py": "answers about pairs of a loaded model",
    "source.py": "names results",
    "storage.py": "copies folders",
    "trial.py": "names a trial; all that it holds is in its digest",
    "uris.py": "reads addresses",
    "values.py": "reads parameters; their values are in what they name",
}
"""Modules that the above import and that do not affect results, each with the reason. All others that they import count."""

# A part of the packages that pipeline.job compares between machines.
_LIBRARIES = ("python", "torch", "transformers", "tokenizers", "safetensors", "numpy")


def deciding(roots: Iterable[str]) -> list[str]:
    """The files of the package that decide what the roots compute, sorted, relative to the package."""
    return sorted(imported_files(PACKAGE, roots) - NEUTRAL.keys())


def code_digest(roots: Iterable[str]) -> str:
    """Hex SHA-256 of the code that decides what the roots compute, without comments and docstrings.

    A process always gives the same answer, even if the files change while it runs: it has already loaded them.
    """
    return _code_digest_once(PACKAGE, tuple(roots))


def backbone_sums(name: str, revision: str | None) -> dict[str, str]:
    """File name → hex SHA-256 of the files of `model.backbone` that decide what it computes.

    Raises:
        UserError: the backbone cannot be found, or lacks its weights.
    """
    sums: dict[str, str] = {}
    for file, path in files_of(resolve(name, revision)).items():
        stat = path.stat()
        sums[file] = _sha256_once(path, stat.st_size, stat.st_mtime_ns)
    return sums


def backbone_digest(name: str, revision: str | None) -> str:
    """Hex SHA-256 over `backbone_sums`: equal for equal files in any folder."""
    return digest_of_sums(backbone_sums(name, revision))


def digest_of_sums(sums: Mapping[str, str]) -> str:
    """Hex SHA-256 over the sums of files."""
    return sha256_json(dict(sums))


def backbone_seen(root: Path) -> str:
    """The backbone's digest that stage backbone wrote for a project.

    Raises:
        UserError: stage backbone has not run.
    """
    try:
        return str(read_json(root / BACKBONE)["digest"])
    except (KeyError, TypeError):
        raise UserError(f"{root / BACKBONE}: not what stage backbone writes; run `dvc repro`") from None


def check_here(trial: Trial) -> None:
    """Refuse to train a trial with other code or another backbone than its name was computed from.

    Raises:
        RunError: the code was edited since the run began, or this machine's backbone has other files.
    """
    if code_digest(WEIGHTS) != trial.code:
        raise RunError(f"trial {trial.name}: the code that trains was edited since the run began; run again")
    if backbone_digest(trial.model.backbone, trial.model.revision) != trial.backbone_files:
        raise RunError(
            f"model.backbone: the files of {trial.model.backbone} on this machine are not those that {BACKBONE} names; "
            "copy the same files to every machine and run `dvc repro`"
        )


def library_versions() -> dict[str, str]:
    """The versions here of Python and of the libraries that compute."""
    found = installed()
    return {name: found[name] for name in _LIBRARIES}


def other_versions(recorded: Iterable[Mapping[str, str] | None]) -> str:
    """How recorded versions differ from those here, as part of one line; empty if they do not.

    Args:
        recorded: the versions of each result; None if they were not recorded.
    """
    now = library_versions()
    others: dict[str, set[str]] = {}
    for versions in recorded:
        for name, version in (versions or {}).items():
            if version != now.get(name):
                others.setdefault(name, set()).add(version)
    return ", ".join(
        f"{name} {' and '.join(sorted(held))} (now {now.get(name, 'unknown')})" for name, held in sorted(others.items())
    )


@cache
def _code_digest_once(package: Path, roots: tuple[str, ...]) -> str:
    return sha256_json({name: source_digest(package / name) for name in deciding(roots)})


@cache
def _sha256_once(path: Path, size: int, mtime_ns: int) -> str:
    return sha256_file(path)
