"""Running text of stage prepare: documents → sets of sentences in order, with counts of what was dropped and what repeats.

A document is known by a hash of its sentences. Transfer tasks are written as they are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.config.data_params import DataParams, TaskSpec, TextSpec
from pipeline.config.params import EvaluateParams
from pipeline.data import schema
from pipeline.data.generated.premises import Split
from pipeline.data.readers import GENERATED
from pipeline.data.readers.opening import resolve
from pipeline.data.scratch import database
from pipeline.data.split import FEWEST_GROUPS
from pipeline.data.table_io import ParquetFile
from pipeline.families import division
from pipeline.families.division import Source
from pipeline.families.prepare import Report, dropped
from pipeline.families.text.documents import Document, read_documents
from pipeline.families.text.generated import generate_documents
from pipeline.families.text.running_text import AMONG, IN_DOCUMENTS
from pipeline.families.text.tasks import Task, read_task
from pipeline.families.text.transfer import check
from pipeline.storage.exchange import Spread
from pipeline.utils.errors import UserError

MOST_BOILERPLATE = 5
"""Percent of the sentences of a set; more are warned of."""
LEAST_FOR_BOILERPLATE = 100
"""Documents. Books have so many sentences that short ones occur in several of them."""

# Rows of a row group. All sets are written at once, and each holds one group in memory.
_GROUP = 16_384
# Sentences that the database groups at a time, and its memory: both fixed, so that more text takes no more memory.
_GROUPED, _MEMORY, _THREADS = 400_000, "20MB", 1
_COUNTS = """
    WITH once AS (SELECT k, place, document, count(*) AS n FROM sentences WHERE k BETWEEN $first AND $last GROUP BY ALL),
    grouped AS (SELECT k, place, sum(n) AS n, count(*) AS documents FROM once GROUP BY ALL),
    marked AS (SELECT *, bool_or(place = $train) OVER (PARTITION BY k) AS trained FROM grouped)
    SELECT place, sum(n), sum(n - 1), sum(if(documents >= $boilerplate, n, 0)), sum(if(trained, n, 0)) FROM marked GROUP BY place
