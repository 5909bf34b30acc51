"""Whether marks live long enough: a message that comes back after its mark was forgotten is handled again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..durations import Duration, format_duration, parse_duration
from ..store.doctor import Finding
from .spi import Terms


def judge_retention(terms: Terms, windows: Mapping[str, Duration | None]) -> Iterator[Finding]:
    """`windows` are how long something can still deliver or replay a message; None: for ever."""
    ttl = format_duration(terms.ttl)
    for name, value in windows.items():
        window = None if value is None else parse_duration(value, name)
        if window is not None and window <= terms.ttl:
            yield Finding("ok", name, f"consumer {terms.consumer!r} remembers for {ttl}, {name} is no longer")
            continue
        shown = "unlimited" if window is None else format_duration(window)
        yield Finding(
            "warning",
            name,
            f"consumer {terms.consumer!r} remembers for {ttl} and {name} is {shown}: "
            "a message that is delivered or replayed later than that is handled again",
            f"limit {name}, or do not replay what is older than {ttl}" if window is None else f"set ttl to {shown}",
        )
