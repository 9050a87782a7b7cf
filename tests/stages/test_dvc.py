"""DVC's view of the project: which keys make which stages stale."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.copies import copy_project
from tests.stages.running import EVERY_TIME, dvc

# One result key of each kind, and the stages that read it themselves, the report aside, which shows them all.
READERS = {
    "seed: 1\n": ("seed: 2\n", {"prepare"}),
    "max_length: 64": ("max_length: 32", {"tokenize", "tune", "train", "experiment"}),
    "temperature: 0.05": ("temperature: 0.1", {"tune", "train", "evaluate", "experiment"}),
    "warmup_ratio: 0.1": ("warmup_ratio: 0.2", {"tune", "train", "experiment"}),
    "step_zero_eligible: false\n  # One final model for each seed.\n  seeds: [1, 2]": (
        "step_zero_eligible: false\n  seeds: [1, 2, 3]",
        {"train", "experiment"},
    ),
    "threshold_step: 0.001": ("threshold_step: 0.01", {"prepare", "evaluate", "register", "experiment"}),
    "  variants: {}": ("  variants: {ent: {objective.name: ent}}", {"experiment"}),
    "examples: ids": ("examples: none", set()),
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy whose stages all count as done: outs faked, then committed to DVC. Nothing of ours runs here."""
    root = copy_project(tmp_path_factory.mktemp("project"))
    import yaml

    for stage in yaml.safe_load((root / "dvc.yaml").read_text(encoding="utf-8"))["stages"].values():
        for out in (*stage.get("outs", []), *stage.get("metrics", [])):
            path = root / (out if isinstance(out, str) else next(iter(out)))
            if path.suffix:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text("{}", encoding="utf-8")
            else:
                path.mkdir(parents=True, exist_ok=True)
                for name in ("x", "best.yaml", "outcomes.json", "tokens.json"):
                    (path / name).write_text("x", encoding="utf-8")
    dvc(root, "commit", "--force", "--quiet")
    return root


def stale(root: Path) -> dict[str, Any]:
    """Stages and why, without those that run every time, as far as that is the reason."""
    found = json.loads(dvc(root, "status", "--json"))
    for stage in ("identity", *EVERY_TIME):
        found[stage].remove("always changed")
    return {stage: why for stage, why in found.items() if why}


@pytest.mark.parametrize("old", list(READERS), ids=lambda text: text.strip().splitlines()[-1].strip())
def test_a_result_key_makes_exactly_its_readers_stale(project: Path, old: str) -> None:
    new, readers = READERS[old]
    params = project / "params.yaml"
    before = params.read_text(encoding="utf-8")
    assert before.count(old) == 1
    try:
        params.write_text(before.replace(old, new), encoding="utf-8")
        assert set(stale(project)) == {*readers, "report"}
    finally:
        params.write_text(before, encoding="utf-8")


def test_execution_keys_make_nothing_stale(project: Path) -> None:
    execution = project / "execution.yaml"
    before = execution.read_text(encoding="utf-8")
    try:
        execution.write_text(
            before.replace("  workers: 1", "  workers: 4").replace("uri: null", "uri: http://x:5000"), encoding="utf-8"
        )
        assert execution.read_text(encoding="utf-8") != before
        assert stale(project) == {}
    finally:
        execution.write_text(before, encoding="utf-8")


def test_a_changed_byte_of_the_raw_input_makes_prepare_stale(project: Path) -> None:
    lexicon = project / "pipeline/data/lexicon/words.json"
    before = lexicon.read_bytes()
    try:
        lexicon.write_bytes(before + b"\n")
        # Stage identity depends on all code; it is the lexicon itself that makes prepare stale.
        assert set(stale(project)) == {"identity", "prepare"}
    finally:
        lexicon.write_bytes(before)
