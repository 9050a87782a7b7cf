"""`gausscse transfer MODEL TASK ...`: what a linear classifier learns from a model's embeddings."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from pipeline.families.text.means import means_of
from pipeline.utils.errors import UserError
from pipeline.utils.parser import Parser

_SEEDS = 2**32


def main(arguments: Sequence[str]) -> None:
    """Encode the texts of each task, fit the classifiers and print a row of the table."""
    parser = Parser(
        prog="gausscse transfer",
        description="Accuracy of linear classifiers on the frozen embeddings of a model (the means of its Gaussians), after "
        "SentEval. A task is a file (Parquet, csv, jsonl) with columns text, or sentence1 and sentence2; label; and, if it is "
        "fixed, split (train, dev, test). Without one, ten folds.",
    )
    parser.add_argument("model", metavar="MODEL", help="models:/NAME@ALIAS, models:/NAME/VERSION or a model's folder")
    parser.add_argument("tasks", nargs="+", type=Path, metavar="TASK", help="a file")
    parser.add_argument(
        "--search", action="store_true", help="search the regression's C, as SentEval does; slower. Otherwise C is 1"
    )
    parser.add_argument("--seed", type=int, help="of the folds; default: SentEval's, as in the stages")
    parser.add_argument(
        "--threads", type=int, default=os.cpu_count() or 1, help="fits at the same time; default: a fit for each core"
    )
    options = parser.parse_args(arguments)
    if options.threads < 1:
        raise UserError(f"--threads is {options.threads}: at least 1 is needed")
    if options.seed is not None and not 0 <= options.seed < _SEEDS:
        raise UserError(f"--seed is {options.seed}: it must be from 0 to {_SEEDS - 1}")
    from pipeline.families.text.tasks import read_task
    from pipeline.families.text.transfer import FOLD_SEED, check, features_of, transfer
    from pipeline.models.encoder import GaussianEncoder
    from pipeline.registry import encoder_folder

    # A mistake in the last file shows before hours of work on the first.
    tasks = [read_task(path) for path in options.tasks]
    for number, task in enumerate(tasks):
        check(task, search=options.search)
        if task.name in (other.name for other in tasks[:number]):
            raise UserError(f"{options.tasks[number]}: a second task with the name {task.name}; rename one of the files")
    with encoder_folder(options.model) as folder:
        encoder = GaussianEncoder.from_pretrained(folder)

    print("task\trows\tlogistic\tmean classifier\tmajority")
    for task in tasks:
        result = transfer(
            task,
            features_of(task, lambda texts: means_of(encoder, texts)),
            search=options.search,
            seed=FOLD_SEED if options.seed is None else options.seed,
            threads=options.threads,
        )
        shares = (f"{share:.1f}" for share in (result.logistic, result.mean_classifier, result.majority))
        print("\t".join((task.name, str(result.rows), *shares)), flush=True)
