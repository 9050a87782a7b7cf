"""The paper's own figures (Sentence Representations via Gaussian Embedding, arXiv 2305.12990), to compare with ours.

They are shown for sets with the name of one of the paper's sets, and always marked. They are quoted at second hand: we do not
know which objective gave them, nor whether direction is by sim or by var. So direction is given in a note, not in a column.
"""

from __future__ import annotations

from collections.abc import Mapping

ROW = "the paper's"
_MARK = "another backbone, all of SNLI and MultiNLI; quoted at second hand, not checked against the paper's tables; never bold"

_PR_AUC: Mapping[str, str] = {"snli_test": "69.3", "sick_test": "78.9"}
_DIRECTION: Mapping[str, str] = {"snli_test": "97.1", "sick_test": "69–72"}

PR_AUC_NOTE = f"The paper's: PR-AUC (arXiv 2305.12990), by which of its objectives is not known here: {_MARK}."


def pr_auc(set_name: str) -> str | None:
    """The paper's PR-AUC on this set in percent, as printed; None if there is none."""
    return _PR_AUC.get(set_name)


def direction_note(set_name: str) -> str | None:
    """A note on the paper's figure for direction on this set; None if there is none."""
    value = _DIRECTION.get(set_name)
    if value is None:
        return None
    return (
        f"The paper (arXiv 2305.12990) reports {value} for direction on this set; by which objective, and whether by "
        f"sim or var, is not known here. Marked as the paper's: {_MARK}."
    )
