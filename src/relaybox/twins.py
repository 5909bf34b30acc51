"""What `X` and `AsyncX` have in common: they say the same of the same method, and `with` closes them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Self, TypeVar

T = TypeVar("T", bound=type)


def told_by(twin: type) -> Callable[[T], T]:
    """Decorates a twin: its members that have no docstring have that of the other's."""

    def tell(kind: T) -> T:
        for name, member in vars(kind).items():
            if (not name.startswith("_") or name == "__call__") and not member.__doc__:
                member.__doc__ = getattr(twin, name).__doc__
        return kind

    return tell


class Closing:
    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class AsyncClosing:
    @abstractmethod
    async def close(self) -> None: ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
