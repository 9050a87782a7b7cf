"""Label names, as files spell them → codes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.data.readers.blocks import Block, shown
from pipeline.data.schema import CONTRADICTION, ENTAILMENT, LABELS, NEUTRAL, NO_LABEL
from pipeline.errors import UserError

NAMES = (
    {name: code for code, name in enumerate(LABELS)}
    | {"": NO_LABEL, "-": NO_LABEL}
    | {"a_entails_b": ENTAILMENT, "a_neutral_b": NEUTRAL, "a_contradicts_b": CONTRADICTION}
    | {"b_entails_a": ENTAILMENT, "b_neutral_a": NEUTRAL, "b_contradicts_a": CONTRADICTION}
)
"""Names that need no mapping, in small letters; the official spellings of SNLI, MultiNLI and SICK among them."""
_MEANINGS = {name: code for code, name in enumerate(LABELS)} | {"none": NO_LABEL}


class LabelNames:
    """The names of one file: its own (`labels` in params.yaml) before the known ones."""

    def __init__(self, own: Mapping[str, str]) -> None:
        self._codes = NAMES | {_key(name): _MEANINGS[meaning] for name, meaning in own.items()}
        self._own = bool(own)

    def meaning(self, name: str) -> str | None:
        """What `params.yaml` would say of the name: a label or 'none'; None if it is not known."""
        code = self._codes.get(_key(name))
        return next((meaning for meaning, known in _MEANINGS.items() if known == code), None)

    def codes(self, name: str, block: Block, column: str, values: pa.Array) -> pa.Array:
        """(n,) int8 positions in `LABELS`, or `NO_LABEL`; only the distinct values are looked at one by one.

        Args:
            values: (n,) text or integers; null is no label.

        Raises:
            UserError: a value is no name of the file, or the values are numbers and nothing says what they mean.
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
