"""Figures of the paper itself (Sentence Representations via Gaussian Embedding, arXiv 2305.12990), to stand beside ours.

They are shown where a set's name says that it is the paper's set, and always marked. They are quoted at second hand, so only
what is known of each is said: by which objective, and for direction by which of sim and var, is not known; the direction has no
column of its own and so stands in a note.
"""

from __future__ import annotations

from collections.abc import Mapping

ROW = "the paper's"
_MARK = (
    "another backbone, all of SNLI and MultiNLI; quoted at second hand, not checked against the paper's tables; "
    "no part of what is bold"
)

_PR_AUC: Mapping[str, str] = {"snli_test": "69.3", "sick_test": "78.9"}
_DIRECTION: Mapping[str, str] = {"snli_test": "97.1", "sick_test": "69–72"}

PR_AUC_NOTE = f"The paper's: PR-AUC (arXiv 2305.12990), by which of its objectives is not known here: {_MARK}."


def pr_auc(set_name: str) -> str | None:
    """The paper's PR-AUC, percent, as printed; None where there is none of this set."""
    return _PR_AUC.get(set_name)


def direction_note(set_name: str) -> str | None:
    """What the paper reports for the direction of entailment on this set."""
    value = _DIRECTION.get(set_name)
    if value is None:
        return None
    return (
        f"The paper (arXiv 2305.12990) reports {value} for direction on this set; by which objective, and whether by "
        f"sim or var, is not known here. Marked as the paper's: {_MARK}."
    )
