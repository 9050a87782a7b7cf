"""Code that does not count for the digests: no constant in it decides a result."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from pipeline.config.objectives import KINDS
from pipeline.identity import digests
from pipeline.identity.digests import RELATION, SCORES, VECTORS, WEIGHTS, implementations, neutral
from pipeline.identity.source import executed, imported_files

ROOTS = (*WEIGHTS, *implementations(*KINDS)), SCORES, RELATION, VECTORS
REACHED = {name for roots in ROOTS for name in imported_files(digests.PACKAGE, roots)}


def tree(name: str) -> ast.Module:
    return ast.parse((digests.PACKAGE / name).read_bytes())


def literal(node: ast.AST | None) -> bool:
    return node is not None and any(isinstance(part, ast.Constant) and part.value is not None for part in ast.walk(node))


def constants(body: list[ast.stmt], inside: str = "") -> Iterator[tuple[str, str]]:
    """(class, name) of the constants of a module and its classes: what they assign, and properties that return a literal."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from constants(node.body, node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and literal(node.value):
            # The value of a field is the instance's own, as a rule.
            if inside and isinstance(node, ast.AnnAssign) and "ClassVar" not in ast.unparse(node.annotation):
                continue
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from ((inside, part.id) for target in targets for part in ast.walk(target) if isinstance(part, ast.Name))
        elif (
            isinstance(node, ast.FunctionDef)
            and "property" in map(ast.unparse, node.decorator_list)
            and any(isinstance(part, ast.Return) and isinstance(part.value, ast.Constant) for part in ast.walk(node))
        ):
            yield inside, node.name


def read_of_neutral(counted: set[str]) -> set[str]:
    """The constants of neutral modules that counted modules import, or read as attributes."""
    attributes: set[str] = set()
    imported: set[tuple[str, str]] = set()
    for name in counted:
        for node in executed(tree(name)):
            if isinstance(node, ast.Attribute):
                attributes.add(node.attr)
            elif isinstance(node, ast.ImportFrom) and node.module:
                imported |= {(node.module, alias.name) for alias in node.names}
    found: set[str] = set()
    for name in REACHED - counted:
        module = f"pipeline.{name.removesuffix('.py').replace('/', '.')}"
        for inside, constant in constants(tree(name).body):
            if constant in attributes if inside else (module, constant) in imported:
                found.add(f"{name}: {inside}.{constant}" if inside else f"{name}: {constant}")
    return found


def test_code_that_counts_reads_no_constant_of_code_that_does_not() -> None:
    assert read_of_neutral({name for name in REACHED if not neutral(name)}) == set()


@pytest.mark.parametrize(("module", "constant"), [("config/paths.py", "DEV_TOKENS"), ("models/model_dir.py", "RELATION")])
def test_a_module_with_constants_that_decide_cannot_be_neutral(module: str, constant: str) -> None:
    found = read_of_neutral({name for name in REACHED if not neutral(name) and name != module})
    assert f"{module}: {constant}" in found
