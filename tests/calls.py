"""Counts calls of a class's methods, which still do their work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest


def counted(patch: pytest.MonkeyPatch, kind: type, names: Iterable[str], calls: Counter[str] | None = None) -> Counter[str]:
    """The calls from now on, by the method's name; `calls` counts those of another class as well."""
    calls = Counter[str]() if calls is None else calls

    def counting(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            calls[name] += 1
            return method(*arguments, **named)

        return call

    for name in names:
        patch.setattr(kind, name, counting(name, getattr(kind, name)))
    return calls
