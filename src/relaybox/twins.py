"""`X` and `AsyncX` say the same of the same method, and say it once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T", bound=type)


def told_by(twin: type) -> Callable[[T], T]:
    """Decorates a twin: its members that have no docstring have that of the other's."""

    def tell(kind: T) -> T:
        for name, member in vars(kind).items():
            if (not name.startswith("_") or name == "__call__") and not member.__doc__:
                member.__doc__ = getattr(twin, name).__doc__
        return kind

    return tell
