"""What tasks on several nodes leave for one another in a storage: files of numbered batches, and a record of each task."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

import pyarrow as pa

from pipeline.storage.object_store import Storage, at_once
from pipeline.utils.atomic_io import json_text, room_for
from pipeline.utils.errors import UserError


@dataclass(frozen=True, slots=True)
class Exchange:
    """A folder of a storage. All its files are written completely or not at all."""

    storage: str
    """As in `cluster.storage`."""
    folder: str

    def write(self, name: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch | pa.Table]) -> None:
        """Write batches as one file; each keeps its number, from 0, also if it has no rows."""
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        with TemporaryDirectory(prefix="gausscse-") as folder:
            file = Path(folder) / "batches.arrow"
            with room_for(file), pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, schema, options=options) as writer:
                for batch in batches:
                    table = batch if isinstance(batch, pa.Table) else pa.Table.from_batches([batch])
                    whole = table.select(schema.names).cast(schema).combine_chunks().to_batches()
                    if len(whole) > 1:
                        raise UserError(f"{name}: the texts of one batch have more than 2 GB; shorten the texts")
                    writer.write_batch(whole[0] if whole else pa.RecordBatch.from_pylist([], schema=schema))
            self._place.send(file, f"{self.folder}/{name}.arrow")

    def each(self, names: Sequence[str], number: int) -> Iterator[pa.Table]:
        """Batch `number` of each of these files, in order; eight are read at a time."""
        for start in range(0, len(names), 8):
            yield from at_once(lambda name: next(self._read(name, [number])), names[start : start + 8])

    def read(self, names: Sequence[str], number: int) -> pa.Table:
        """The rows of batch `number` of each of these files, one file after the other."""
        return pa.concat_tables(self.each(names, number))

    def batches(self, name: str) -> Iterator[pa.Table]:
        """All batches of a file, in order."""
        return self._read(name)

    def once(self, name: str, work: Callable[[], Any]) -> Any:
        """What a task returned (as JSON); it is done only if no earlier try has finished it."""
        record = f"{self.folder}/{name}.json"
        if (text := self._place.read(record)) is None:
            text = json_text(work())
            self._place.write(record, text)
        return json.loads(text)

    @property
    def _place(self) -> Storage:
        return Storage.open(self.storage)

    def _read(self, name: str, numbers: Iterable[int] | None = None) -> Iterator[pa.Table]:
        with self._place.opened(f"{self.folder}/{name}.arrow") as source, pa.ipc.open_file(source) as file:
            for number in range(file.num_record_batches) if numbers is None else numbers:
                yield pa.Table.from_batches([file.get_batch(number)])


class Spread(Protocol):
    """Runs tasks on all nodes of a cluster."""

    @property
    def exchange(self) -> Exchange:
        """Where the tasks leave what others need."""
        ...

    @property
    def parts(self) -> int:
        """Number of partitions of keys, a power of two. It never shows in the results."""
        ...

    def share(self, path: Path) -> str:
        """A name for a file or folder; `pipeline.storage.object_store.found` gives its path on any node."""
        ...

    def run(self, task: Callable[..., Any], items: Sequence[dict[str, Any]], **fixed: Any) -> list[Any]:
        """Call task(**item, **fixed, exchange=…) for each item, somewhere; the results in the order of the items.

        Items and results are JSON. The fixed arguments are sent once.
        """
        ...