"""


def prepare(data: DataParams, work: Path, evaluate: EvaluateParams | None, spread: Spread | None = None) -> Report:
    """Write the sets of running text and the transfer tasks into `work`; returns text and tasks.

    Args:
        evaluate: how tasks are checked (`transfer.check`); None: they are not.

    Raises:
        UserError: an input is wrong, or a set has too little text.
    """
    text = _prepare_text(data, work, work.with_name("scratch-text"))
    tasks: Report = {}
    for name, spec, task in _tasks(data):
        if evaluate is not None:
            check(task, search=evaluate.transfer_search)
        _write_task(task, work / "tests" / f"{name}{schema.TASK_SUFFIX}.parquet")
        tasks[name] = {"file": spec.path, "rows": len(task.label), "classes": list(task.classes)}
    return {"text": text, "tasks": tasks}


def profile(prepared: Path, report: Report) -> Report:
    """The counts again."""
    return report


def contents(data: DataParams) -> Iterator[Iterable[Any]]:
    """The first document of each set, and the tasks."""
    for source in _sources(data).values():
        yield islice(source.rows(), 1)
    yield _tasks(data)


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


def _sources(data: DataParams) -> dict[str, Source]:
    def generated(split: Split, number: int) -> Source:
        return Source(GENERATED, lambda: (Document(GENERATED, one) for one in generate_documents(split, number, data.seed)))

    def files(specs: Sequence[TextSpec]) -> Source:
        def read() -> Iterator[Document]:
            for spec in specs:
                path = resolve(Path(data.root), spec.path)
                yield from read_documents([path], text=spec.text, document=spec.document, form=spec)

        return Source(", ".join(spec.path for spec in specs), read)

    named = data.files.text, data.files.text_dev, data.files.text_tests
    return division.sources_of(data, "text", data.generated.documents, named, generated, files)


def _tasks(data: DataParams) -> Iterator[tuple[str, TaskSpec, Task]]:
    for name, spec in sorted(data.files.tasks.items()) if data.source == "files" else ():
        yield name, spec, read_task(resolve(Path(data.root), spec.path), spec)


def _prepare_text(data: DataParams, work: Path, scratch: Path) -> dict[str, Any]:
    """Write each set of running text; returns set → counts, with the two development parts; empty without sources.

    Training text goes to train/documents.parquet, the others to dev/, promotion/ and tests/ as SET.text.parquet. Documents of one
    sentence are dropped, because nothing is before or after it. Of training documents, those that repeat an earlier one or one of
    another set are dropped, too. A dropped document counts in the set of its source.

    Args:
        work: folder of the stage's outputs.
        scratch: a new folder for a copy of the text and the database; the caller removes it.
    """
    if not (sources := _sources(data)):
        return {}
    scratch.mkdir()
    given, text = [*sources], scratch / "documents.parquet"
    part, size, hashes = _enter(sources, text)
    trained = np.array([name == division.TRAIN for name in given])[part]
    component = np.unique(hashes[:, 0], return_inverse=True)[1]
    draws = hashes[:, 2] / 2.0**64, hashes[:, 3] / 2.0**64
    names, place = division.places(
        given, "text", part, hashes[:, 0], component, draws, data.promotion_share, left_out=size < 2, repeatable=trained
    )
    paths = [division.set_file(work, name, "documents", schema.TEXT_SUFFIX) for name in names]
    division.write_sets(paths, schema.DOCUMENTS, division.placed(text, place), _GROUP)
    counts: dict[str, Any] = {}
    for k, (name, numbers) in enumerate(zip(names, _sentence_counts(scratch, paths, given), strict=True)):
        # The development parts have the name of the text they are cut from.
        source = sources.get(name) or sources.get(schema.DEV_TEXT) or sources[division.TRAIN]
        kept = int((place == k).sum())
        reasons = {"single_sentence": division.LEFT_OUT, "duplicate": division.DUPLICATE, "leaked": division.LEAKED}
        lost = {reason: int(((place == code) & (part == k)).sum()) for reason, code in reasons.items()}
        counts[name] = {"file": source.name, "documents_in": kept + sum(lost.values()), "documents_out": kept, "dropped": lost}
        counts[name] |= dict(zip(("sentences", "repeated_sentences", "boilerplate_sentences"), numbers, strict=False))
        if name != division.TRAIN:
            counts[name]["sentences_in_train"] = numbers[3]
    for name in names:
        _check(name, counts, schema.DEV_TEXT in sources)
    return counts


def _enter(sources: Mapping[str, Source], text: Path) -> tuple[NDArray[np.int16], NDArray[np.int64], NDArray[np.uint64]]:
    """Write the sentences of all documents; returns, for n documents, (n,) sets, (n,) numbers of sentences and (n, 4) hashes."""
    parts: list[int] = []
    sizes: list[int] = []
    digests = bytearray()

    def rows() -> Iterator[tuple[int, int, str, str]]:
        for part, source in enumerate(sources.values()):
            for document in source.rows():
                digests.extend(hashlib.sha256("\n".join(document.sentences).encode("utf-8", "surrogatepass")).digest())
                parts.append(part)
                sizes.append(len(document.sentences))
                for position, sentence in enumerate(document.sentences):
                    yield len(parts) - 1, position, sentence, document.name

    division.write_scratch(text, schema.DOCUMENTS, rows())
    return np.array(parts, np.int16), np.array(sizes, np.int64), np.frombuffer(digests, ">u8").astype(np.uint64).reshape(-1, 4)


def _sentence_counts(scratch: Path, paths: Sequence[Path], given: Sequence[str]) -> list[list[int]]:
    """Numbers of sentences of each set: all, repeats, those in `IN_DOCUMENTS` documents or more, those in training text, too.

    A sentence is known by 64 bits of its hash.
    """
    totals = np.zeros((len(paths), 4), np.int64)
    with database(scratch / "sentences", _MEMORY, _THREADS) as connection:
        connection.execute("CREATE TABLE sentences (place SMALLINT, document INTEGER, k UBIGINT)")
        for place, path in enumerate(paths):
            select = f"SELECT {place}, document, md5_number_lower(sentence) FROM read_parquet($path)"
            connection.execute(f"INSERT INTO sentences {select}", {"path": str(path)})
        number = connection.sql("SELECT count(*) FROM sentences").fetchall()[0][0]
        pieces = 1 + number // _GROUPED
        for piece in range(pieces):
            first, end = (part * 2**64 // pieces for part in (piece, piece + 1))
            train = given.index(division.TRAIN) if division.TRAIN in given else -1
            asked = {"first": first, "last": end - 1, "train": train, "boilerplate": IN_DOCUMENTS}
            for place, *numbers in connection.execute(_COUNTS, asked).fetchall():
                totals[place] += np.array(numbers, np.int64)
    return totals.tolist()


def _check(name: str, counts: Mapping[str, Any], has_dev: bool) -> None:
    own = counts[name]
    documents, pairs = own["documents_out"], own["sentences"] - own["documents_out"]
    cut = name in (schema.DEV_TEXT, schema.PROMOTION_TEXT)
    more = "add documents" if has_dev or not (cut or name == division.TRAIN) else "add documents, or name data.files.text_dev"
    if name == division.TRAIN:
        if not documents:
            drawn = 0 if has_dev else sum(counts[part]["documents_out"] for part in (schema.DEV_TEXT, schema.PROMOTION_TEXT))
            why = dropped(own["dropped"] | {"drawn_for_development": drawn}, "there is none")
            raise UserError(
                f"{own['file']}: no document is left to train on ({why}): {more}; a document needs two sentences in a row. A "
                "table with a row for each sentence needs document: (data.files.text)"
            )
        return
    few = name == schema.PROMOTION_TEXT and documents < FEWEST_GROUPS
    if pairs >= AMONG and not few:
        return
    if cut and has_dev:
        # A user who named one book may not expect that it is divided.
        more += "; data.promotion_share keeps some of them for promotion, and a book's chapters can be files of their own"
    needs = f"{FEWEST_GROUPS} documents" if few else f"{AMONG} pairs, among which the next sentence is sought"
    raise UserError(
        f"{own['file']}: {'its part' if cut else 'the set'} {name} has {documents} documents with {pairs} pairs of neighbouring "
        f"sentences; it needs {needs}: {more}"
    )


def _write_task(task: Task, path: Path) -> None:
    texts = schema.TASK_TEXTS[len(task.texts) - 1]
    part = np.full(len(task.label), schema.NO_PART) if task.part is None else task.part
    kinds = pa.schema([*((column, pa.string()) for column in texts), *schema.TASK])
    columns = [*task.texts, [task.classes[k] for k in task.label], task.label, part]
    with ParquetFile(path, kinds) as file:
        file.write(pa.table(dict(zip(kinds.names, columns, strict=True)), schema=kinds))
