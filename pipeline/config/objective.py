"""Section `objective` of params.yaml: its name determines which other keys it has, so keys of other objectives are errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar, get_args

from pydantic import Field, TypeAdapter, model_validator

from pipeline.config.messages import WrongKey
from pipeline.config.types import Positive, PositiveFloat, Section

ObjectiveName = Literal["ent", "ent+con", "ent+rev", "ent+con+rev", "simcse"]
"""The objectives over triplets."""
SimilarityKind = Literal["kl", "kl-dimwise"]
Operation = Literal["fusion", "difference", "compression", "reconstruction"]
"""What an operator on sentences does; InterSent, section 3."""
Name = TypeVar("Name", bound=str)


class ContrastiveParams(Section, Generic[Name]):
    """The keys of all objectives over triplets; the name says which keys come with them (`ObjectiveParams`)."""

    score_name: ClassVar[str] = "dev_pr_auc"
    """Key of the development score that selects models, in histories and config.json."""
    row_kind: ClassVar[str] = "triplets"
    """The kind of rows it trains on: a key of `pipeline.data.token_store.ROW_KINDS`."""

    name: Name
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
    def gaussian_similarity(self) -> SimilarityKind | None:
        """The similarity of Gaussians that is trained; None if the objective does not use variances."""
        return None

    @property
    def shown_similarity(self) -> str:
        """What compares two sentences in the loss."""
        return self.gaussian_similarity or "cosine"


class SimcseParams(ContrastiveParams[Literal["simcse"]]):
    """Supervised SimCSE: the cosine of the means, without variances."""


class GaussianParams(ContrastiveParams[Name], Generic[Name]):
    """The paper's objectives: the similarity of Gaussians."""

    similarity: SimilarityKind
    """kl: 1 / (1 + KL summed over dimensions), paper Eq. 3. kl-dimwise: mean over dimensions of 1 / (1 + KL_d), released code."""
    simcse_weight: Annotated[float, Field(ge=0)]
    """λ of an added SimCSE loss: cross-entropy over the cosines of the means, with the same candidates except the reversed set.
    Paper: none (0). The released code can add such a term."""

    @property
    def gaussian_similarity(self) -> SimilarityKind:
        """The similarity of Gaussians that is trained."""
        return self.similarity

    relation_weight: Annotated[float, Field(ge=0)]
    """Weight of the cross-entropy of a relation head that is trained with the encoder, on the pairs of each triplet: with its
    entailment, both ways, its contradiction and its neutral hypothesis. This head only shapes the encoder; model.relation_head
    fits another one to the finished encoder. Paper, released code: none (0)."""


class ForwardParams(GaussianParams[Literal["ent", "ent+con"]]):
    """Without the reversed set."""


class ReversedParams(GaussianParams[Literal["ent+rev", "ent+con+rev"]]):
    """With the reversed set."""

    reverse_weight: PositiveFloat
    """How often a row's own pair in reverse order counts among its negatives in the reversed set (ent+rev, ent+con+rev). It is
    the one negative that says which of the two sentences entails the other. Paper and released code: once, as any other."""


class QuickThoughtsParams(Section):
    """QuickThoughts: predict the sentences around a sentence of running text (docs/quickthoughts.md)."""

    score_name: ClassVar[str] = "dev_next_sentence"
    row_kind: ClassVar[str] = "documents"

    name: Literal["quickthoughts"]
    """quickthoughts trains on running text, the others on triplets."""
    loss: Literal["softmax", "block"]
    """softmax: cross-entropy over all sentences of the batch, minus the entropy of the targets (post, S2V). block: the block loss
    of CURL, over the mean scores of blocks of consecutive sentences; the target is the next block."""
    context_size: Positive
    """Sentences up to this many positions away are the targets of a sentence (loss: softmax). S2V: 1. Post: 1 to 4."""
    block_size: Positive
    """Consecutive sentences in a block (loss: block). CURL's experiments: 2 to 10."""
    direction: Literal["both", "next"]
    """Whether the targets of a sentence are both before and after it (S2V), or only after it (post)."""
    score: Literal["dot", "cosine", "kl"]
    """How a sentence is compared with a candidate: dot is f(s)·g(c) (both sources), cosine the same of unit vectors, kl the
    similarity 1 / (1 + KL) of two Gaussians, which trains the variances, too."""
    temperature: PositiveFloat
    """Divides the scores. Both sources: 1, with dot."""
    reduction: Literal["mean", "sum"]
    """Over the sentences of the global batch that have targets."""
    run_length: Positive | None
    """How many consecutive sentences of a document a batch takes at a time; null: whole documents (both sources). In short runs
    of many documents, fewer candidates are of the sentence's own document."""

    @property
    def gaussian_similarity(self) -> SimilarityKind | None:
        """The similarity of Gaussians that is trained; None if the objective does not use variances."""
        return "kl" if self.score == "kl" else None

    @property
    def shown_similarity(self) -> str:
        """What compares two sentences in the loss."""
        return self.score

    @model_validator(mode="after")
    def _runs_have_targets(self) -> QuickThoughtsParams:
        least = 2 * self.block_size if self.loss == "block" else 2
        if self.run_length is not None and self.run_length < least:
            raise WrongKey("run_length", self.run_length, f"a run needs {least} sentences or more to have targets")
        return self


