"""A stage's run as work that can be done elsewhere: what it reads, what it leaves, and the key that names both.

dvc.yaml says all of it: a stage's deps are code, which travels with the project, or outs of other stages, which go through the
storage; its params and these name what comes out. Equal keys, equal results: a job is found again by its key, and so is what it
left in the storage.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pipeline.data.tokens import MANIFEST
from pipeline.errors import UserError
from pipeline.files import sha256_file, sha256_json
from pipeline.identity import BACKBONE, library_versions, other_versions
from pipeline.params import PARAMS_FILE
from pipeline.project import PROFILE, TOKENS
from pipeline.source import source_digest
from pipeline.storage import Storage
from pipeline.strict_yaml import read_yaml

STAGES = ("tune", "train", "evaluate", "experiment")
"""Those that compute, and run on a cluster."""
_DVC_FILE = "dvc.yaml"
# Each of them also reads this, to tag its run in MLflow; results do not depend on it.
_BESIDE = (
    *((TOKENS / store / MANIFEST).as_posix() for store in ("train", "dev", "tests")),
    *(PROFILE.as_posix(), BACKBONE.as_posix()),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A stage of a project: paths are relative to the project's root."""

    stage: str
    code: tuple[str, ...]
    inputs: tuple[str, ...]
    """What other stages made and this one reads."""
    outs: tuple[str, ...]
    params: Mapping[str, Any]

    @staticmethod
    def of(stage: str, root: Path) -> Work:
        """The work of a stage as dvc.yaml and params.yaml have it.

        Raises:
            UserError: one of the two files cannot be read.
        """
        stages = _stages(root)
        made = [out for other in stages.values() for out in _outs(other)]
        deps = [dep for dep in stages[stage].get("deps", []) if "${" not in dep]
        inputs = tuple(dep for dep in deps if any(_within(dep, out) for out in made))
        held = read_yaml(root / PARAMS_FILE)
        return Work(
            stage=stage,
            code=tuple(dep for dep in deps if dep not in inputs),
            inputs=inputs,
            outs=tuple(_outs(stages[stage])),
            params={key: _value(held, key) for key in stages[stage].get("params", [])},
        )

    @property
    def beside(self) -> tuple[str, ...]:
        """Files that are read as well and change nothing; those within an input are not named again."""
        return tuple(path for path in _BESIDE if not any(_within(path, other) for other in self.inputs))

    def key(self, digests: Mapping[str, str], root: Path) -> str:
        """Hex SHA-256 of everything that decides what comes out.

        Args:
            digests: content of each input.
            root: where the code is.
        """
        return sha256_json(
            {
                "stage": self.stage,
                "code": {path: _code_digest(root / path) for path in self.code},
                "inputs": {path: digests[path] for path in self.inputs},
                "params": self.params,
            }
        )


def maker_of(path: str, root: Path) -> tuple[str, str] | None:
    """The stage that makes a path, and which of its outs that is in."""
    for stage, described in _stages(root).items():
        for out in _outs(described):
            if _within(path, out):
                return stage, out
    return None


@dataclass(frozen=True, slots=True)
class Left:
    """What finished work left."""

    outs: dict[str, str]
    """Path → digest."""
    versions: dict[str, str] | None
    """`library_versions` where it was done; None where an older job did not record them."""

    def tell_reuse(self, stage: str) -> None:
        """Say in one line if the work was done with other library versions than those here."""
        if others := other_versions([self.versions]):
            print(f"warning: results of {stage} that are reused were computed with {others}", file=sys.stderr, flush=True)


def leave(storage: Storage, key: str, outs: Mapping[str, str]) -> None:
    """Record in the storage what work with a key came out as (path → digest), and the library versions here."""
    said = {"outs": dict(outs), "versions": library_versions()}
    storage.write(_kept(key), json.dumps(said, indent=2, sort_keys=True) + "\n")


def left(storage: Storage, key: str) -> Left | None:
    """What `leave` recorded; None where that work was not done yet.

    Raises:
        UserError: the record is damaged.
    """
    text = storage.read(_kept(key))
    if text is None:
        return None
    try:
        said = json.loads(text)
        # Older jobs wrote the outs alone.
        outs, versions = (said["outs"], dict(said["versions"])) if "versions" in said else (said, None)
        return Left({str(path): str(digest) for path, digest in outs.items()}, versions)
    except (ValueError, AttributeError, KeyError, TypeError):
        raise UserError(f"{storage.name}: {_kept(key)} is damaged; remove it and run again") from None


def _kept(key: str) -> str:
    return f"work/{key}/outs.json"


def _stages(root: Path) -> dict[str, dict[str, Any]]:
    try:
        return yaml.safe_load((root / _DVC_FILE).read_text(encoding="utf-8"))["stages"]
    except FileNotFoundError:
        raise UserError(f"{_DVC_FILE}: no such file; run from the project root") from None
    except (yaml.YAMLError, UnicodeDecodeError, KeyError, TypeError):
        raise UserError(f"{_DVC_FILE}: not a YAML file of stages; compare the committed file") from None


def _outs(stage: Mapping[str, Any]) -> list[str]:
    return [*stage.get("outs", []), *stage.get("metrics", [])]


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")


def _value(held: Any, key: str) -> Any:
    for part in key.split("."):
        held = held.get(part) if isinstance(held, dict) else None
    return held


def _code_digest(path: Path) -> str:
    if not path.is_dir():
        return source_digest(path) if path.suffix == ".py" else sha256_file(path)
    return sha256_json({p.relative_to(path).as_posix(): source_digest(p) for p in sorted(path.rglob("*.py"))})
