"""Stage identity: writes digests of the backbone's files and of each stage's code, so that the stages that changed run again.

DVC cannot track the backbone's files, which may be in a Python package or in the cache of a hub. It can track the code, but would
treat a new comment as a code change. So this stage runs every time, and the others depend on its outputs.
"""

from __future__ import annotations

from pathlib import Path

from pipeline.cluster.preflight import load_project
from pipeline.identity.digests import BACKBONE, CODE, backbone_sums, digest_of_sums, stage_sums
from pipeline.utils.atomic_io import write_json
from pipeline.utils.errors import run_stage
from pipeline.utils.logs import log


def main() -> None:
    """Write data/identity."""
    p, _ = load_project()
    sums = backbone_sums(p.model.backbone, p.model.revision)
    for path, files in {BACKBONE: sums, **{path: stage_sums(stage) for path, stage in CODE.items()}}.items():
        write_json(Path.cwd() / path, {"digest": digest_of_sums(files), "files": files})
    log.info(f"identity: {len(sums)} files of {p.model.backbone}, digest {digest_of_sums(sums)[:12]}")


if __name__ == "__main__":
    run_stage(main)
