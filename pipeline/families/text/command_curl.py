"""`gausscse curl MODEL TEXT ...`: the next sentence among others, and CURL's bound over block sizes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from pipeline.utils.parser import MODEL, Parser, above_zero, whole


def main(arguments: Sequence[str]) -> None:
    """Embed the text, print the shares and a row for each block size."""
    parser = Parser(
        prog="gausscse curl",
        description="How a model's embeddings (the means of its Gaussians) order running text. Prints how often the next "
        "sentence is the most similar of 64; and, with documents as classes, the unsupervised block loss, the bound that it "
        "gives (Arora et al. 2019) and the supervised loss, which does not exceed it. TEXT is a text file (one document), a "
        "folder of them, or a table (Parquet, csv, jsonl) with a document in every row.",
    )
    parser.add_argument("model", metavar="MODEL", help=MODEL)
    parser.add_argument("texts", nargs="+", type=Path, metavar="TEXT")
    parser.add_argument("--column", default="text", help="column of a table with the text; default: text")
    parser.add_argument("--document", help="column of a table whose value makes consecutive rows one document")
    parser.add_argument("--blocks", type=whole(1), nargs="+", default=[1, 2, 5, 10], help="block sizes; default: 1 2 5 10")
    parser.add_argument("--most", type=whole(2), help="sentences of each document, the first; default: all")
    parser.add_argument("--norm", type=above_zero, default=20.0, help="squared norm to scale each embedding to; default: 20")
    parser.add_argument("--draws", type=whole(2), default=100_000, help="draws for each unsupervised loss; default: 100,000")
    parser.add_argument("--seed", type=whole(0), default=1, help="of the draws; default: 1")
    options = parser.parse_args(arguments)
    from pipeline.families.text import running_text
    from pipeline.families.text.documents import read_documents
    from pipeline.registry.loading import load

    # Read before the model is fetched: a mistake in a file shows at once.
    documents = list(read_documents(options.texts, text=options.column, document=options.document))
    encoder = load(options.model)
    encode = partial(running_text.means_of, encoder, kind="sentences")
    text, among = running_text.embedded(documents, encode, options.most), running_text.AMONG
    print(f"{len(text.sizes):,} documents, {len(text.document):,} sentences")
    right = running_text.next_sentence(running_text.neighbours(text.document), running_text.by_cosine(text.features))
    if len(right):
        print(f"next sentence among {among}: {100 * right.mean():.1f} % of {len(right):,}; chance {100 / among:.1f} %")
    else:
        print(f"next sentence among {among}: not measured; the text has fewer than {among} pairs of neighbours")
    print("block\ttau\tsupervised\tbound\tunsupervised\t±\tfollowing: tau\tbound\tunsupervised\t±")
    scaled = running_text.Text(running_text.scaled(text.features, options.norm), text.document)
    for bound in running_text.curl(scaled, options.blocks, options.draws, options.seed):
        drawn, following = bound.drawn, bound.following
        numbers = (drawn.collision, bound.supervised, drawn.bound, drawn.loss, drawn.error)
        numbers += (following.collision, following.bound, following.loss, following.error)
        print("\t".join((str(bound.block), *(f"{number:.4f}" for number in numbers))), flush=True)
