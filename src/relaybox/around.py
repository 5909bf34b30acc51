"""What a framework does around listeners. Its adapter adds itself to `frameworks` when it is imported; each service has
one of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Around(Protocol):
    def plain(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """A plain listener, for threads of ours."""
        ...

    def awaited(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """An async listener, for an event loop of ours."""
        ...

    def concerns(self, target: Any) -> bool:
        """Whether this is a database of the framework's."""
        ...

    def here(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """An async listener as a plain one, for the thread of a test."""
        ...

    def apart(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """A plain listener as an async one, for the event loop of a test."""
        ...

    def close(self) -> None:
        """At the end of the service."""


frameworks: list[Callable[[], Around]] = []
