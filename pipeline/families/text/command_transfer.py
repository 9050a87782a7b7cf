"""`gausscse transfer MODEL TASK ...`: what a linear classifier learns from a model's embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipeline.utils.parser import MODEL, Parser, whole


def main(arguments: Sequence[str]) -> None:
    """Encode the texts of each task, fit the classifiers and print a row of the table."""
    parser = Parser(
        prog="gausscse transfer",
        description="Accuracy of linear classifiers on the frozen embeddings of a model (the means of its Gaussians), after "
        "SentEval. A task is a file (Parquet, csv, jsonl) with columns text, or sentence1 and sentence2; label; and, if it is "
        "fixed, split (train, dev, test). Without one, ten folds.",
    )
    parser.add_argument("model", metavar="MODEL", help=MODEL)
    parser.add_argument("tasks", nargs="+", type=Path, metavar="TASK", help="a file")
    parser.add_argument(
        "--search", action="store_true", help="search the regression's C, as SentEval does; slower. Otherwise C is 1"
    )
    parser.add_argument("--seed", type=whole(0), default=1111, help="of the folds; default: SentEval's, as in the stages")
    options = parser.parse_args(arguments)
    from pipeline.families.text.running_text import means_of
    from pipeline.families.text.tasks import read_task
    from pipeline.families.text.transfer import answers, check, joined
    from pipeline.registry.loading import load

    # A mistake in the last file shows before hours of work on the first.
    tasks = [read_task(path) for path in options.tasks]
    for task in tasks:
        check(task, search=options.search)
    encoder = load(options.model)
    print("task\trows\tlogistic\tmean classifier\tmajority")
    for task in tasks:
        features = joined(task.name, [means_of(encoder, texts, "texts") for texts in task.texts])
        found = answers(task.label, task.part, features, search=options.search, seed=options.seed)
        shares = (f"{100 * found[name].to_numpy().mean():.1f}" for name in ("logistic", "mean_classifier", "majority"))
        print("\t".join((task.name, str(len(found)), *shares)), flush=True)