class IntersentParams(Section):
    """InterSent: operators on sentence embeddings, and a decoder that writes a sentence from one (docs/intersent.md)."""

    score_name: ClassVar[str] = "dev_operator_mrr"
    row_kind: ClassVar[str] = "operations"

    name: Literal["intersent"]
    """intersent trains on operation rows."""
    operators: Literal["mlp", "arithmetic"]
    """arithmetic: fusion is the sum of the embeddings, difference their difference, and compression changes nothing. mlp: the same
    plus a network of two layers over the inputs, which starts at zero (paper: the network alone)."""
    decoder_layers: Positive
    """Layers of the decoder; it starts from the backbone's first ones. Not used if generation_weight is 0. Paper: 6."""
    temperature: PositiveFloat
    """τ, divides the cosines in the contrastive loss. Code: 0.05."""
    contrastive_weight: Annotated[float, Field(ge=0)]
    """Weight of the contrastive loss: find the target of each row among the targets of the batch. Paper: 1."""
    generation_weight: Annotated[float, Field(ge=0)]
    """Weight of the mean cross-entropy of the target's tokens, written by the decoder from the operator's output. 0: no decoder.
    Paper: 0.01."""
    own_inputs: bool
    """Whether the inputs of a row are negatives for its operator's output, too. Paper: false."""
    shares: dict[Operation, PositiveFloat] | None
    """Operation: its share of every batch, such as {fusion: 2, compression: 1}; operations that are not named are not trained on.
    null: rows are drawn as they come."""
    reduction: Literal["mean", "sum"]
    """Over the rows of the global batch."""

    @property
    def gaussian_similarity(self) -> SimilarityKind | None:
        """None: the objective does not use variances."""
        return None

    @property
    def shown_similarity(self) -> str:
        """What compares two sentences in the loss."""
        return "cosine"

    @model_validator(mode="after")
    def _has_a_loss(self) -> IntersentParams:
        if not self.contrastive_weight and not self.generation_weight:
            raise WrongKey("generation_weight", 0, "contrastive_weight is 0, too, so nothing would be trained; raise one of them")
        return self


ObjectiveParams = Annotated[
    ForwardParams | ReversedParams | SimcseParams | QuickThoughtsParams | IntersentParams,
    Field(discriminator="name", description="The loss."),
]
# The members of the union: Annotated, then `|`.
_KINDS = get_args(get_args(ObjectiveParams)[0])
_ANY: TypeAdapter[ObjectiveParams] = TypeAdapter(ObjectiveParams)


def objective_keys(name: object) -> frozenset[str]:
    """The keys of the objective with this name; the keys of all objectives if none has the name."""
    named = [kind for kind in _KINDS if name in get_args(kind.model_fields["name"].annotation)]
    return frozenset(key for kind in named or _KINDS for key in kind.model_fields)


def row_kind_of(name: object) -> str | None:
    """The kind of rows that the objective with this name trains on; None if none has the name."""
    return next((kind.row_kind for kind in _KINDS if name in get_args(kind.model_fields["name"].annotation)), None)


def own_keys(given: Mapping[str, Any]) -> ObjectiveParams:
    """Validate section `objective`, ignoring keys that the named objective does not have.

    Raises:
        pydantic.ValidationError: the name is not an objective, or a key is missing or wrong.
    """
    keys = objective_keys(given.get("name"))
    return _ANY.validate_python({key: value for key, value in given.items() if key in keys})
