"""Running text of stage prepare: documents → sets of sentences in order; what was dropped and what repeats.

The text is streamed, twice. The first pass writes it to a scratch file and enters keys of documents and sentences in the
database of `scratch`. Then each document goes to a set or is dropped, and the second pass writes the sets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.config.data_params import DataParams
from pipeline.config.params import EvaluateParams
from pipeline.data.readers.opening import resolve
from pipeline.data.rows import BATCH_ROWS
from pipeline.data.schema import DEV_TEXT, DOCUMENTS, PROMOTION_TEXT, TEXT_SUFFIX
from pipeline.data.scratch import database
from pipeline.data.split import FEWEST_GROUPS
from pipeline.data.table_io import ParquetFile, open_parquet
from pipeline.families.prepare import TRAIN, Report, dropped, set_file
from pipeline.families.text.dedup import SENTENCES, Counts, Keys
from pipeline.families.text.documents import Document
from pipeline.families.text.prepare_tasks import prepare_tasks
from pipeline.families.text.sources import TextSource, text_sources
from pipeline.families.text.tasks import read_task
from pipeline.families.text.transfer import check
from pipeline.utils.errors import UserError

LEAST_PAIRS = 64
"""Pairs of neighbours that a set needs, because the next sentence is sought among so many."""

# Of the database: less than for pairs, because only keys are in it. A second thread would need more to sort, and most of the time
# goes into reading text.
_MEMORY, _THREADS = "20MB", 1
# Rows of a row group. All sets are written at once, and each holds one group in memory.
_GROUP = 16_384
MOST_BOILERPLATE = 5
"""Percent of the sentences of a set; more are warned of."""
LEAST_FOR_BOILERPLATE = 100
"""Documents. Books have so many sentences that short ones occur in several of them."""


def prepare(data: DataParams, work: Path, evaluate: EvaluateParams | None) -> Report:
    """Write the sets of running text and the transfer tasks into `work`; returns text and tasks.

    Args:
        evaluate: how tasks are checked (`transfer.check`); None: they are not.

    Raises:
        UserError: an input is wrong, or a set has too little text.
    """
    text = prepare_text(text_sources(data), data.promotion_share, work, work.with_name("scratch-text"))
    tasks = data.files.tasks if data.source == "files" else {}
    checked = None if evaluate is None else partial(check, search=evaluate.transfer_search)
    return {"text": text, "tasks": prepare_tasks(tasks, Path(data.root), work / "tests", checked)}


def profile(prepared: Path, report: Report) -> Report:
    """The counts again."""
    return report


def contents(data: DataParams) -> Iterator[Iterable[Any]]:
    """The first document of each set, and the tasks."""
    for source in text_sources(data).values():
        yield islice(source.documents(), 1)
    for task in data.files.tasks.values() if data.source == "files" else ():
        read_task(resolve(Path(data.root), task.path), task)


def lines(report: Report) -> Iterator[str]:
    """What stage prepare prints of its counts."""
    for name, counts in report["text"].items():
        yield (
            f"{name} (text): {counts['documents_in']:,} documents in, {counts['documents_out']:,} kept with "
            f"{counts['sentences']:,} sentences; dropped: {dropped(counts['dropped'])}"
        )
    for name, counts in report["tasks"].items():
        yield f"{name} (task): {counts['rows']:,} rows, {len(counts['classes'])} classes"


def warnings(profile: Mapping[str, Any]) -> Iterator[str]:
    """Sets with much boilerplate."""
    for name, counts in profile["text"].items():
        share = 100 * counts["boilerplate_sentences"] / max(counts["sentences"], 1)
        if share > MOST_BOILERPLATE and counts["documents_out"] >= LEAST_FOR_BOILERPLATE:
            yield (
                f"{name} (text): {counts['boilerplate_sentences']:,} of {counts['sentences']:,} sentences ({share:.1f} %) occur "
                "in several documents: headings, licences or the like; remove them from the text"
            )


def prepare_text(sources: Mapping[str, TextSource], promotion_share: float, work: Path, scratch: Path) -> dict[str, Counts]:
    """Write each set of running text; returns set → counts, with the two development parts; empty without sources.

    Training text goes to train/documents.parquet, the others to dev/, promotion/ and tests/ as SET.text.parquet. Documents of one
    sentence are dropped, because nothing is before or after it. Of training documents, those that repeat an earlier one or one of
    another set are dropped, too.

    Args:
        work: folder of the stage's outputs.
        scratch: a new folder for a copy of the text and the database; the caller removes it.

    Raises:
        UserError: a source cannot be read, or a set has too little text.
    """
    if not sources:
        return {}
    with database(scratch, _MEMORY, _THREADS) as connection:
        text = scratch / "documents.parquet"
        keys = Keys(connection, list(sources), promotion_share)
        with pq.ParquetWriter(text, SENTENCES, compression="lz4", use_dictionary=False) as writer:
            for name, source in sources.items():
                _enter(name, source, keys, writer)
        place = keys.places()
        names = keys.sets
        _write(text, place, [set_file(work, name, "documents", TEXT_SUFFIX) for name in names], keys)
        found = keys.counts(place)
    # The development parts have the name of the text they are cut from.
    cut_from = sources.get(DEV_TEXT) or sources.get(TRAIN)
    counts = {name: {"file": (sources.get(name) or cut_from or sources[name]).name, **found[name]} for name in names}
    drawn = sum(counts[part]["documents_out"] for part in (DEV_TEXT, PROMOTION_TEXT) if part in counts)
    for name, numbers in counts.items():
        _check(name, numbers, DEV_TEXT in sources, drawn)
    return counts


def _enter(name: str, source: TextSource, keys: Keys, writer: pq.ParquetWriter) -> None:
    """First pass over one set."""
    held: list[Document] = []
    waiting = 0
    for document in source.documents():
        held.append(document)
        waiting += len(document.sentences)
        if waiting >= BATCH_ROWS:
            writer.write_table(keys.add(name, held))
            held, waiting = [], 0
    if held:
        writer.write_table(keys.add(name, held))


def _write(text: Path, place: npt.NDArray[np.int16], paths: Sequence[Path], keys: Keys) -> None:
    """Second pass: write the sets, with documents and positions numbered from 0, and add their sentences to the keys."""
    # For each set: the last document written, its new number, and the number of its sentences so far.
    last, number, written = ([-1] * len(paths), [-1] * len(paths), [0] * len(paths))
    with ExitStack() as stack:
        files = [stack.enter_context(ParquetFile(path, DOCUMENTS, _GROUP)) for path in paths]
        source = stack.enter_context(open_parquet(text))
        for batch in source.iter_batches(BATCH_ROWS):
            places = place[batch["document"].to_numpy()]
            for k in np.unique(places[places >= 0]).tolist():
                part = batch.filter(pa.array(places == k))
                keys.add_sentences(k, part)
                document = part["document"].to_numpy()
                new = np.diff(document, prepend=last[k]) != 0
                numbers = number[k] + np.cumsum(new)
                starts = np.maximum.accumulate(np.where(new, np.arange(len(new)), -1))
                position = np.arange(len(new)) - starts + np.where(starts < 0, written[k] - 1, 0)
                files[k].write(pa.table([numbers, position, part["sentence"], part["source"]], DOCUMENTS.names))
                last[k], number[k], written[k] = int(document[-1]), int(numbers[-1]), int(position[-1]) + 1


def _check(name: str, counts: Counts, has_dev: bool, drawn: int) -> None:
    """`drawn`: documents of the development parts."""
    pairs = counts["sentences"] - counts["documents_out"]
    cut = name in (DEV_TEXT, PROMOTION_TEXT)
    if name == TRAIN:
        if not counts["documents_out"] and drawn and not has_dev:
            raise UserError(
                f"{counts['file']}: no document is left to train on: a hash of the text chose all {drawn} for development; add "
                "documents, or name data.files.text_dev"
            )
        if not counts["documents_out"]:
            why = dropped(counts["dropped"], "there is none")
            raise UserError(
                f"{counts['file']}: no document is left to train on ({why}); a document needs two sentences in a row. A "
                "table with a row for each sentence needs document: (data.files.text)"
            )
        return
    few = name == PROMOTION_TEXT and counts["documents_out"] < FEWEST_GROUPS
    if pairs >= LEAST_PAIRS and not few:
        return
    remedy = "add documents" if has_dev or not cut else "add documents, or name data.files.text_dev"
    if cut and has_dev:
        # A user who named one book may not expect that it is divided.
        remedy += "; data.promotion_share keeps some of them for promotion, and a book's chapters can be files of their own"
    needs = f"{FEWEST_GROUPS} documents" if few else f"{LEAST_PAIRS} pairs, among which the next sentence is sought"
    raise UserError(
        f"{counts['file']}: {'its part' if cut else 'the set'} {name} has {counts['documents_out']} documents with {pairs} pairs "
        f"of neighbouring sentences; it needs {needs}: {remedy}"
    )
