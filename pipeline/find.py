"""`python -m pipeline.find CORPUS SENTENCE`: what in an encoded corpus entails a sentence, or is entailed by it.

CORPUS is a folder that `python -m pipeline.encode` made. Whoever asks more than once keeps an `EntailmentIndex`
(pipeline/search.py).
"""

from __future__ import annotations

import argparse

from pipeline.check import load_project
from pipeline.errors import UserError, escaped, run_stage


def main() -> None:
    """Find what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m pipeline.find", description="Entailment search in an encoded corpus.")
    parser.add_argument("corpus", help="a folder that python -m pipeline.encode made")
    parser.add_argument("sentence")
    parser.add_argument(
        "--way", choices=["entails", "entailed"], default="entailed", help="what entails it, or (default) what it entails"
    )
    parser.add_argument("-k", type=int, default=10, help="how many; default 10")
    parser.add_argument("--min-sim", type=float, default=0.0, help="leave out what is less similar")
    parser.add_argument("--model", help="as of python -m pipeline.encode; default the champion")
    asked = parser.parse_args()
    params, _ = load_project()
    from pipeline.encoded import read_gaussians
    from pipeline.encoder import GaussianEncoder
    from pipeline.model_folder import content_digest
    from pipeline.registry import encoder_folder
    from pipeline.search import EntailmentIndex

    uri = asked.model or f"models:/{params.register_.name}@champion"
    corpus = read_gaussians(asked.corpus)
    with encoder_folder(uri) as folder:
        if content_digest(folder) != corpus.model:
            raise UserError(f"{asked.corpus}: was encoded by another model than {uri}; encode it anew, or name that model")
        encoder = GaussianEncoder.from_pretrained(folder)
    if encoder.score_kind == "cosine":
        raise UserError(
            f"{uri}: compares by the cosine of its means and has no variances to go by; it cannot say what entails what"
        )
    index = EntailmentIndex.build(corpus.gaussians, (asked.way,))
    found = index.search(encoder.encode([asked.sentence]), asked.way, asked.k, min_sim=asked.min_sim)
    for row, sim in zip(found.rows[0].tolist(), found.sims[0].tolist(), strict=True):
        if row >= 0:
            kept = corpus.kept.slice(row, 1).to_pylist()[0]
            print(f"{sim:.4f}  row {corpus.rows[row]}", *(escaped(str(value)) for value in kept.values()), sep="  ")


if __name__ == "__main__":
    run_stage(main)
