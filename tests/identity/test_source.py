"""The digest of source code does not count comments, docstrings and layout; imports are followed wherever they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.identity.source import imported_files, source_digest

SOURCE = '''
"""A module."""
import ast

LIMIT = 3.0
"""An attribute."""


class Small:
    """A class."""

    size: int = 1 if LIMIT else 2
    """Its size."""


def total(values: list[int], *, text: bytes = b"x") -> str:
    """A function."""
    # A comment.
    return f"{sum(values):>{len(text)}} of {values!r}" "!"
'''


def written(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "module.py").write_text(text, encoding="utf-8")
    return folder / "module.py"


def test_a_digest_of_source_is_the_same_under_every_python(tmp_path: Path) -> None:
    # Taken under 3.11, 3.12 and 3.13.
    assert source_digest(written(tmp_path, SOURCE)) == "7e8348af1ab08ff94c31e1b8d962ee90353fb3f1ae4404d4ee1ce6b673637e7d"


WORDS = [
    ("A comment", "Another comment"),
    ('"""A module."""', ""),
    ('"""An attribute."""\n', ""),
    ('    """A class."""\n', ""),
    ('    """A function."""\n', "\n"),
    ("values: list[int], *", "values: list[int],\n    *"),
]
COMPUTED = [
    ("3.0", "3"),
    ("3.0", "-3.0"),
    ('b"x"', '"x"'),
    ("1 if", "True if"),
    ("{values!r}", "{values!s}"),
    (" of ", " in "),
    (":>{", ":<{"),
    ("sum(values)", "max(values)"),
    ("*, text", "text"),
    ("import ast\n", "import ast as other\n"),
]


@pytest.mark.parametrize(("old", "new"), [*WORDS, *COMPUTED])
def test_what_is_computed_counts_and_its_words_and_layout_do_not(tmp_path: Path, old: str, new: str) -> None:
    assert SOURCE.count(old) == 1
    before, after = (
        source_digest(written(tmp_path / name, text)) for name, text in (("a", SOURCE), ("b", SOURCE.replace(old, new)))
    )
    assert (after == before) == ((old, new) in WORDS)


def test_imports_are_followed_wherever_they_are(tmp_path: Path) -> None:
    files = {
        "__init__.py": "from package.never import x\n",
        "a.py": "from typing import TYPE_CHECKING\nimport package.b\nif TYPE_CHECKING:\n    import package.never\n",
        "b.py": "def f():\n    from package import c\n",
        "c.py": "try:\n    from package.d.e import x\nexcept ImportError:\n    x = 1\n",
        "d/__init__.py": "import package.never\n",
        "d/e.py": "from .g import x\nfrom ..f import y\nimport packages.never\n",
        "d/g.py": "x = 1\n",
        "f.py": "y = 1\n",
        "never.py": "x = 1\n",
    }
    for name, text in files.items():
        (tmp_path / "package" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "package" / name).write_text(text, encoding="utf-8")
    # `from package import c` runs the package's own file too.
    (tmp_path / "package/__init__.py").write_text("", encoding="utf-8")
    reached = imported_files(tmp_path / "package", ["a.py"])
    assert reached == {"__init__.py", "a.py", "b.py", "c.py", "d/e.py", "d/g.py", "f.py"}
    (tmp_path / "package/f.py").write_text("from package.d import z\n", encoding="utf-8")
    assert imported_files(tmp_path / "package", ["a.py"]) == reached | {"d/__init__.py", "never.py"}
