"""What a model card says of a model of pairs."""

from __future__ import annotations

from pipeline.config.objective import ObjectiveSection
from pipeline.families.card_words import Words

_GAUSSIAN = """\
A sentence encoder that turns each sentence into a Gaussian: a mean, and a variance in every dimension. The similarity,
{formula}, is not symmetric, so it says how close two sentences are and which of them entails the other."""
_COSINE = """\
A sentence encoder that compares sentences by {formula} (objective {objective}). The cosine has no direction."""
_PURPOSE = """\
It finds and ranks English sentences by entailment, if they are like its training data: short statements. In such data, length
alone often gives the direction away, so do not rely on a direction as proof."""
_BASELINES = """\
In per cent. The baseline of direction knows only the length of the sentences, and the baseline of accuracy sees only the
hypothesis. A score that is not above its baseline does not show that the model understands sentences."""


def words(objective: ObjectiveSection) -> Words:
    """The texts of its card."""
    what = _COSINE if objective.gaussian_similarity is None else _GAUSSIAN
    return Words(what=what, purpose=_PURPOSE, baselines=_BASELINES)
