"""Digests of all that a result depends on besides parameters and data: code, the backbone's files, library versions.

Digests computed here name trials, checkpoints to resume from, cached scores, cluster jobs and bulk runs, so none of them is
confused with the result of other code or another backbone. This module does not import torch, because stages call it before they
load torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from importlib.util import find_spec
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.config.job_inputs import installed
from pipeline.config.objectives import KINDS
from pipeline.identity.source import READ_BY_CODE, imported_files, imported_modules, once_per_file, source_digest
from pipeline.models.backbone import files_of, resolve
from pipeline.models.model_dir import ENGINE_PACKAGES
from pipeline.utils.atomic_io import read_json, sha256_file, sha256_json
from pipeline.utils.errors import RunError, UserError

if TYPE_CHECKING:
    from pipeline.config.objective import ObjectiveSection
    from pipeline.trials.trial import Trial

PACKAGE = Path(__file__).parents[1]
BACKBONE = Path("data/identity/backbone.json")
"""Written by stage identity: the SHA-256 of each of the backbone's files, and of all of them together."""


def _parts(name: str) -> list[str]:
    """The part of every family, which `pipeline.families.family.part` imports by its name."""
    return [file.relative_to(PACKAGE).as_posix() for file in sorted(PACKAGE.glob(f"families/*/{name}.py"))]


# Entry points of the code that computes a trial's weights, a model's per-pair scores, a relation head, and the Gaussians of a
# bulk run. The modules of the trial's objective come on top (`code_digest`).
WEIGHTS = ("training/trainer.py",)
SCORES = ("evaluation/score_cache.py", "cluster/encoding.py", *_parts("sets"))
RELATION = ("cluster/encoding.py", *_parts("relation_store"))
VECTORS = ("inference/bulk_encode.py", "cluster/bulk.py")

CODE = {
    Path(f"data/identity/{file.stem}.json"): file.stem
    for file in sorted(PACKAGE.with_name("stages").glob("[a-z]*.py"))
    if file.stem != "identity"
}
"""Written by stage identity, for DVC: file → the stage whose `stage_sums` it has, with the digest of them all."""

NEUTRAL = {
    "cluster/capacity.py": "waits for room on the cluster",
    "cluster/failures.py": "words of an error",
    "cluster/package.py": "packs the code for a job",
    "cluster/ray_private.py": "asks Ray about nodes and versions",
    "cluster/session.py": "starts or joins Ray",
    "cluster/tasks.py": "runs tasks, wherever",
    "config/data_params.py": "keys whose values are in the data",
    "config/execution.py": "says where the work is done",
    "config/job_inputs.py": "what a job was sent with",
    "config/messages.py": "words of an error",
    "config/params.py": "keys whose values are in what they name",
    "storage/": "reads, writes and copies files and folders",
    "trials/": "names trials and keeps their files; all that a trial holds is in its digest",
    "utils/atomic_io.py": "writes files whole, and their sums",
    "utils/errors.py": "words of an error",
}
"""Modules and rooms that the entry points import but that do not affect results, with the reason. All other imported modules
count. No module that counts reads a constant of one of these (tests/identity/test_neutral.py)."""

# A subset of the packages that pipeline.config.job_inputs compares between machines.
_LIBRARIES = ("python", "torch", "transformers", "tokenizers", "safetensors", "numpy")


def deciding(roots: Iterable[str], package: Path = PACKAGE) -> list[str]:
    """Package files that affect what the roots compute, sorted, relative to the package."""
    return sorted(name for name in imported_files(package, roots) if not neutral(name))


def neutral(name: str) -> bool:
    """True if a package file, or its room, is listed as not affecting results."""
    return name in NEUTRAL or f"{name.partition('/')[0]}/" in NEUTRAL


def code_digest(roots: Iterable[str], objective: ObjectiveSection | None = None) -> str:
    """Hex SHA-256 of the code that affects what the roots compute, without comments and docstrings.

    Within a process the answer never changes, even if the files do, because the process has already loaded them.

    Args:
        objective: its code counts, too, also where it is in a package of the user's own.
    """
    return _code_digest_once(PACKAGE, tuple(roots), *(() if objective is None else (type(objective),)))


def implementations(*kinds: type[ObjectiveSection]) -> list[str]:
    """The package files that objectives consist of: their classes, or what a file of the user's own imports of the package."""
    modules = {kind.implementation.partition(":")[0] for kind in kinds}
    modules |= {module for kind in kinds for file, home in _own_files(kind) for module in imported_modules(home, file)}
    ours = (f"{'/'.join(module.split('.')[1:])}.py" for module in sorted(modules) if module.startswith(f"{PACKAGE.name}."))
    # A name that is imported from a module looks like a module.
    return [name for name in ours if (PACKAGE / name).is_file()]


def own_sums(*kinds: type[ObjectiveSection]) -> dict[str, str]:
    """File → hex SHA-256 of the code of objectives in packages of the user's own, apart from what they import of this package."""
    return {f"{home.name}/{file}": source_digest(home / file) for kind in kinds for file, home in _own_files(kind)}


def scorer_digest() -> str:
    """The same of the code that scores models of any objective."""
    return _code_digest_once(PACKAGE, SCORES, *KINDS)


