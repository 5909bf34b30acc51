"""A batch of messages as the requests that a broker takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def parts(items: Iterable[T], size: Callable[[T], int], most_bytes: int, most: int | None = None) -> Iterator[list[T]]:
    """Neighbours together, up to so many bytes and items; an item that is larger by itself is alone."""
    part: list[T] = []
    total = 0
    for item in items:
        if part and (total + size(item) > most_bytes or len(part) == most):
            yield part
            part, total = [], 0
        part.append(item)
        total += size(item)
    if part:
        yield part


def grouped(items: Iterable[T], by: Callable[[T], str]) -> dict[str, list[T]]:
    """In their order."""
    groups: dict[str, list[T]] = {}
    for item in items:
        groups.setdefault(by(item), []).append(item)
    return groups
