"""Section `data` of params.yaml: the sources of pairs, running text and operation rows, and how triplets are made from pairs."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from pipeline.config.messages import WrongKey
from pipeline.config.types import Commit, LabelMeanings, LabelName, Positive, Section, Seed, Text

# Names of the sets that are not test sets.
_TAKEN = ("train", "dev", "promotion", "dev_text", "promotion_text", "dev_operations", "promotion_operations")


class GeneratedParams(Section):
    """Number of rows of each split of the generated source."""

    train: Positive
    """Number of training pairs (source generated)."""
    dev: Positive
    """Number of development pairs."""
    test: Positive
    """Number of test pairs."""
    everyday_share: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the training and development pairs whose sentences are of everyday life and business, with hundreds of changed
    words and phrases; the others are of a small grammar of scenes. If it is not 0, there is a further test set, everyday_test."""
    documents: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Number of training documents of running text (objective quickthoughts); a tenth as many more are the development set, and
    as many again the test set. 0: no running text."""
    operations: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Number of training rows of sentence operations (objective intersent): fusion, difference, compression and reconstruction in
    turn, with exact answers. A tenth as many more are the development set, and as many again the test set. 0: none."""


class TableSpec(Section):
    """A file, and how its text is divided into fields if it is csv or tab-separated."""

    path: str
    """Relative to `data.root`."""
    separator: Annotated[str, Field(pattern=r"^[^\r\n\"]$")] | None = None
    """The character between two columns of a text file, such as ";". null: a comma or a tab, whichever the header has."""
    quotes: Literal["csv", "none"] | None = None
    """csv: a field may be in quotes ("), in which a quote is written twice. none: a quote is a character of the text. null: csv,
    but none for tab-separated files, where text that looks quoted is refused."""


NO_FORM = TableSpec(path="")
"""Says nothing of a text file's separator and quotes."""


class PairSpec(Section):
    """The columns of a set of pairs."""

    premise: str | None = None
    """Column of the premises."""
    hypothesis: str | None = None
    """Column of the hypotheses."""
    label: str | None = None
    """Column of the labels."""
    reverse_label: str | None = None
    """Column with the label of the pair read the other way round (SICK's entailment_BA); splits direction by one/two-way."""
    contradiction: str | None = None
    """Column of contradictions, for a file of triplets without labels (SimCSE's hard_neg): a row gives the pair of premise and
    hypothesis, an entailment, and the pair of premise and contradiction unless that is empty."""
    fixed_label: LabelName | None = None
    """The label of every row, for a file without a column of labels."""
    labels: LabelMeanings = {}
    """What the file's own label names mean; the three in any case, '' and '-' need no saying."""
    where: dict[str, str] = {}
    """Column: value; rows with another value do not belong to the set."""

    @model_validator(mode="after")
    def _one_source_of_labels(self) -> Self:
        for key in ("contradiction", "fixed_label"):
            others = [name for name in ("fixed_label", "label", "reverse_label", "labels") if name != key and getattr(self, name)]
            if getattr(self, key) and others:
                raise ValueError(f"{key} gives the labels of all rows; remove {' and '.join(others)}")
        return self


class FileSpec(PairSpec, TableSpec):
    """One file of pairs; where the columns are null, they are found by the known layouts."""


class StsSpec(TableSpec):
    """One file of sentence pairs with a graded similarity; columns as in `FileSpec`."""

    sentence1: str | None = None
    """Column of the first sentences."""
    sentence2: str | None = None
    """Column of the second ones."""
    score: str | None = None
    """Column of the scores, numbers."""
    where: dict[str, str] = {}
    """As in `FileSpec`."""


class TextSpec(TableSpec):
    """Running text: a text file, a folder of text files, or a table with a column of texts."""

    text: str = "text"
    """Column of a table that has the text."""
    document: str | None = None
    """Column whose value makes consecutive rows one document; null: every row is a document."""


class OperationSpec(TableSpec):
    """Rows for sentence operators: a table in one of the layouts that docs/data.md lists."""

    where: dict[str, str] = {}
    """As in `FileSpec`."""


