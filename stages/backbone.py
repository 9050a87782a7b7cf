"""Stage backbone: the SHA-256 of each of the backbone's files, so that the stages that read them run again when one changes.

DVC cannot follow the files themselves, which may be in a Python package or the cache of a hub. So this stage runs every time, and
the others depend on what it writes.
"""

from __future__ import annotations

from pathlib import Path

from pipeline.check import load_project
from pipeline.errors import run_stage
from pipeline.files import write_json
from pipeline.identity import BACKBONE, backbone_sums, digest_of_sums


def main() -> None:
    """Write data/backbone.json."""
    p, _ = load_project()
    sums = backbone_sums(p.model.backbone, p.model.revision)
    write_json(Path.cwd() / BACKBONE, {"digest": digest_of_sums(sums), "files": sums})
    print(f"backbone: {len(sums)} files of {p.model.backbone}, digest {digest_of_sums(sums)[:12]}")


if __name__ == "__main__":
    run_stage(main)
