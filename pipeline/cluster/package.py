"""`gausscse submit --package` (`make package`): the files of the project that a job needs, as an archive for KubeRay's RayJob.

The archive holds the same files that `ray job submit --working-dir .` sends (.rayignore). inputs.json is one of them, so run
`make upload` first. Both lists name the files to send, not the files to leave out, so a secret in the checkout is never sent,
whatever its name.
"""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path

from pipeline.config.execution import EXECUTION_FILE
from pipeline.config.job_inputs import INPUTS_FILE
from pipeline.config.params import PARAMS_FILE
from pipeline.identity.source import modules_of
from pipeline.utils.errors import UserError

PACKAGE = Path("gausscse.zip")
_FILES = (PARAMS_FILE, EXECUTION_FILE, "dvc.yaml", "pyproject.toml")


def pack(root: Path, archive: Path, *, top: str = "", also: Sequence[str] = ()) -> int:
    """Write a zip archive of the files that a job needs from the project at `root`.

    Args:
        top: folder inside the archive for all the files.
        also: further files, relative to `root`.

    Returns:
        the number of files.

    Raises:
        UserError: a file is missing.
    """
    files = [root / name for name in (*_FILES, *also)]
    for file in files:
        if not file.is_file():
            hint = "run `make upload` first" if file.name == INPUTS_FILE else "run from the project root"
            raise UserError(f"{file.relative_to(root)}: no such file; {hint}")
    modules = [*modules_of(root / "pipeline"), *modules_of(root / "stages")]
    # Jobs make no report pages.
    files += [file for file in modules if root / "pipeline/report" not in file.parents]
    with zipfile.ZipFile(archive, "w") as packed:
        for file in files:
            # A fixed date: the same files then give the same bytes, which Ray sees as the same package.
            entry = zipfile.ZipInfo((Path(top) / file.relative_to(root)).as_posix(), (1980, 1, 1, 0, 0, 0))
            packed.writestr(entry, file.read_bytes(), zipfile.ZIP_DEFLATED)
    return len(files)