def _own_files(kind: type[ObjectiveSection]) -> list[tuple[str, Path]]:
    """The files outside this package that an objective consists of: (file, relative to the folder; folder of its package)."""
    found: list[tuple[str, Path]] = []
    for module in {kind.__module__, kind.implementation.partition(":")[0] or kind.__module__}:
        name, *parts = module.split(".")
        if name == PACKAGE.name:
            continue
        spec = find_spec(module)
        if spec is None or spec.origin is None:
            raise UserError(f"the module {module!r} of an objective cannot be found; install its package here, too")
        file = Path(spec.origin)
        # A module alone has no package; its imports are other packages.
        home = file.parents[len(parts) - (file.name != "__init__.py")] if parts else file.parent
        reached = imported_files(home, [file.relative_to(home).as_posix()]) if parts else {file.name}
        found += [(one, home) for one in sorted(reached)]
    return found


def stage_sums(stage: str, package: Path = PACKAGE) -> dict[str, str]:
    """File → hex SHA-256 of all code that may run in a stage, neutral or not, and of the other files of the rooms that it is in.

    Paths are relative to the package.
    """
    roots = [f"../stages/{name}.py" for name in ("__init__", stage)]
    reached = imported_files(package, roots, parts=True)
    own: dict[str, str] = {}
    if reached & {*WEIGHTS, *SCORES}:
        # A stage that trains or scores does so by any objective.
        reached = imported_files(package, [*roots, *implementations(*KINDS)], parts=True)
        own = own_sums(*KINDS)
    rooms = {(package / name).parent for name in reached}
    others = (file for room in rooms for file in room.glob("[!.]*") if file.suffix in READ_BY_CODE)
    sums = {file.relative_to(package).as_posix(): sha256_file(file) for file in others}
    return sums | own | {name: source_digest(package / name) for name in sorted(reached)}


def backbone_sums(name: str, revision: str | None) -> dict[str, str]:
    """File name → hex SHA-256 of the files of `model.backbone` that affect what it computes.

    Raises:
        UserError: the backbone cannot be found, or has no weights.
    """
    return {file: _sha256(path) for file, path in files_of(resolve(name, revision)).items()}


def backbone_digest(name: str, revision: str | None) -> str:
    """Hex SHA-256 over `backbone_sums`: the same for equal files in any folder."""
    return digest_of_sums(backbone_sums(name, revision))


def digest_of_sums(sums: Mapping[str, str]) -> str:
    """Hex SHA-256 over the digests of files."""
    return sha256_json(dict(sums))


def backbone_seen(root: Path) -> str:
    """The backbone digest that stage identity wrote for the project in `root`.

    Raises:
        UserError: stage identity has not run.
    """
    return _seen(root / BACKBONE)


def check_code(root: Path, stage: str) -> None:
    """Refuse to work for DVC if stage identity has seen other code: DVC would take the results for those of that code.

    Raises:
        UserError: the code of the stage was edited since stage identity ran in the project in `root`.
    """
    path = Path(f"data/identity/{stage}.json")
    if (root / path).is_file() and _seen(root / path) != digest_of_sums(stage_sums(stage, PACKAGE)):
        raise UserError(f"{path}: the code was edited since stage identity ran; run `dvc repro`")


def check_here(trial: Trial) -> None:
    """Refuse to train a trial if the code or the backbone is not the one in its digest.

    Raises:
        RunError: the code was edited since the run began, or the backbone has other files on this machine.
    """
    if code_digest(WEIGHTS, trial.objective) != trial.code:
        raise RunError(f"trial {trial.name}: the training code was edited after the run began; run again")
    if backbone_digest(trial.model.backbone, trial.model.revision) != trial.backbone_files:
        raise RunError(
            f"model.backbone: the files of {trial.model.backbone} on this machine are not those that {BACKBONE} names; "
            "copy the same files to every machine and run `dvc repro`"
        )


def library_versions(*more: str) -> dict[str, str]:
    """Versions of Python and of the computing libraries on this machine, and of `more` packages that computed."""
    return {name: version for name, version in installed(*more).items() if name in (*_LIBRARIES, *more)}


def other_versions(recorded: Iterable[Mapping[str, str]]) -> str:
    """The recorded versions that differ from those on this machine, as part of a line; empty if they are equal.

    Args:
        recorded: the versions of each result.
    """
    now = library_versions(*ENGINE_PACKAGES)
    found = {pair for versions in recorded for pair in versions.items() if now.get(pair[0]) != pair[1]}
    others = {name: " and ".join(version for _, version in same) for name, same in groupby(sorted(found), itemgetter(0))}
    return ", ".join(f"{name} {versions} (now {now.get(name, 'unknown')})" for name, versions in others.items())


def _seen(file: Path) -> str:
    try:
        return str(read_json(file)["digest"])
    except (KeyError, TypeError):
        raise UserError(f"{file}: not what stage identity writes; run `dvc repro`") from None


_sha256 = once_per_file(sha256_file)


@cache
def _code_digest_once(package: Path, roots: tuple[str, ...], *kinds: type[ObjectiveSection]) -> str:
    names = deciding((*roots, *implementations(*kinds)), package)
    return digest_of_sums({name: source_digest(package / name) for name in names} | own_sums(*kinds))
