"""Running text that section `data` names: set → documents."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pipeline.config.data_params import DataParams, TextSpec
from pipeline.data.generated.premises import Split
from pipeline.data.readers import GENERATED
from pipeline.data.readers.opening import resolve
from pipeline.families.prepare import generated_sets, named_sets
from pipeline.families.text.documents import Document, read_documents
from pipeline.families.text.generated import generate_documents


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSource:
    """A set of documents."""

    name: str
    """In messages."""
    documents: Callable[[], Iterable[Document]]


def text_sources(data: DataParams) -> dict[str, TextSource]:
    """The sets of running text that section `data` names, training first: set → documents; empty if it names none."""
    files = data.files
    if data.source == "generated":
        return generated_sets("text", data.generated.documents, partial(_generated, data.seed))
    if data.source == "files":
        return named_sets("text", files.text, files.text_dev, files.text_tests, partial(_files, Path(data.root)))
    return {}


def _generated(seed: int, split: Split, documents: int) -> TextSource:
    def read() -> Iterator[Document]:
        for sentences in generate_documents(split, documents, seed):
            yield Document(GENERATED, sentences)

    return TextSource(name=GENERATED, documents=read)


def _files(root: Path, specs: Sequence[TextSpec]) -> TextSource:
    def read() -> Iterator[Document]:
        for spec in specs:
            yield from read_documents([resolve(root, spec.path)], text=spec.text, document=spec.document, form=spec)

    return TextSource(name=", ".join(spec.path for spec in specs), documents=read)
