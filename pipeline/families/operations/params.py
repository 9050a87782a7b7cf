"""Operation rows: the facts about the family, and the parameters of its objective."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from pipeline.config.data_params import DataParams
from pipeline.config.messages import WrongKey
from pipeline.config.objective import ObjectiveSection
from pipeline.config.types import Positive, PositiveFloat
from pipeline.data.schema import Operation
from pipeline.families.family import Family, Metric


class IntersentParams(ObjectiveSection):
    """InterSent: operators on sentence embeddings, and a decoder that writes a sentence from one (docs/intersent.md)."""

    family: ClassVar[str] = "operations"
    score_name: ClassVar[str] = "dev_operator_mrr"
    implementation: ClassVar[str] = "pipeline.families.operations.intersent:IntersentObjective"

    name: Literal["intersent"]  # type: ignore[assignment]
    """intersent trains on operation rows."""
    operators: Literal["mlp", "arithmetic"]
    """arithmetic: fusion is the sum of the embeddings, difference their difference, and compression changes nothing. mlp: the
    same plus a network of two layers over the inputs, which starts at zero (paper: the network alone)."""
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
    def capabilities(self) -> tuple[str, ...]:
        """Operators, and a decoder if one is trained."""
        return ("operators", "decoder") if self.generation_weight else ("operators",)

    @property
    def sentences_per_row(self) -> int:
        """The most sentences of a row."""
        return 3

    @model_validator(mode="after")
    def _has_a_loss(self) -> IntersentParams:
        if not self.contrastive_weight and not self.generation_weight:
            raise WrongKey("generation_weight", 0, "contrastive_weight is 0, too, so nothing would be trained; raise one of them")
        return self


def _has(data: DataParams) -> bool:
    return bool({"generated": data.generated.operations, "files": data.files.operations}.get(data.source))


FAMILY = Family(
    name="operations",
    row_kind="operations",
    rows="operation rows",
    keys="generated.operations, or files.operations",
    groups="whole sentences",
    dev="dev_operations",
    promotion="promotion_operations",
    sets=("operation_sets",),
    metrics={
        "operator_mrr": Metric(
            label="operators: MRR@10 in the pool with inputs", short="operator MRR@10", needs="operation rows", headline=True
        ),
        "operator_recall": Metric(label="operators: recall@1"),
        "arithmetic_recall": Metric(label="operators, baseline: recall@1 of sum and difference of unit vectors"),
        "exact": Metric(label="decoded exactly", headline=True),
        "rougeL": Metric(label="decoded: ROUGE-L"),
        "copy_rougeL": Metric(label="decoded, baseline: ROUGE-L of the inputs", printed=False),
    },
    guarded=("operator_mrr",),
    encoder="operators",
    queries=True,
    unused={"triplets": "with-contradiction", "same_premise": "keep"},
    has=_has,
    reads=lambda data: _has(data) or (data.source == "files" and bool(data.files.operations_tests)),
    profiled="operations",
    objectives=(IntersentParams,),
)
