"""What holds of the notebooks without running them; tests/stages runs them once a week."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest

import pipeline
from pipeline.cli.main import COMMANDS
from pipeline.inference.entailment_index import Searchable
from pipeline.models.encoder import GaussianEncoder
from tests.conftest import ROOT
from tests.notebooks import NOTEBOOKS, printed

# A folder at the root of some machine.
_MACHINE = re.compile(r"(?:^|[\s\"'(=]|file://)/\w[\w.-]*/", re.MULTILINE)


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def path(request: pytest.FixtureRequest) -> Path:
    return request.param


@pytest.fixture
def notebook(path: Path) -> nbformat.NotebookNode:
    return nbformat.read(path, as_version=4)


def test_it_is_valid_and_was_run_from_top_to_bottom(notebook: nbformat.NotebookNode) -> None:
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == [*range(1, len(code) + 1)]
    outputs = [output for cell in code for output in cell.outputs]
    assert len(outputs) >= 4
    assert not [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"]


def test_no_output_has_a_path_of_a_machine(notebook: nbformat.NotebookNode) -> None:
    assert _MACHINE.search("saved in /home/me/x") and not _MACHINE.search("own/reviews, models:/reviews/1")
    assert not [found for cell in notebook.cells if (found := _MACHINE.search(printed(cell)))]


def test_the_commands_names_and_files_that_it_uses_exist(path: Path, notebook: nbformat.NotebookNode) -> None:
    text = "\n".join(cell.source for cell in notebook.cells)
    used = set(re.findall(r"\b(gausscse|Searchable|encoder)\.(\w+)", text))
    owners = {"gausscse": pipeline, "Searchable": Searchable, "encoder": GaussianEncoder}
    assert used
    assert not [f"{owner}.{name}" for owner, name in used if not hasattr(owners[owner], name)]
    assert set(re.findall(r"(?:^|[`&] ?)gausscse (\w+)", text, re.MULTILINE)) <= set(COMMANDS)
    # `gausscse init` writes the preset reviews.
    presets = {name for names in re.findall(r"gausscse preset ([\w -]+)", text) for name in names.split()} - {"reviews"}
    assert not [name for name in presets if not (ROOT / f"presets/{name}.yaml").is_file()]
    links = [link for cell in notebook.cells for link in re.findall(r"\]\((?!https?:)([^)]+)\)", cell.source)]
    assert not [link for link in links if not (path.parent / link).is_file()]
