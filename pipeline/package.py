"""`python -m pipeline.package` (`make package`): what a job needs of the project, as the archive that KubeRay's RayJob names.

The files are those that `ray job submit --working-dir .` sends (.rayignore); inputs.json is one of them, so `make upload` comes
first. Both lists name the files to send, not those to leave out: a secret in the checkout is in neither, whatever its name.
"""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path

from pipeline.errors import UserError, run_stage
from pipeline.execution import EXECUTION_FILE
from pipeline.files import replacing
from pipeline.job import INPUTS_FILE
from pipeline.params import PARAMS_FILE

PACKAGE = Path("gausscse.zip")
_FILES = (PARAMS_FILE, EXECUTION_FILE, "dvc.yaml", "pyproject.toml")
_FOLDERS = ("pipeline", "stages")
# The same files give the same bytes, and so the same package to Ray.
_DATE = (1980, 1, 1, 0, 0, 0)


def modules_of(folder: Path) -> list[Path]:
    """The Python files of a package's folder and its subfolders, in order; no hidden ones."""
    files = (path for path in sorted(folder.rglob("*.py")) if path.is_file())
    return [path for path in files if not any(part.startswith(".") for part in path.relative_to(folder).parts)]


def pack(root: Path, archive: Path, *, top: str = "", also: Sequence[str] = ()) -> int:
    """Write the files of the project at `root` that a job needs into a zip archive.

    Args:
        top: folder in the archive that everything is put into.
        also: further files, relative to `root`.

    Returns:
        the number of files.

    Raises:
        UserError: one of them is missing.
    """
    files = [root / name for name in (*_FILES, *also)]
    for file in files:
        if not file.is_file():
            hint = "run `make upload` first" if file.name == INPUTS_FILE else "run from the project root"
            raise UserError(f"{file.relative_to(root)}: no such file; {hint}")
    files += [file for name in _FOLDERS for file in modules_of(root / name)]
    with zipfile.ZipFile(archive, "w") as packed:
        for file in files:
            entry = zipfile.ZipInfo((Path(top) / file.relative_to(root)).as_posix(), _DATE)
            packed.writestr(entry, file.read_bytes(), zipfile.ZIP_DEFLATED)
    return len(files)


def main() -> None:
    """Write the archive into the project's folder."""
    root = Path.cwd()
    with replacing(root / PACKAGE) as new:
        # Ray removes a single top folder from an archive that it downloads.
        packed = pack(root, new, top=PACKAGE.stem, also=(INPUTS_FILE,))
    print(f"package: {packed} files in {PACKAGE} ({(root / PACKAGE).stat().st_size / 1000:.0f} kB)")


if __name__ == "__main__":
    run_stage(main)
