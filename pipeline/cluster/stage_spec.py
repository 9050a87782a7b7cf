"""A stage's run as work that can be done elsewhere: its inputs, its outputs, and a key.

All of it comes from dvc.yaml. A stage's inputs are outputs of other stages, which go through the storage, and its code travels
with the project. Code, inputs and params make the key. Equal keys mean equal results, so a job is found again by its key, and so
are its outputs in the storage.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.config.dvc_file import dvc_stages
from pipeline.config.params import PARAMS_FILE
from pipeline.config.paths import PROFILE, TOKENS, WORK
from pipeline.config.yaml_io import read_yaml
from pipeline.data.token_store import MANIFEST
from pipeline.identity.digests import BACKBONE, CODE, digest_of_sums, library_versions, other_versions, stage_sums
from pipeline.storage.object_store import Storage
from pipeline.utils.atomic_io import sha256_json
from pipeline.utils.errors import UserError
from pipeline.utils.logs import log

STAGES = ("tune", "train", "evaluate", "experiment")
"""The stages that compute, and so can run on a cluster."""
# Each of them also reads these files to tag its MLflow run; results do not depend on them.
_ALSO_READ = (
    *((TOKENS / store / MANIFEST).as_posix() for store in ("train", "dev", "tests")),
    *(PROFILE.as_posix(), BACKBONE.as_posix()),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A stage of a project; paths are relative to the project's root."""

    stage: str
    inputs: tuple[str, ...]
    """Outputs of other stages that this one reads."""
    outs: tuple[str, ...]
    params: Mapping[str, Any]

    @staticmethod
    def of(stage: str, root: Path) -> Work:
        """The work of a stage, from dvc.yaml and params.yaml.

        Raises:
            UserError: one of the two files cannot be read.
        """
        stages = dvc_stages(root)
        outputs = [out for described in stages.values() for out in _outs(described)]
        deps = [dep for dep in stages[stage].get("deps", []) if "${" not in dep]
        inputs = tuple(dep for dep in deps if any(_within(dep, out) for out in outputs))
        params = read_yaml(root / PARAMS_FILE)
        return Work(
            stage=stage,
            inputs=inputs,
            outs=tuple(_outs(stages[stage])),
            params={key: _value(params, key) for key in stages[stage].get("params", [])},
        )

    @property
    def also_read(self) -> tuple[str, ...]:
        """Further files that the stage reads but that do not change its results, without files inside an input."""
        return tuple(path for path in _ALSO_READ if not any(_within(path, input_path) for input_path in self.inputs))

    def key(self, digests: Mapping[str, str], root: Path) -> str:
        """Hex SHA-256 of everything that decides the outputs.

        Args:
            digests: input → digest of its content.
            root: the folder with the code. Its digests are computed here: those in data/identity may be older than the code.
        """
        return sha256_json(
            {
                "stage": self.stage,
                "code": digest_of_sums(stage_sums(self.stage, root / "pipeline")),
                "inputs": {path: digests[path] for path in self.inputs if Path(path) not in CODE},
                "params": self.params,
            }
        )


def maker_of(path: str, root: Path) -> tuple[str, str] | None:
    """The stage that makes a path, and the output of that stage that holds it; None if no stage does."""
    for stage, described in dvc_stages(root).items():
        for out in _outs(described):
            if _within(path, out):
                return stage, out
    return None


@dataclass(frozen=True, slots=True)
class Left:
    """The outputs of finished work."""

    outs: dict[str, str]
    """Path → digest."""
    versions: dict[str, str]
    """`library_versions` of the machine that did the work."""

    def tell_reuse(self, stage: str) -> None:
        """Warn if the work was done with other library versions than the ones here."""
        if others := other_versions([self.versions]):
            log.warning(f"results of {stage} that are reused were computed with {others}")


def leave(storage: Storage, key: str, outs: Mapping[str, str]) -> None:
    """Record the outputs (path → digest) of the work with this key in the storage, with the library versions here."""
    storage.use(work_name(key))
    record = {"outs": dict(outs), "versions": library_versions()}
    storage.write(_kept(key), json.dumps(record, indent=2, sort_keys=True) + "\n")


def left(storage: Storage, key: str) -> Left | None:
    """What `leave` recorded; None if that work is not done yet.

    Raises:
        UserError: the record is damaged.
    """
    storage.use(work_name(key))
    return read_record(storage, key)


def read_record(storage: Storage, key: str) -> Left | None:
    """`left`, without marking the record as used."""
    text = storage.read(_kept(key))
    if text is None:
        return None
    try:
        record = json.loads(text)
        return Left({str(path): str(digest) for path, digest in record["outs"].items()}, dict(record["versions"]))
    except (ValueError, AttributeError, KeyError, TypeError):
        raise UserError(f"{storage.name}: {_kept(key)} is damaged; remove it and run again") from None


def work_name(key: str) -> str:
    """The record's name in `pipeline.storage.inventory`."""
    return f"{WORK}/{key}"


def _kept(key: str) -> str:
    return f"{work_name(key)}/outs.json"


def _outs(stage: Mapping[str, Any]) -> list[str]:
    return [*stage.get("outs", []), *stage.get("metrics", [])]


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")


def _value(held: Any, key: str) -> Any:
    for part in key.split("."):
        held = held.get(part) if isinstance(held, dict) else None
    return held
