"""`gausscse search CORPUS SENTENCE`: finds sentences in an encoded corpus that entail a sentence, or are entailed by it; or those
that an operator makes of it.

CORPUS is a folder written by `gausscse encode`. For many searches, keep an `EntailmentIndex` in memory instead
(pipeline/inference/entailment_index.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pipeline.config.load import load_name
from pipeline.families.family import families, part
from pipeline.utils.errors import UserError, escaped
from pipeline.utils.logs import log
from pipeline.utils.parser import Parser, whole


def main(arguments: Sequence[str]) -> None:
    """Run the search that the command line asks for."""
    parser = Parser(
        prog="gausscse search", description="Find sentences in an encoded corpus that entail a sentence, or are entailed by it."
    )
    parser.add_argument("corpus", help="a folder written by gausscse encode")
    parser.add_argument("sentence")
    parser.add_argument(
        "--way",
        choices=["entails", "entailed"],
        default="entailed",
        help="entails: sentences that entail it; entailed (default): sentences that it entails",
    )
    parser.add_argument("-k", type=whole(1), default=10, help="number of results; default: 10")
    parser.add_argument("--min-sim", type=float, help="leave out results with a lower score")
    parser.add_argument(
        "--by",
        choices=["similarity", "relation", "cosine"],
        default="similarity",
        help="similarity (default): the exact nearest by KL; relation: the 100 nearest, ranked by the model's relation head; "
        "cosine: the nearest by the means, whatever entails what",
    )
    for family in (able := [family for family in families() if family.queries]):
        part(family, "queries").add(parser)
    parser.add_argument("--model", help="the model that encoded the corpus, as for gausscse encode; default: the champion")
    options = parser.parse_args(arguments)
    if options.min_sim is not None and not math.isfinite(options.min_sim):
        raise UserError(f"--min-sim: got {options.min_sim}; write a finite number")
    import torch

    from pipeline.gaussian.distribution import Gaussian
    from pipeline.inference.corpus import engine_of
    from pipeline.inference.entailment_index import Searchable
    from pipeline.registry.loading import load

    encoder = load(options.model or f"models:/{load_name()}@champion", engine=engine_of(options.corpus))
    if encoder.note:
        log.warning(encoder.note)
    operated = next(filter(None, (part(family, "queries").asked(options) for family in able)), None)
    if operated and options.by == "relation":
        raise UserError("--by relation: has no effect with an operator, which searches by cosine; leave one of the two out")
    by = "cosine" if operated else options.by
    if operated:
        means = encoder.operate(*operated)
        query = Gaussian(means, torch.zeros_like(means))
    else:
        query = encoder.encode([options.sentence])
    least = -math.inf if options.min_sim is None else options.min_sim
    corpus = Searchable.of(encoder, options.corpus, (options.way,), by)
    try:
        (results,) = corpus.search(query, options.way, options.k, least, by)
    except UserError as error:
        raise UserError(f"--by {by}: {error}") from None
    for result in results:
        row, score = result.pop("row"), result.pop("score")
        print(f"{score:.4f}  row {row}", *(escaped(str(value)) for value in result.values()), sep="  ")
