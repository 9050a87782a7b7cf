"""Label names in files → label codes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.config.types import label_key
from pipeline.data.readers.row_blocks import Block, shown
from pipeline.data.schema import CONTRADICTION, ENTAILMENT, LABELS, NEUTRAL, NO_LABEL
from pipeline.data.text_column import is_text
from pipeline.utils.errors import UserError

NAMES = (
    {name: code for code, name in enumerate(LABELS)}
    | {"": NO_LABEL, "-": NO_LABEL}
    | {"a_entails_b": ENTAILMENT, "a_neutral_b": NEUTRAL, "a_contradicts_b": CONTRADICTION}
    | {"b_entails_a": ENTAILMENT, "b_neutral_a": NEUTRAL, "b_contradicts_a": CONTRADICTION}
)
"""Names that need no mapping, in lower case, including the official spellings of SNLI, MultiNLI and SICK."""
_MEANINGS = {name: code for code, name in enumerate(LABELS)} | {"none": NO_LABEL}


class LabelNames:
    """The label names of one column.

    Args:
        own: name → meaning, as in `labels` in params.yaml; they take precedence over the known ones.
        classes: names of the numbers from 0. A number means the same as its name; -1 means no label.
    """

    def __init__(self, own: Mapping[str, str], classes: Sequence[str] = ()) -> None:
        codes = {label_key(name): _MEANINGS[meaning] for name, meaning in own.items()}
        known = NAMES | codes
        numbers = {str(i): known[key] for i, name in enumerate(classes) if (key := label_key(name)) in known}
        self._codes = NAMES | ({"-1": NO_LABEL} if classes else {}) | numbers | codes
        self._own = bool(own or classes)

    def codes(self, name: str, block: Block, column: str, values: pa.Array) -> pa.Array:
        """(n,) int8 positions in `LABELS`, or `NO_LABEL`. Only distinct values are handled one by one.

        Args:
            name: name of the file, for messages.
            block: the block of the values, for messages.
            column: column of the values, for messages.
            values: (n,) text, or numbers (1.0 is the name 1, and true is one); null and NaN mean no label.

        Raises:
            UserError: a value is not a known name, or the values are numbers without a known meaning.
        """
        encoded = values.dictionary_encode()
        names = [_name(value) for value in encoded.dictionary.to_pylist()] + [""]
        indices = pc.fill_null(encoded.indices, len(names) - 1).to_numpy(zero_copy_only=False)
        if not is_text(values.type) and not self._own and any(names):
            raise UserError(
                f"{name}: column {column!r} holds {values.type}, not label names; say in params.yaml which number is which, "
                'as labels: {"0": entailment, "1": neutral, "2": contradiction, "-1": none}'
            )
        bad = [i for i, value in enumerate(names) if label_key(value) not in self._codes]
        if bad:
            row = int(np.flatnonzero(np.isin(indices, bad))[0])
            raise UserError(
                f"{name}: {block.place(row)}: {column} is {shown(names[indices[row]])}; labels are {', '.join(LABELS)}, and '', "
                "'-' or null for none: correct it, or say what it means with labels in params.yaml"
            )
        table = np.array([self._codes[label_key(value)] for value in names], dtype=np.int8)
        return pa.array(table[indices] if len(indices) else np.zeros(0, dtype=np.int8))


def _name(value: object) -> str:
    return "" if isinstance(value, float) and isnan(value) else str(value)
