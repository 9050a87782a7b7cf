"""Search in corpora that `gausscse encode` wrote, each with the model that encoded it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pipeline.gaussian.distribution import Gaussian
from pipeline.inference.corpus import Encoded, NotEncoded, model_of, read_gaussians
from pipeline.inference.entailment_index import EntailmentIndex, nearest
from pipeline.inference.index_vectors import Way
from pipeline.models.relation_head import Relation, ScoreKind
from pipeline.serving.limits import Refusal
from pipeline.utils.errors import UserError

Ranking = Literal["similarity", "relation", "cosine"]


@dataclass(frozen=True, slots=True)
class Searchable:
    """A corpus in memory, and what its model can rank by."""

    corpus: Encoded
    index: EntailmentIndex | None
    """None if the model has no variances."""
    relation: Relation | None

    def search(self, queries: Gaussian, way: Way, k: int, min_sim: float, by: Ranking) -> list[list[dict[str, Any]]]:
        """The k best rows for each query, best first: `row`, `score` and the kept columns of the corpus.

        Raises:
            Refusal: the model cannot rank this way.
        """
        if by == "cosine":
            rows, scores = nearest(self.corpus.gaussians.mean, queries.mean, k)
        elif self.index is None:
            raise Refusal(409, 'by: this model has no variances, so it cannot say which sentence entails which; use "cosine"')
        elif by == "relation":
            if self.relation is None:
                raise Refusal(409, 'by: this model has no relation head; use "similarity"')
            rows, scores = self.index.ranked(queries, way, self.relation, k)
        else:
            matches = self.index.search(queries, way, k)
            rows, scores = matches.rows, matches.sims
        kept = self.corpus.kept
        results: list[list[dict[str, Any]]] = []
        for own_rows, own_scores in zip(rows, scores, strict=True):
            valid = (own_rows >= 0) & (own_scores >= min_sim)
            hits = zip(own_rows[valid], own_scores[valid], kept.take(own_rows[valid]).to_pylist(), strict=True)
            results.append([{**column, "row": self.corpus.rows[row], "score": float(score)} for row, score, column in hits])
        return results


def searchable(folders: Sequence[str], digest: str, kind: ScoreKind, relation: Relation | None) -> Searchable | None:
    """The first corpus that the model with this `encoder_digest` encoded; None if it encoded none of them.

    Raises:
        NotEncoded: it encoded none, and a folder has no complete corpus.
        UserError: it encoded none, and a corpus is damaged or cannot be read.
    """
    problem: UserError | None = None
    for folder in folders:
        try:
            if model_of(folder) == digest:
                corpus = read_gaussians(folder)
                return Searchable(corpus, None if kind == "cosine" else EntailmentIndex.build(corpus.gaussians), relation)
        except UserError as error:
            # One that is damaged says more than one that is still missing.
            problem = error if problem is None or isinstance(problem, NotEncoded) else problem
    if problem is not None:
        raise problem
    return None
