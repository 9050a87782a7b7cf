"""`python -m pipeline.package` (`make package`): what a job needs of the project, as the archive that KubeRay's RayJob names.

The files are those that `ray job submit --working-dir .` sends; inputs.json is one of them, so `make upload` comes first.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

from pipeline.errors import UserError, run_stage
from pipeline.execution import EXECUTION_FILE
from pipeline.files import replacing
from pipeline.job import INPUTS_FILE
from pipeline.params import PARAMS_FILE

PACKAGE = Path("gausscse.zip")
_FILES = (PARAMS_FILE, EXECUTION_FILE, "dvc.yaml", "constraints.txt", "pyproject.toml", INPUTS_FILE)
_FOLDERS = ("pipeline", "stages")


def main() -> None:
    """Write the archive beside the code."""
    root = Path.cwd()
    files = [root / name for name in _FILES]
    files += sorted(p for name in _FOLDERS for p in (root / name).rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    for file in files:
        if not file.is_file():
            hint = "run `make upload` first" if file.name == INPUTS_FILE else "run from the project root"
            raise UserError(f"{file.relative_to(root)}: no such file; {hint}")
    with replacing(root / PACKAGE) as new, zipfile.ZipFile(new, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in files:
            # Ray takes one folder at the top of an archive away.
            archive.write(file, Path(PACKAGE.stem) / file.relative_to(root))
    print(f"package: {len(files)} files in {PACKAGE} ({(root / PACKAGE).stat().st_size / 1000:.0f} kB)")


if __name__ == "__main__":
    run_stage(main)
