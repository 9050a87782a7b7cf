"""Running text: the facts about the family, and the parameters of its objective."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import model_validator

from pipeline.config.data_params import DataParams
from pipeline.config.messages import WrongKey
from pipeline.config.objective import ObjectiveSection, SimilarityKind
from pipeline.config.types import Positive, PositiveFloat
from pipeline.families.family import Family, Metric

if TYPE_CHECKING:
    from pipeline.config.params import Params


class QuickThoughtsParams(ObjectiveSection):
    """QuickThoughts: predict the sentences around a sentence of running text (docs/quickthoughts.md)."""

    family: ClassVar[str] = "text"
    score_name: ClassVar[str] = "dev_next_sentence"
    implementation: ClassVar[str] = "pipeline.families.text.quickthoughts:QuickThoughtsObjective"

    name: Literal["quickthoughts"]  # type: ignore[assignment]
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

    @property
    def capabilities(self) -> tuple[str, ...]:
        """The second half of its dimensions is trained to predict the first half of a neighbour's."""
        return ("halves",)

    def check(self, params: Params) -> None:
        """A batch holds two blocks, and f and g have equally many dimensions."""
        least, smallest = 2 * self.block_size, min(params.tune.batch_sizes)
        if self.loss == "block" and smallest < least:
            message = f"a batch needs {least} sentences or more, two blocks of objective.block_size"
            raise WrongKey("tune.batch_sizes", smallest, message)
        if params.model.dim is not None and params.model.dim % 2:
            raise WrongKey("model.dim", params.model.dim, "must be even: half of the dimensions are f's, half are g's")


def _has(data: DataParams) -> bool:
    return bool({"generated": data.generated.documents, "files": data.files.text}.get(data.source))


FAMILY = Family(
    name="text",
    row_kind="documents",
    rows="running text",
    keys="generated.documents, or files.text",
    groups="documents",
    dev="dev_text",
    promotion="promotion_text",
    sets=("text_sets", "task_sets"),
    metrics={
        "next_sentence": Metric(
            label="next sentence among 64", short="next-sentence accuracy", needs="neighbouring sentences", headline=True
        ),
        "next_sentence_cosine": Metric(label="next sentence among 64, cosine of the means"),
        "logistic": Metric(label="transfer: logistic regression", headline=True),
        "mean_classifier": Metric(label="transfer: mean classifier"),
        "majority": Metric(label="transfer, baseline: most frequent class", printed=False),
    },
    guarded=("next_sentence", "logistic"),
    commands={
        "transfer": "accuracy of linear classifiers on a model's embeddings (SentEval's tasks, or your own)",
        "curl": "running text: the next sentence among others, and CURL's bound",
    },
    unused={"triplets": "with-contradiction", "same_premise": "keep"},
    has=_has,
    reads=lambda data: _has(data) or (data.source == "files" and bool(data.files.text_tests or data.files.tasks)),
    profiled="text",
    objectives=(QuickThoughtsParams,),
)
