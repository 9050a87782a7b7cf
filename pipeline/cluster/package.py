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
_FOLDERS = ("pipeline", "stages")
# Jobs make no report pages, and serve nothing.
_REPORT, _SERVING = Path("pipeline/report"), Path("pipeline/serving")
# A fixed date: the same files then give the same bytes, which Ray sees as the same package.
_DATE = (1980, 1, 1, 0, 0, 0)


def pack(root: Path, archive: Path, *, top: str = "", also: Sequence[str] = (), serving: bool = False) -> int:
    """Write a zip archive of the files that a job needs from the project at `root`.

    Args:
        top: folder inside the archive for all the files.
        also: further files, relative to `root`.
        serving: whether replicas of `gausscse serve` will run from it, which need the server's code.

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
    left_out = {root / folder for folder in ((_REPORT,) if serving else (_REPORT, _SERVING))}
    files += [file for name in _FOLDERS for file in modules_of(root / name) if left_out.isdisjoint(file.parents)]
    with zipfile.ZipFile(archive, "w") as packed:
        for file in files:
            entry = zipfile.ZipInfo((Path(top) / file.relative_to(root)).as_posix(), _DATE)
            packed.writestr(entry, file.read_bytes(), zipfile.ZIP_DEFLATED)
    return len(files)
