"""`gausscse init FILE`: makes a project of a user's own file of pairs; `gausscse split FILE OUT` only divides it."""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import re
import shutil
import sys
import unicodedata
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import ValidationError

from pipeline.config.data_params import FileSpec
from pipeline.config.params import PARAMS_FILE
from pipeline.config.preset import apply_presets, composed
from pipeline.config.types import label_key
from pipeline.data.measure import is_english
from pipeline.data.readers import open_pairs
from pipeline.data.readers.guess import NO, Understood, understood
from pipeline.data.schema import ENTAILMENT, LABELS, NO_LABEL, RawRows
from pipeline.utils.atomic_io import refuse_taken, write_directory, write_text
from pipeline.utils.errors import UserError, escaped
from pipeline.utils.logs import log
from pipeline.utils.parser import Parser

_PARTS = ("train", "dev", "test")
_WRITTEN = pa.schema([(name, pa.string()) for name in ("premise", "hypothesis", "label", "entailment_ba")])
# Premises that the development and the test set get, about, where there are enough; the most of all that one of them takes.
_PREMISES, _SHARE, _MOST_SHARE = 80, 0.1, 0.25
# Sentences whose tokens are counted.
_SAMPLE = 20_000
# Training steps of a batch of 32 triplets, and examples that the relation head sees, at least.
_STEPS, _EXAMPLES, _BATCH = 300, 200_000, 32
_SHOWN = 5
# Percent, as in stage tokenize.
_MOST_UNKNOWN = 1.0


def main(arguments: Sequence[str]) -> None:
    """Write own/NAME, presets/NAME.yaml and params.yaml for the file that the command line names."""
    parser = _parser("init", "Make a project of your own file of pairs: divide it, and write a preset and params.yaml.")
    parser.add_argument("--name", help="of the data, the preset and the model; default: from the file's name")
    parser.add_argument("--recipe", default="recommended", help="the preset that says how to train; default: recommended")
    options = parser.parse_args(arguments)
    file = Path(options.file)
    name = options.name or re.sub(r"[^a-z0-9]+", "-", file.name.partition(".")[0].lower()).strip("-") or "own"
    if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
        raise UserError(f"--name {name!r}: write letters, digits, - and _")
    folder, preset = Path("own") / name, Path("presets") / f"{name}.yaml"
    if preset.exists():
        raise UserError(f"{preset}: already exists; choose another --name, or remove {preset} and {folder}")
    refuse_taken(folder)
    model = composed([options.recipe])[2].model
    read = _shown(file, options)
    counts = divide(open_pairs(file.parent, read.spec), folder)
    try:
        *longest, unknown = _tokens(folder, model)
        write_text(preset, _preset(name, options.recipe, folder, counts["train"], longest))
        changes = apply_presets([options.recipe, name])
    except BaseException:
        preset.unlink(missing_ok=True)
        shutil.rmtree(folder)
        raise
    log.info(f"{PARAMS_FILE}: {len(changes)} keys changed, by the presets {options.recipe} and {name}; now run `make repro`")
    if unknown > _MOST_UNKNOWN:
        log.warning(
            f"{unknown:.1f} % of the tokens are unknown to {model.backbone}; first run "
            f"`gausscse preset {options.recipe} multilingual {name}`, or name a model.backbone that knows the language"
        )


def split(arguments: Sequence[str]) -> None:
    """Divide a file into three sets."""
    parser = _parser("split", "Divide a file of pairs into train, dev and test, so that no premise is in two of them.")
    parser.add_argument("out", help="a new folder")
    options = parser.parse_args(arguments)
    out = Path(options.out)
    refuse_taken(out)
    divide(open_pairs(Path(options.file).parent, _shown(Path(options.file), options).spec), out)


def _parser(command: str, description: str) -> Parser:
    parser = Parser(prog=f"gausscse {command}", description=description)
    parser.add_argument("file", help="csv, tab-separated, jsonl or Parquet")
    for role in ("premise", "hypothesis", "label", "contradiction"):
        parser.add_argument(f"--{role}", metavar="COLUMN", help=f"column of the {role}; default: guessed")
    parser.add_argument("--all", choices=LABELS, help="the label of every row, for a file without labels")
    parser.add_argument("--labels", type=_meanings, default={}, metavar="NAME=MEANING,...", help="what label names mean")
    parser.add_argument("--separator", help="the character between two columns; default: the most frequent one")
    parser.add_argument("--quotes", choices=["csv", "none"], help="whether quotes enclose fields; default: as the file looks")
    parser.add_argument("--yes", action="store_true", help='take what is guessed; a class such as "no" of two is then neutral')
    return parser


