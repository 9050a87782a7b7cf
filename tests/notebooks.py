"""The notebooks of docs/notebooks: run by a Jupyter kernel, and compared with the outputs that are committed."""

from __future__ import annotations

from pathlib import Path

import nbformat
from nbclient import NotebookClient

from tests.console import plain, user_environment
from tests.copies import ROOT

FOLDER = Path("docs/notebooks")
NOTEBOOKS = sorted((ROOT / FOLDER).glob("*.ipynb"))


def printed(cell: nbformat.NotebookNode) -> str:
    """What a cell printed and showed, as text."""
    return "\n".join(output.get("text") or output["data"]["text/plain"] for output in cell.get("outputs", ()))


def executed(name: str, project: Path) -> nbformat.NotebookNode:
    """A notebook after all its cells have run in a project, from top to bottom; an error in a cell is raised."""
    notebook = nbformat.read(ROOT / FOLDER / name, as_version=4)
    there = {"metadata": {"path": str(project / FOLDER)}}
    client = NotebookClient(notebook, timeout=1500, coalesce_streams=True, resources=there)
    return client.execute(env=user_environment(project))


def changes(name: str, project: Path) -> list[str]:
    """Run a notebook in a project; a text for each cell whose output is not the committed one.

    Numbers are not compared. Of a cell with the tag `varies`, which shows what a model finds, only the number of lines is.
    """
    changed: list[str] = []
    committed = nbformat.read(ROOT / FOLDER / name, as_version=4).cells
    for cell, again in zip(committed, executed(name, project).cells, strict=True):
        old, new = (plain(printed(one), project) for one in (cell, again))
        varies = "varies" in cell.metadata.get("tags", ())
        if len(old.splitlines()) != len(new.splitlines()) if varies else old != new:
            changed.append(f"{name}:\n{cell.source}\ncommitted:\n{old}\nprinted:\n{printed(again)}")
    return changed
