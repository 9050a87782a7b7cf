"""What a model card says of a model of running text."""

from __future__ import annotations

from pipeline.config.objective import ObjectiveSection
from pipeline.families.card_words import Words

_RUNNING_TEXT = """\
A sentence encoder trained on running text without labels (objective quickthoughts): the first half of its dimensions is trained
to predict the sentences around a sentence, the second half to be predicted. Compare sentences by {formula}."""
_PURPOSE = """\
Its embeddings are features for classifiers and for search by topic, in English text like its training data. It knows nothing of
entailment."""
_BASELINES = """\
In per cent. By chance, the next sentence is found among 64 in 1.6; the baseline of a transfer task is its most frequent class."""


def words(objective: ObjectiveSection) -> Words:
    """The texts of its card."""
    return Words(what=_RUNNING_TEXT, purpose=_PURPOSE, baselines=_BASELINES)
