"""`gausscse transfer MODEL TASK ...`: what a linear classifier learns from a model's embeddings."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from pipeline.cli.parser import Parser
from pipeline.utils.errors import UserError
from pipeline.utils.logs import log


def main(arguments: Sequence[str]) -> None:
    """Encode the texts of each task, fit the classifiers and print a table."""
    parser = Parser(
        prog="gausscse transfer",
        description="Accuracy of linear classifiers on the frozen embeddings of a model (the means of its Gaussians), by "
        "SentEval's protocol. A task is a file (Parquet, csv, jsonl) with columns text, or sentence1 and sentence2; label; and "
        "split (train, dev, test) if it is fixed. Without one, ten folds.",
    )
    parser.add_argument("model", metavar="MODEL", help="models:/NAME@ALIAS, models:/NAME/VERSION or a model's folder")
    parser.add_argument("tasks", nargs="+", type=Path, metavar="TASK", help="a file")
    parser.add_argument("--search", action="store_true", help="search the classifier's C, as in SentEval; slower")
    parser.add_argument("--seed", type=int, default=1, help="of the folds; default: 1")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="default: one for each core")
    options = parser.parse_args(arguments)
    if options.threads < 1:
        raise UserError(f"--threads is {options.threads}: at least 1 is needed")
    from pipeline.data.readers.tasks import read_task
    from pipeline.evaluation.transfer import features_of, transfer
    from pipeline.models.encoder import GaussianEncoder
    from pipeline.registry import encoder_folder

    # A mistake in the last file shows before hours of work on the first.
    tasks = [read_task(path) for path in options.tasks]
    with encoder_folder(options.model) as folder:
        encoder = GaussianEncoder.from_pretrained(folder)
    rows: list[tuple[str, ...]] = [("task", "rows", "logistic", "mean classifier", "majority")]
    for task in tasks:
        log.info(f"{task.name}: encoding {sum(map(len, task.texts)):,} texts")
        features = features_of(task, lambda texts: encoder.encode_counted(texts)[0].mean.numpy())
        log.info(f"{task.name}: fitting classifiers")
        found = transfer(task, features, search=options.search, seed=options.seed, threads=options.threads)
        shares = (found.logistic, found.mean_classifier, found.majority)
        rows.append((task.name, str(found.rows), *(f"{share:.1f}" for share in shares)))
    print("\n".join("\t".join(row) for row in rows))
