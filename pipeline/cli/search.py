"""`gausscse search CORPUS SENTENCE`: finds sentences in an encoded corpus that entail a sentence, or are entailed by it.

CORPUS is a folder written by `gausscse encode`. For many searches, keep an `EntailmentIndex` in memory instead
(pipeline/inference/entailment_index.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.cli.parser import Parser
from pipeline.cluster.preflight import load_project
from pipeline.utils.errors import UserError, escaped


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
    parser.add_argument("-k", type=int, default=10, help="number of results; default: 10")
    parser.add_argument("--min-sim", type=float, help="leave out results with a lower similarity")
    parser.add_argument(
        "--by",
        choices=["similarity", "relation"],
        default="similarity",
        help="similarity (default): the exact nearest by KL; relation: the 100 nearest, ranked by the model's relation head",
    )
    parser.add_argument("--model", help="the model that encoded the corpus, as for gausscse encode; default: the champion")
    options = parser.parse_args(arguments)
    params, _ = load_project()
    from pipeline.inference.corpus import read_gaussians
    from pipeline.inference.entailment_index import EntailmentIndex
    from pipeline.models.encoder import GaussianEncoder
    from pipeline.models.model_dir import encoder_digest
    from pipeline.registry import encoder_folder

    uri = options.model or f"models:/{params.register_.name}@champion"
    corpus = read_gaussians(options.corpus)
    with encoder_folder(uri) as folder:
        if encoder_digest(folder) != corpus.model:
            raise UserError(f"{options.corpus}: was encoded by another model than {uri}; encode it again, or name that model")
        encoder = GaussianEncoder.from_pretrained(folder)
    if options.by == "relation" and options.min_sim is not None:
        raise UserError("--min-sim: has no effect with --by relation, which shows probabilities; leave one of the two out")
    if options.by == "relation" and encoder.relation_head is None:
        raise UserError(f"{uri}: has no relation head to rank by; use --by similarity, or fit one with `gausscse relation`")
    if encoder.score_kind == "cosine":
        raise UserError(
            f"{uri}: compares means by their cosine and has no variances, so it cannot say which sentence entails which"
        )
    index = EntailmentIndex.build(corpus.gaussians, (options.way,))
    query = encoder.encode([options.sentence])
    if options.by == "relation":
        assert encoder.relation_head is not None
        rows, scores = index.ranked(query, options.way, encoder.relation_head, options.k)
    else:
        matches = index.search(query, options.way, options.k, min_sim=options.min_sim or 0.0)
        rows, scores = matches.rows, matches.sims
    for row, score in zip(rows[0].tolist(), scores[0].tolist(), strict=True):
        if row >= 0:
            kept = corpus.kept.slice(row, 1).to_pylist()[0]
            print(f"{score:.4f}  row {corpus.rows[row]}", *(escaped(str(value)) for value in kept.values()), sep="  ")
