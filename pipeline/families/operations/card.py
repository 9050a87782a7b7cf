"""What a model card says of a model with operators."""

from __future__ import annotations

from pipeline.config.objective import ObjectiveSection
from pipeline.families.card_words import Words

_OPERATORS = """\
A sentence encoder with operators on its embeddings (objective intersent): fusion, difference and compression make an embedding
from one or two others. {decodes}Compare sentences by {formula}."""
_DECODES = "A decoder writes a sentence from an embedding. "
_FUSE = """
encoder.fuse("A dog runs.", "It is brown.")                              # an embedding; also difference(a, b), compress(a)"""
_DECODE = """
encoder.decode(encoder.fuse("A dog runs.", "It is brown."))              # the sentence that the decoder writes for it"""
_PURPOSE = """\
Its operators find sentences: what two sentences say together, what one says and the other does not, the main point of one. What
the decoder writes is meant to be looked at, not to be relied on: it may be fluent and wrong."""
_BASELINES = """\
In per cent, means over the operations. Arithmetic operators are the sum and the difference of the embeddings, as unit vectors.
The inputs as they are, one after the other, are the baseline of what is decoded; they see the text, where the decoder sees one
vector."""


def words(objective: ObjectiveSection) -> Words:
    """The texts of its card."""
    decodes = "decoder" in objective.capabilities
    what = _OPERATORS.replace("{decodes}", _DECODES if decodes else "")
    return Words(what=what, purpose=_PURPOSE, baselines=_BASELINES, examples=_FUSE + (_DECODE if decodes else ""))