def _meanings(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in text.split(","):
        name, _, meaning = part.rpartition("=")
        if not name or meaning not in (*LABELS, "none"):
            raise argparse.ArgumentTypeError(f"{part!r} is not NAME=MEANING with a meaning of {', '.join(LABELS)} or none")
        found[name] = meaning
    return found


def _shown(file: Path, options: argparse.Namespace) -> Understood:
    """How the file is read, shown; asked and confirmed where a person is there."""
    person = sys.stdin.isatty() and not options.yes

    def ask(label: str, about: str) -> str | None:
        names: tuple[str, ...] = ("entailment", "neutral", "contradiction", "none")
        while person:
            answer = _answer(f"What does {label!r} mean ({about})? [{'/'.join(names)}] ")
            if len(found := [one for one in names if answer and one.startswith(answer)]) == 1:
                return found[0]
        return "neutral" if options.yes and label_key(label) in NO else None

    keys = ("premise", "hypothesis", "label", "contradiction", "separator", "quotes", "labels")
    given = {key: getattr(options, key) for key in keys}
    if given["separator"] in ("\\t", "tab"):
        given["separator"] = "\t"
    try:
        spec = FileSpec(path=file.name, fixed_label=options.all, **given)
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(
            f"--{first['loc'][0] if first['loc'] else 'label'}: {first['msg'].removeprefix('Value error, ')}"
        ) from None
    read = understood(file.parent, spec, ask)
    spec = read.spec
    columns = f"premise: {spec.premise}, hypothesis: {spec.hypothesis}, label: {spec.label or spec.fixed_label or 'entailment'}"
    print(escaped(f"{file}: {columns}"))
    for label, (meaning, number) in read.labels.items():
        print(f"  label {label!r}: {meaning}, {number:,} rows")
    batch = next(iter(open_pairs(file.parent, spec)), None)
    for row in batch.slice(0, _SHOWN).to_pylist() if batch is not None else ():
        label = "no label" if row["label"] == NO_LABEL else LABELS[row["label"]]
        print(f"  {label}: {row['premise'][:60]!r} → {row['hypothesis'][:60]!r}")
    if person and _answer("Is this right? [y/n] ") not in ("y", "yes"):
        raise UserError("nothing was written; say what is meant with the options (--help lists them)")
    return read


def _answer(question: str) -> str:
    try:
        return input(question).strip().lower()
    except EOFError:
        raise UserError("nothing was written: the questions were not answered; --help lists the options that do") from None


def divide(rows: RawRows, out: Path) -> dict[str, Counter[int]]:
    """Write train.parquet, dev.parquet and test.parquet; all pairs of a premise are in one of them, which its hash decides.

    From 800 premises on, further rows move none to another set: with fewer, dev and test get larger shares.

    Returns:
        set → label code → number of rows.

    Raises:
        UserError: there are too few premises for three sets.
    """
    places = [np.array([_place(text) for text in batch["premise"].to_pylist()]) for batch in rows]
    premises = len(np.unique(np.concatenate(places))) if places else 0
    share = min(_MOST_SHARE, max(_SHARE, _PREMISES / max(premises, 1)))
    counts = {name: Counter[int]() for name in _PARTS}
    with write_directory(out) as folder:
        with ExitStack() as stack:
            files = {name: stack.enter_context(pq.ParquetWriter(folder / f"{name}.parquet", _WRITTEN)) for name in _PARTS}
            for batch, place in zip(rows, places, strict=True):
                part = np.select([place < share, place < 2 * share], [2, 1], 0)
                labels = [_names(batch[column]) for column in ("label", "reverse_label")]
                table = pa.table([batch["premise"], batch["hypothesis"], *labels], schema=_WRITTEN)
                for number, name in enumerate(_PARTS):
                    files[name].write_table(table.filter(pa.array(part == number)))
                    counts[name].update(batch["label"].to_numpy()[part == number].tolist())
        for name, of in counts.items():
            if not of[ENTAILMENT] or of[ENTAILMENT] == of.total() - of[NO_LABEL]:
                which = "only" if of[ENTAILMENT] else "no"
                raise UserError(
                    f"{rows.name}: of its {premises:,} premises, set {name} would get {which} entailments; every set needs these "
                    "and others: add pairs of other premises, or check what the labels mean"
                )
    for name, of in counts.items():
        words = ", ".join(f"{LABELS[code] if code >= 0 else 'no label'} {of[code]:,}" for code in sorted(of))
        log.info(f"{out / f'{name}.parquet'}: {of.total():,} rows ({words})")
    return counts


def _place(premise: str) -> float:
    """A number in [0, 1) that follows from the text, and does not depend on the one by which a promotion part is chosen."""
    # As in the rules of leaks, neither the normal form nor format characters make another text.
    text = "".join(one for one in unicodedata.normalize("NFC", premise) if unicodedata.category(one) != "Cf")
    text = " ".join(text.split())
    return int.from_bytes(hashlib.sha256(f"split {text}".encode()).digest()[:8], "big") / 2**64


def _names(codes: pa.Array) -> pa.Array:
    return pa.array([None if code == NO_LABEL else LABELS[code] for code in codes.to_pylist()], pa.string())


def _tokens(folder: Path, model: Any) -> tuple[int, float, float]:
    """`model.max_length` for the training sentences; in percent, the share of them that it cuts, and of unknown tokens."""
    from pipeline.models.backbone import load_tokenizer, resolve

    tokenizer: Any = load_tokenizer(resolve(model.backbone, model.revision))
    texts = _sample(folder)
    read: list[list[int]] = tokenizer(texts, verbose=False)["input_ids"]
    lengths = np.array([len(ids) for ids in read])
    unknown = sum(ids.count(tokenizer.unk_token_id) for ids in read)
    longest = 8 * math.ceil(float(np.quantile(lengths, 0.998, method="higher")) / 8)
    longest = max(16, min(longest, tokenizer.model_max_length))
    return longest, 100 * float((lengths > longest).mean()), 100 * unknown / float(lengths.sum())


def _sample(folder: Path) -> list[str]:
    """Sentences of the training set, drawn at random."""
    table = pq.read_table(folder / "train.parquet", columns=["premise", "hypothesis"])
    rows = np.sort(np.random.default_rng(0).permutation(table.num_rows)[: _SAMPLE // 2])
    return [text for column in table.take(rows).columns for text in column.to_pylist()]


def _preset(name: str, recipe: str, folder: Path, train: Counter[int], longest: Sequence[float]) -> str:
    # Entailments whose premise has a contradiction.
    pairs = pq.read_table(folder / "train.parquet", columns=["premise", "label"])
    of_label = [pairs.filter(pc.equal(pairs["label"], label))["premise"] for label in ("entailment", "contradiction")]
    complete = pc.sum(pc.is_in(of_label[0], pc.unique(of_label[1]))).as_py() or 0
    english = is_english(_sample(folder))
    minimal = min(60_000, train.total()) if english else 0
    epochs = min(10, math.ceil(_STEPS * _BATCH / train[ENTAILMENT]))
    steps = max(1, epochs * train[ENTAILMENT] // _BATCH)
    cut = f" ({longest[1]:.1f} % of the sentences are cut)" if longest[1] else ""
    return f"""\
# Written by `gausscse init`; yours to change. `gausscse preset {recipe} {name}` puts it into params.yaml.
data:
  source: files
  root: {json.dumps(str(folder))}
  # Pairs made by changing a word of an English sentence; none for other languages.
  minimal_pairs: {minimal}
  files:
    train:
      - {{path: train.parquet}}
    dev: {{path: dev.parquet}}
    tests:
      {json.dumps(name + "_test")}: {{path: test.parquet}}
    sts: {{}}
model:
  # Tokens{cut}.
  max_length: {longest[0]}
train:
  # with-contradiction leaves out the entailments of premises without a contradiction.
  triplets: {"with-contradiction" if complete > train[ENTAILMENT] / 2 else "all"}
  epochs: {epochs}
  eval_every: {max(1, min(250, steps // 4))}
relation:
  epochs: {min(20, max(3, math.ceil(_EXAMPLES / (train.total() + minimal))))}
register:
  name: {json.dumps(name)}
"""
