"""Stage backbone: writes the SHA-256 of each backbone file, so that the stages that read these files run again if one changes.

DVC cannot track the files themselves, which may be in a Python package or in the cache of a hub. So this stage runs every time,
and the others depend on its output.
"""

from __future__ import annotations

from pathlib import Path

from pipeline.cluster.preflight import load_project
from pipeline.identity.digests import BACKBONE, backbone_sums, digest_of_sums
from pipeline.utils.atomic_io import write_json
from pipeline.utils.errors import run_stage
from pipeline.utils.logs import log


def main() -> None:
    """Write data/backbone.json."""
    p, _ = load_project()
    sums = backbone_sums(p.model.backbone, p.model.revision)
    write_json(Path.cwd() / BACKBONE, {"digest": digest_of_sums(sums), "files": sums})
    log.info(f"backbone: {len(sums)} files of {p.model.backbone}, digest {digest_of_sums(sums)[:12]}")


if __name__ == "__main__":
    run_stage(main)
