"""`gausscse search CORPUS SENTENCE`: finds sentences in an encoded corpus that entail a sentence, or are entailed by it; or those
that an operator makes of it.

CORPUS is a folder written by `gausscse encode`. For many searches, keep an `EntailmentIndex` in memory instead
(pipeline/inference/entailment_index.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pipeline.cluster.preflight import load_project
from pipeline.families.family import families, part
from pipeline.utils.errors import UserError, escaped
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
    params, _ = load_project()
    from pipeline.inference.corpus import model_of, read_gaussians
    from pipeline.inference.entailment_index import EntailmentIndex, nearest
    from pipeline.models.encoder import GaussianEncoder
    from pipeline.models.model_dir import encoder_digest
    from pipeline.registry import encoder_folder

    uri = options.model or f"models:/{params.register_.name}@champion"
    with encoder_folder(uri) as folder:
        if encoder_digest(folder) != model_of(options.corpus):
            raise UserError(f"{options.corpus}: was encoded by another model than {uri}; encode it again, or name that model")
        encoder = GaussianEncoder.from_pretrained(folder)
    corpus = read_gaussians(options.corpus, encoder.relation_head if options.by == "relation" else None)
    operated = next(filter(None, (part(family, "queries").asked(options) for family in able)), None)
    if operated and options.by == "relation":
        raise UserError("--by relation: has no effect with an operator, which searches by cosine; leave one of the two out")
    if options.by == "relation" and encoder.relation_head is None:
        raise UserError(f"{uri}: has no relation head to rank by; use --by similarity, or fit one with `gausscse relation`")
    if operated or options.by == "cosine":
        means = encoder.operate(*operated) if operated else encoder.encode([options.sentence]).mean
        rows, scores = nearest(corpus.gaussians.mean, means, options.k)
    elif encoder.score_kind == "cosine":
        raise UserError(
            f"{uri}: compares means by their cosine and has no variances, so it cannot say which sentence entails which; use "
            "--by cosine"
        )
    else:
        index = EntailmentIndex.build(corpus.gaussians, (options.way,))
        query = encoder.encode([options.sentence])
        if options.by == "relation":
            assert encoder.relation_head is not None
            rows, scores = index.ranked(query, options.way, encoder.relation_head, options.k)
        else:
            matches = index.search(query, options.way, options.k)
            rows, scores = matches.rows, matches.sims
    for row, score in zip(rows[0].tolist(), scores[0].tolist(), strict=True):
        if row >= 0 and (options.min_sim is None or score >= options.min_sim):
            kept = corpus.kept.slice(row, 1).to_pylist()[0]
            print(f"{score:.4f}  row {corpus.rows[row]}", *(escaped(str(value)) for value in kept.values()), sep="  ")
