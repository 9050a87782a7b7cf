"""Common corpora for training and testing: where to get them, where to put them, and what to write in params.yaml.

`gausscse corpora` prints this. It downloads nothing, because users have to read the terms of each corpus.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

FOLDER = Path("corpora")
"""The folder where the commands put the files. Any other folder works if data.root names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """One corpus."""

    name: str
    about: str
    """Its content, with the numbers of rows as train / development / test."""
    licence: str
    page: str
    get: tuple[str, ...]
    """Commands to run in `FOLDER`."""
    data: str
    """Text for the section data of params.yaml."""


SNLI = Corpus(
    name="SNLI 1.0",
    about="sentences about photographs; 550,152 / 10,000 / 10,000 pairs including those without a gold label ('-'); 95 MB packed",
    licence="CC BY-SA 4.0",
    page="https://nlp.stanford.edu/projects/snli/",
    get=(
        "curl -LO https://nlp.stanford.edu/projects/snli/snli_1.0.zip",
        "echo 'afb3d70a5af5d8de0d9d81e2637e0fb8c22d1235c2749d83125ca43dab0dbd3e  snli_1.0.zip' | sha256sum -c",
        "unzip snli_1.0.zip 'snli_1.0/*.jsonl'",
    ),
    data="""\
  source: files
  root: corpora
  files:
    train:
      - {path: snli_1.0/snli_1.0_train.jsonl}
    dev: {path: snli_1.0/snli_1.0_dev.jsonl}
    tests:
      snli_test: {path: snli_1.0/snli_1.0_test.jsonl}
    sts: {}
""",
)
MULTINLI = Corpus(
    name="MultiNLI 1.0",
    about="ten genres of written and spoken English; 392,702 pairs for training, 10,000 matched and 10,000 mismatched ones for "
    "development including those without a gold label; its test sets have no public labels; 227 MB packed",
    licence="OANC's own terms, and CC BY 3.0, CC BY-SA 3.0 and MIT for the parts of fiction; see the corpus's paper",
    page="https://cims.nyu.edu/~sbowman/multinli/",
    get=(
        "curl -LO https://cims.nyu.edu/~sbowman/multinli/multinli_1.0.zip",
        "echo '049f507b9e36b1fcb756cfd5aeb3b7a0cfcb84bf023793652987f7e7e0957822  multinli_1.0.zip' | sha256sum -c",
        "unzip multinli_1.0.zip 'multinli_1.0/*.jsonl'",
    ),
    data="""\
  source: files
  root: corpora
  files:
    train:
      - {path: snli_1.0/snli_1.0_train.jsonl}
      - {path: multinli_1.0/multinli_1.0_train.jsonl}
    dev: {path: snli_1.0/snli_1.0_dev.jsonl}
    tests:
      snli_test: {path: snli_1.0/snli_1.0_test.jsonl}
      mnli_matched: {path: multinli_1.0/multinli_1.0_dev_matched.jsonl}
      mnli_mismatched: {path: multinli_1.0/multinli_1.0_dev_mismatched.jsonl}
    sts: {}
""",
)
SICK = Corpus(
    name="SICK",
    about="simple sentences, the label of both directions and a score of relatedness; 4,439 / 495 / 4,906 pairs; 0.2 MB packed",
    licence="CC BY-NC-SA 3.0: not for commercial use",
    page="https://zenodo.org/records/2787612",
    get=(
        "curl -L -o SICK.zip https://zenodo.org/record/2787612/files/SICK.zip",
        "unzip SICK.zip SICK.txt -d SICK",
    ),
    data="""\
  source: files
  root: corpora
  files:
    train:
      - {path: snli_1.0/snli_1.0_train.jsonl}
    dev: {path: snli_1.0/snli_1.0_dev.jsonl}
    tests:
      sick_dev: {path: SICK/SICK.txt, where: {SemEval_set: TRIAL}}
      sick_test: {path: SICK/SICK.txt, where: {SemEval_set: TEST}}
    sts:
      sick_relatedness: {path: SICK/SICK.txt, where: {SemEval_set: TEST}}
""",
)
HUB = Corpus(
    name="SNLI and MultiNLI from the Hugging Face hub",
    about="the same rows as above, downloaded on the first run and kept in the hub's own cache; 20 MB and about 215 MB",
    licence="as above",
    page="https://huggingface.co/datasets/stanfordnlp/snli and https://huggingface.co/datasets/nyu-mll/multi_nli",
    get=(),
    data="""\
  source: hub
  hub:
    train:
      - {dataset: stanfordnlp/snli, split: train, revision: cdb5c3d5eed6ead6e5a341c8e56e669bb666725b}
      - {dataset: nyu-mll/multi_nli, split: train, revision: da70db2af9d09693783c3320c4249840212ee221}
    dev: {dataset: stanfordnlp/snli, split: validation, revision: cdb5c3d5eed6ead6e5a341c8e56e669bb666725b}
    tests:
      snli_test: {dataset: stanfordnlp/snli, split: test, revision: cdb5c3d5eed6ead6e5a341c8e56e669bb666725b}
      mnli_matched: {dataset: nyu-mll/multi_nli, split: validation_matched, revision: da70db2af9d09693783c3320c4249840212ee221}
""",
)
CORPORA = (SNLI, MULTINLI, SICK, HUB)


def described(corpus: Corpus) -> str:
    """A corpus as text: facts, commands, and the section data of params.yaml."""
    commands = [f"mkdir -p {FOLDER} && cd {FOLDER}", *corpus.get] if corpus.get else []
    facts = [f"  what: {corpus.about}", f"  licence: {corpus.licence}", f"  page: {corpus.page}"]
    how = ["  get it:", *(f"    {command}" for command in commands)] if commands else []
    keys = ["  params.yaml, section data:", *(f"  {line}" for line in corpus.data.splitlines())]
    return "\n".join([corpus.name, *facts, *how, *keys, ""])
