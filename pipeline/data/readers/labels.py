"""Label names in files → label codes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.data.readers.row_blocks import Block, shown
from pipeline.data.schema import CONTRADICTION, ENTAILMENT, LABELS, NEUTRAL, NO_LABEL
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
    """The label names of one file. Its own names (`labels` in params.yaml) take precedence over the known ones."""

    def __init__(self, own: Mapping[str, str]) -> None:
        self._codes = NAMES | {_key(name): _MEANINGS[meaning] for name, meaning in own.items()}
        self._own = bool(own)

    def meaning(self, name: str) -> str | None:
        """The meaning of a name as in params.yaml: a label or 'none'; None if the name is unknown."""
        code = self._codes.get(_key(name))
        return next((meaning for meaning, known in _MEANINGS.items() if known == code), None)

    def codes(self, name: str, block: Block, column: str, values: pa.Array) -> pa.Array:
        """(n,) int8 positions in `LABELS`, or `NO_LABEL`. Only distinct values are handled one by one.

        Args:
            name: name of the file, for messages.
            block: the block of the values, for messages.
            column: column of the values, for messages.
            values: (n,) text or integers; null means no label.

        Raises:
            UserError: a value is not a known name, or the values are numbers without a known meaning.
        """
        if pa.types.is_integer(values.type):
            if not self._own:
                raise UserError(
                    f"{name}: column {column!r} holds {values.type}, not label names; say in params.yaml which number is which, "
                    'as labels: {"0": entailment, "1": neutral, "2": contradiction, "-1": none}'
                )
            values = values.cast(pa.large_string())
        encoded = pc.fill_null(values, "").dictionary_encode()
        names: list[str] = encoded.dictionary.to_pylist()
        bad = [i for i, value in enumerate(names) if _key(value) not in self._codes]
        indices = encoded.indices.to_numpy(zero_copy_only=False)
        if bad:
            row = int(np.flatnonzero(np.isin(indices, bad))[0])
            raise UserError(
                f"{name}: {block.place(row)}: {column} is {shown(names[indices[row]])}; labels are {', '.join(LABELS)}, and '', "
                "'-' or null for none: correct it, or say what it means with labels in params.yaml"
            )
        table = np.array([self._codes[_key(value)] for value in names], dtype=np.int8)
        return pa.array(table[indices] if len(indices) else np.zeros(0, dtype=np.int8))


def _key(name: str) -> str:
    return name.strip().lower()
