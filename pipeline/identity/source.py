"""Digests of Python files that ignore comments and docstrings, and the imports between files.

Standard library only. Python versions that parse a file to the same syntax tree (such as 3.11 to 3.13) give the same digest.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from functools import cache, wraps
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

# Fields of a node that describe how it was written, not what it means.
_SPELLING = ("kind", "type_comment")
_FAMILIES = "families"
# Suffixes of files in the package that its code reads. Others, such as an editor's copies, are not code.
READ_BY_CODE = (".css", ".html", ".js", ".json", ".txt")
# Files that modules read, and that travel with them. By name, because other files of their kinds may hold a secret.
LOADED = ("answers.json", "card.txt", "everyday.json", "examples.json", "sentences.json", "wordnet.json", "words.json")


def modules_of(folder: Path) -> list[Path]:
    """The Python files in a package's folder and its subfolders, and the data that they load, sorted, without hidden ones."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and (path.suffix == ".py" or path.name in LOADED))
    return [path for path in files if not any(part.startswith(".") for part in path.relative_to(folder).parts)]


def once_per_file(compute: Callable[[Path], T]) -> Callable[[Path], T]:
    """Decorate a function of a file: an answer is kept as long as the file's size and time stay the same."""

    @cache
    def kept(path: Path, size: int, mtime_ns: int) -> T:
        return compute(path)

    return wraps(compute)(lambda path: kept(path, (stat := path.stat()).st_size, stat.st_mtime_ns))


@once_per_file
def source_digest(path: Path) -> str:
    """Hex SHA-256 of a Python file, ignoring comments, layout, docstrings and other bare strings (attribute descriptions)."""
    return hashlib.sha256(json.dumps(_shape(_parsed(path))).encode()).hexdigest()


def imported_files(package: Path, roots: Iterable[str], *, parts: bool = False) -> set[str]:
    """The files of a package that may run when `roots` are imported and used.

    Imports inside functions count; those under `if TYPE_CHECKING:` do not. A package's `__init__.py` counts if a name is imported
    from it, but not if only one of its modules is; otherwise everything that it imports would count.

    Args:
        package: the package's folder.
        roots: files to start from, relative to the package.
        parts: count what `pipeline.families.family.part` imports by its name as well, of every family.

    Returns:
        Paths relative to the package, including the roots.
    """
    reached: set[str] = set()
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        if name in reached:
            continue
        reached.add(name)
        for module in imported_modules(package, name, parts=parts):
            first, *inner = module.split(".")
            named = "/".join(inner)
            files = (f"{named}.py", f"{named}/__init__.py".lstrip("/")) if first == package.name else ()
            # If the last part is a name inside a module, no such file exists.
            waiting += [file for file in files if (package / file).is_file()]
    return reached


def imported_modules(package: Path, name: str, *, parts: bool = False) -> tuple[str, ...]:
    """Full names of all that a file of a package imports when it runs, modules or not."""
    stat = (package / name).stat()
    return _modules_imported(package, name, parts, stat.st_size, stat.st_mtime_ns)


@cache
def _modules_imported(package: Path, name: str, parts: bool, size: int, mtime_ns: int) -> tuple[str, ...]:
    modules: list[str] = []
    for node in executed(_parsed(package / name)):
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = [package.name, *Path(name).parts][: -node.level] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            # A name imported from a package may be a module.
            modules += [module, *(f"{module}.{alias.name}" for alias in node.names)]
        elif parts and isinstance(node, ast.Call) and ast.unparse(node.func) == "part":
            assert isinstance(node.args[-1], ast.Constant), f"{name}: part is called with a name that only a run knows"
            homes = (home.name for home in sorted((package / _FAMILIES).glob("[a-z]*/")))
            modules += [f"{package.name}.{_FAMILIES}.{home}.{node.args[-1].value}" for home in homes]
    return tuple(modules)


def executed(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes below a node, without code that only type checkers read."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            for other in child.orelse:
                yield other
                yield from executed(other)
        else:
            yield child
            yield from executed(child)


@once_per_file
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_bytes())


def _shape(node: Any) -> Any:
    """A syntax tree as JSON: [type, {field: value}], without empty fields, because newer Python versions add some."""
    if isinstance(node, list):
        return [_shape(item) for item in node if not _is_text(item)]
    if isinstance(node, ast.Constant):
        # The repr of a string would depend on the Unicode version, which decides which characters are escaped.
        return [type(node.value).__name__, node.value if isinstance(node.value, str) else repr(node.value)]
    if isinstance(node, ast.JoinedStr):
        return ["JoinedStr", list(_joined(node))]
    if isinstance(node, ast.AST):
        fields = {name: _shape(value) for name, value in ast.iter_fields(node) if name not in _SPELLING}
        return [type(node).__name__, {name: value for name, value in fields.items() if value is not None and value != []}]
    return node


def _is_text(node: Any) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _joined(node: ast.JoinedStr) -> Iterator[Any]:
    """The parts of an f-string; adjacent texts are joined, because Python versions split them differently."""
    text = ""
    for part in node.values:
        if isinstance(part, ast.Constant):
            text += str(part.value)
            continue
        if text:
            yield text
        text = ""
        yield _shape(part)
    if text:
        yield text
