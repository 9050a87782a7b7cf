"""Figures of the paper itself (Sentence Representations via Gaussian Embedding, arXiv 2305.12990), to stand beside ours.

They are shown where a set's name says that it is the paper's set, and always marked. They are quoted at second hand, so only
what is known of each is said: the PR-AUC is that of ent+con+rev; which objective, and which of sim and var, the direction belongs
to is not known, so it has no column of its own and stands in a note.
"""

from __future__ import annotations

from collections.abc import Mapping

OBJECTIVE = "ent+con+rev"
ROW = "the paper's"
_MARK = (
    "another backbone, all of SNLI and MultiNLI; quoted at second hand, not checked against the paper's tables; "
    "no part of what is bold"
)

_PR_AUC: Mapping[str, str] = {"snli_test": "69.3", "sick_test": "78.9"}
_DIRECTION: Mapping[str, str] = {"snli_test": "97.1", "sick_test": "69–72"}

PR_AUC_NOTE = f"The paper's: PR-AUC of its own method (arXiv 2305.12990): {_MARK}."


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
