"""The backbone's files as an object of the storage, so that a node needs no hub and no folder of its own.

The machine that sends the work takes them from the hub, from the hub's cache or from a folder. A packaged backbone is not sent:
every node has it with the other packages.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from pipeline.cluster.session import Session
from pipeline.config.job_inputs import SENT_BACKBONE, in_job, inputs_of, standing
from pipeline.config.params import ModelParams
from pipeline.models.backbone import files_of, resolve
from pipeline.storage.object_store import Storage, everywhere, shared_name


def send(model: ModelParams, storage: Storage) -> dict[str, str]:
    """Put the backbone's files into the storage; returns the entry for a job's `Inputs.objects`, if there is one to make.

    Raises:
        UserError: the backbone does not exist or has no weights, or the hub or the storage cannot be reached.
    """
    with _folder(model) as folder:
        return {} if folder is None else {SENT_BACKBONE: storage.put(folder)}


def share(model: ModelParams, on: Session) -> str | None:
    """A name by which the workers of `on` find the files (`pipeline.storage.object_store.found`); None if they have them.

    If the storage is a relative path, all nodes are assumed to see the same files as this machine.
    """
    if not standing(on.params) or not everywhere(on.params.storage):
        return None
    if in_job():
        sent = inputs_of(Path.cwd())
        digest = sent.objects.get(SENT_BACKBONE) if sent else None
        return None if digest is None else shared_name(digest, on.params.storage)
    with _folder(model) as folder:
        return None if folder is None else on.share(folder)


@contextmanager
def _folder(model: ModelParams) -> Iterator[Path | None]:
    """A folder with links to the files that decide what the backbone computes, and to no others; None if a package has them."""
    backbone = resolve(model.backbone, model.revision)
    if backbone.package is not None:
        yield None
        return
    with TemporaryDirectory(prefix="gausscse-") as temporary:
        for name, path in files_of(backbone).items():
            (Path(temporary) / name).symlink_to(path.resolve())
        yield Path(temporary)
