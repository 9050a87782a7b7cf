"""Labelled pairs: the facts about the family, and the parameters of its objectives."""

from __future__ import annotations

from typing import Annotated, ClassVar, Generic, Literal, TypeVar, get_args

from pydantic import Field

from pipeline.config.data_params import DataParams
from pipeline.config.objective import ObjectiveSection, SimilarityKind
from pipeline.config.types import PositiveFloat
from pipeline.families.family import Family, Metric

ObjectiveName = Literal["ent", "ent+con", "ent+rev", "ent+con+rev", "simcse"]
"""The objectives over triplets."""
Name = TypeVar("Name", bound=str)
Role = Literal["premise", "entailment", "contradiction", "neutral"]
COLUMNS: tuple[Role, ...] = get_args(Role)
"""The columns of a triplet."""


class ContrastiveParams(ObjectiveSection, Generic[Name]):
    """The keys of all objectives over triplets; the name says which keys come with them (`ObjectiveParams`)."""

    family: ClassVar[str] = "pairs"
    score_name: ClassVar[str] = "dev_pr_auc"

    name: Name  # type: ignore[assignment]
    """ent | ent+con | ent+rev | ent+con+rev (the paper's names; the last is its method) | simcse (cosine of means, no
    variance)."""
    temperature: PositiveFloat
    """τ, divides the similarities in the loss. Paper and released code: 0.05."""
    reduction: Literal["mean", "sum"]
    """Over the rows of the global batch: mean (released code) or sum (paper Eq. 4). AdamW cancels the factor between the two.
    What is left of it acts only through AdamW's epsilon (1e-8) and on the logged loss."""
    neutral_block: bool
    """Whether neutral hypotheses of the premise are a further block of negatives, sim(n_j‖s_i); triplets without one have it
    masked. Evaluation counts neutral as not entailed, but paper and released code never train on it: false."""

    @property
    def roles(self) -> tuple[Role, ...]:
        """The sentences of a row that the loss uses: premise, entailment, and one role for each block of negatives."""
        return COLUMNS if self.neutral_block else COLUMNS[:-1]

    @property
    def sentences_per_row(self) -> int:
        """The most sentences of a row."""
        return 4 if self.neutral_block else 3


class SimcseParams(ContrastiveParams[Literal["simcse"]]):
    """Supervised SimCSE: the cosine of the means, without variances."""

    implementation: ClassVar[str] = "pipeline.families.pairs.contrastive:SimCSEObjective"


class GaussianParams(ContrastiveParams[Literal["ent", "ent+con", "ent+rev", "ent+con+rev"]]):
    """The paper's objectives: the similarity of Gaussians."""

    implementation: ClassVar[str] = "pipeline.families.pairs.contrastive:GaussianObjective"

    similarity: SimilarityKind
    """kl: 1 / (1 + KL summed over dimensions), paper Eq. 3. kl-dimwise: mean over dimensions of 1 / (1 + KL_d), released code."""
    simcse_weight: Annotated[float, Field(ge=0)]
    """λ of an added SimCSE loss: cross-entropy over the cosines of the means, with the same candidates except the reversed set.
    Paper: none (0). The released code can add such a term."""

    @property
    def roles(self) -> tuple[Role, ...]:
        """Contradictions are among the candidates where the name says so."""
        return tuple(role for role in super().roles if role != "contradiction" or "con" in self.name)

    @property
    def gaussian_similarity(self) -> SimilarityKind:
        """The similarity of Gaussians that is trained."""
        return self.similarity

    relation_weight: Annotated[float, Field(ge=0)]
    """Weight of the cross-entropy of a relation head that is trained with the encoder, on the pairs of each triplet: with its
    entailment, both ways, its contradiction and its neutral hypothesis; train.micro_batch does not divide these. This head shapes
    the encoder; model.relation_head fits another one to the finished encoder, which starts from what this one stores of a token.
    Paper, released code: none (0)."""

    @property
    def capabilities(self) -> tuple[str, ...]:
        """The similarity of its Gaussians says which sentence entails which."""
        return ("direction",)


def _has(data: DataParams) -> bool:
    return data.source != "files" or bool(data.files.train)


FAMILY = Family(
    name="pairs",
    row_kind="triplets",
    rows="pairs",
    keys="files.train",
    groups="premises",
    dev="dev",
    promotion="promotion",
    sets=("nli_sets", "sts_sets"),
    metrics={
        "pr_auc": Metric(label="PR-AUC", short="PR-AUC", needs="both entailment pairs and others", headline=True),
        "directed_pr_auc": Metric(label="directed PR-AUC", short="directed PR-AUC", needs="entailment pairs that hold one way"),
        "directed_pr_auc_length_only": Metric(label="directed PR-AUC, baseline: how much longer the premise is", printed=False),
        "similarity.pr_auc": Metric(label="PR-AUC by similarity alone"),
        "accuracy": Metric(label="accuracy"),
        "f1": Metric(label="F1 of entailment", printed=False),
        "three_way": Metric(label="three-way accuracy", headline=True),
        "direction.score": Metric(label="direction by score", headline=True),
        "direction.sim": Metric(label="direction by similarity", headline=True, unless="direction.score"),
        "direction.var": Metric(label="direction by variance", printed=False),
        # Every direction figure comes with the baseline that uses length alone.
        "direction.length_only": Metric(label="direction, baseline: the longer sentence entails"),
        "direction.not_longer_sim": Metric(label="direction by similarity where the premise is not longer", printed=False),
        "spearman_cosine": Metric(label="Spearman, cosine of the means", headline=True),
        "spearman_similarity": Metric(label="Spearman, symmetrised similarity", printed=False),
    },
    guarded=("pr_auc", "accuracy", "spearman_cosine"),
    direction="direction.score",
    labelled=True,
    blind="accuracy",
    unused={},
    has=_has,
    reads=lambda data: _has(data) or bool(data.files.tests or data.files.sts),
    profiled="tests",
    objectives=(GaussianParams, SimcseParams),
)
