"""Columns of text, in every type in which programs write text; for the readers and for `gausscse encode`."""

from __future__ import annotations

import pyarrow as pa

_TEXT = {pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view(), pa.null()}


def is_text(kind: pa.DataType) -> bool:
    """True if a column of this type can be text: strings, bytes (of UTF-8), a dictionary of either, or nulls only."""
    return (kind.value_type if pa.types.is_dictionary(kind) else kind) in _TEXT


def as_text(values: pa.Array) -> pa.Array:
    """(n,) large_string with its nulls, of a column for which `is_text`. Bytes are not checked; see `not_utf8`."""
    return values.cast(pa.large_binary()).view(pa.large_string())


def not_utf8(text: pa.Array) -> int | None:
    """Position of the first value of (n,) large_string that is not valid UTF-8; None if all are."""
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        values = text.view(pa.large_binary()).to_pylist()
        return next((i for i, value in enumerate(values) if value and value.decode("utf-8", "ignore").encode() != value), 0)
    return None