class OperationTestSpec(OperationSpec):
    """A test set of rows for sentence operators."""

    share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Only this share of the components of rows, chosen by a hash. The file may then also be training data, because rows of a
    component that is in a test set are left out of training."""


class TaskSpec(TableSpec):
    """A transfer task: a table with the columns text, or sentence1 and sentence2; label; and split, if the task has one."""


class FilesParams(Section):
    """Files of the `files` source; paths are relative to `data.root`."""

    train: tuple[FileSpec, ...] = ()
    """Training files (source files), relative to root, plain or compressed with gzip or zstd. A file is {path: ...}. Its
    columns are found by the layouts that docs/data.md lists, or named: premise:, hypothesis:, label:, reverse_label: (the label
    of the pair in the other order). labels: {"0": entailment, ...} says what other label names mean (entailment | neutral |
    contradiction | none). For files without labels, contradiction: names a column of triplets, or fixed_label: entailment is the
    label of all rows. separator: ";" and quotes: csv | none say how a text file is written. where: {SemEval_set: TRAIN} takes the
    rows of one part. Paper: SNLI + MNLI. Released code: SimCSE's triplet file (275,601)."""
    dev: FileSpec | None = None
    """Development file; an entry as in `data.files.train`."""
    tests: dict[str, FileSpec] = {}
    """Test sets by name; an entry as in `data.files.train`. Paper: SNLI test and SICK test. Released code: MNLI's mismatched
    development set too."""
    sts: dict[str, StsSpec] = {}
    """Graded test sets by name; an entry has path:, sentence1:, sentence2:, score:, where:."""
    text: tuple[TextSpec, ...] = ()
    """Running text to train on (objective quickthoughts): {path: FILE OR FOLDER}. A text file (.txt, also compressed) is one
    document. In a table (Parquet, csv, jsonl), text: names the column of texts (text) and document: a column whose value makes
    consecutive rows one document. S2V and post: BookCorpus (68 million sentences)."""
    text_dev: TextSpec | None = None
    """Running text of the development set; an entry as in `data.files.text`. null: a tenth of the training documents, chosen by a
    hash of their text."""
    text_tests: dict[str, TextSpec] = {}
    """Test sets of running text by name, to predict the next sentence in; an entry as in `data.files.text`."""
    tasks: dict[str, TaskSpec] = {}
    """Transfer tasks by name: {path: FILE}, a table with the columns text, or sentence1 and sentence2; label; and split (train,
    dev, test), if the task has a fixed one."""
    operations: tuple[OperationSpec, ...] = ()
    """Rows of sentence operations to train on (objective intersent): {path: FILE}, a table with split sentences (complex, split),
    compressions (sentence, compression), paraphrases (sentence1, sentence2) or your own rows (operation, a, b, target); where:
    as in `data.files.train`. InterSent: 14.6 million rows of five corpora."""
    operations_dev: OperationSpec | None = None
    """Operation rows of the development set; an entry as in `data.files.operations`. null: a tenth of the training rows; rows
    that share a sentence, also through other rows, stay in one set."""
    operations_tests: dict[str, OperationTestSpec] = {}
    """Test sets of operation rows by name; an entry as in `data.files.operations`."""


class HubSpec(PairSpec):
    """One split of a data set of the Hugging Face hub, or of a folder of one under `data.root`; columns as in `FileSpec`. The
    names of a ClassLabel column are known."""

    dataset: str
    """Id of the hub, or a folder under `data.root`."""
    config: str | None = None
    """Configuration, where the data set has several."""
    split: str
    """For example train."""
    revision: Commit | None = None
    """Commit of the data set; required for one of the hub, null for a folder."""

    @property
    def name(self) -> str:
        """Its name in messages and counts."""
        return ":".join(part for part in (self.dataset, self.config, self.split) if part)


class HubParams(Section):
    """Data sets of the `hub` source."""

    train: tuple[HubSpec, ...] = ()
    """Training data sets (source hub): {dataset: stanfordnlp/snli, split: train, revision: <commit, 40 hex digits>}, with config:
    where the data set has several, and column names, labels and where as for files; or the folder of a data set under root,
    without a revision."""
    dev: HubSpec | None = None
    """Development data set; an entry as in `data.hub.train`."""
    tests: dict[str, HubSpec] = {}
    """Test sets by name; an entry as in `data.hub.train`."""


class DataParams(Section):
    """What is read and how triplets are made of it (stage prepare)."""

    source: Literal["generated", "files", "hub"]
    """generated: sentences from our own grammar, any number, nothing to download. files: your own files, in the formats of SNLI,
    MultiNLI and SICK, or Parquet, csv, tab-separated or jsonl (docs/data.md). hub: data sets of the Hugging Face hub."""
    root: Text
    """Folder (or file) with the raw input. DVC hashes it, so one changed byte runs prepare again. For generated: the lexicon
    itself."""
    seed: Seed
    """Seed of the generated sentences and of the minimal pairs."""
    unlabelled: Literal["drop", "non-entailment"]
    """Development and test rows without a gold label ('-' in SNLI). drop, or non-entailment: kept and counted as not entailed, as
    in the released code; the paper does not say. Training rows without a gold label are always dropped."""
    promotion_share: Annotated[float, Field(gt=0, lt=1)]
    """Share of the development set that only decides which registered model is promoted (docs/registry.md). A hash of the premise
    decides which pairs these are. Checkpoint, grid point, seed, threshold and recipe are chosen on the other pairs, which are the
    set `dev` everywhere. Paper and released code: one development set for everything, and no promotion."""
    minimal_pairs: Annotated[int, Field(ge=0, le=10**7)] = 0
    """Number of pairs that stage prepare makes of training sentences by changing one word or phrase, or two, so that the label
    follows from the change: antonyms, numbers, negation, wider words and others (docs/data.md). The relation head
    (model.relation_head) is fitted on them, too. 0: none."""
    generated: GeneratedParams
    files: FilesParams
    hub: HubParams = HubParams()

    @property
    def has_pairs(self) -> bool:
        """Whether there are labelled pairs to train and to choose models on."""
        return self.source != "files" or bool(self.files.train)

    @model_validator(mode="after")
    def _files_are_named(self) -> DataParams:
        if self.source == "generated":
            return self
        source, files = self.source, self.files if self.source == "files" else FilesParams()
        sets = self.files if source == "files" else self.hub
        if not sets.train and not files.text and not files.operations:
            raise WrongKey(f"{source}.train", [], f"lists nothing to train on; add at least one entry if source is {source}")
        if sets.train and sets.dev is None:
            raise WrongKey(f"{source}.dev", None, f"has no development set; name one if source is {source}")
        if not sets.train and (sets.dev is not None or sets.tests):
            raise WrongKey(f"{source}.train", [], "lists no pairs, but there are sets of pairs to score; name pairs to train on")
        for key, dev, listed in (("text", files.text_dev, files.text), ("operations", files.operations_dev, files.operations)):
            if dev is not None and not listed:
                raise WrongKey(f"files.{key}", [], f"lists nothing, but there is files.{key}_dev; name some to train on, too")
        seen: dict[str, str] = {}
        for kind in ("tests", "sts", "text_tests", "tasks", "operations_tests"):
            for name in getattr(sets if kind == "tests" else files, kind):
                if not name.replace("_", "").replace("-", "").isalnum() or name in _TAKEN:
                    raise ValueError(f"test set name {name!r} must be letters, digits, - and _, and none of {', '.join(_TAKEN)}")
                if name in seen:
                    raise ValueError(f"test set name {name!r} is in both files.{seen[name]} and files.{kind}; rename one")
                seen[name] = kind
        return self


def test_set_names(data: DataParams) -> tuple[str, ...]:
    """Names of the NLI test sets that stage prepare writes."""
    generated = ("generated_test", "everyday_test") if data.generated.everyday_share else ("generated_test",)
    return tuple({"generated": generated, "files": data.files.tests, "hub": data.hub.tests}[data.source])
