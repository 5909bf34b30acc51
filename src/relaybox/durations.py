"""Durations as people write them: `30s`, `720h`, `1h30m`, `250ms`, ISO `PT5M`. In a program a number is seconds, as in
`time.sleep`; text has a unit, because `retention = 7` in a file may well mean days."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Generic, TypeAlias, TypeVar

from .errors import ConfigError

Duration: TypeAlias = timedelta | float | str  # what an argument may be; attributes and results are timedelta

T = TypeVar("T")

_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(us|ms|s|m|h|d|w)")
_ISO = re.compile(r"^P(?:(\d+)W)?(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?$", re.IGNORECASE)


def parse_duration(text: Duration, name: str = "duration") -> timedelta:
    if isinstance(text, timedelta):
        return text
    try:
        seconds = _seconds(text)
        if seconds is not None:
            return timedelta(seconds=seconds)
    except (ValueError, OverflowError):  # not a number, or more than a timedelta holds
        seconds = None
    unit = " without a unit" if str(text).strip().replace(".", "", 1).isdecimal() else ""
    raise ConfigError(f"expected {name} to be a duration such as 30s, 5m, 720h or PT5M, got {text!r}{unit}")


def _seconds(text: str | float) -> float | None:
    if isinstance(text, (int, float)) and not isinstance(text, bool):
        return text
    value = str(text).strip().lower()
    if (match := _ISO.match(value)) and any(match.groups()):
        weeks, days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
        return (((weeks * 7 + days) * 24 + hours) * 60 + minutes) * 60 + seconds
    if value == "0":
        return 0
    parts = _PART.findall(value)
    if parts and "".join(number + unit for number, unit in parts) == value:
        return sum(float(number) * _UNITS[unit] for number, unit in parts)
    return None


def format_duration(value: timedelta) -> str:
    """Exact, and readable by parse_duration: the largest unit that gives a whole number."""
    ticks = value // timedelta(microseconds=1)
    for unit in ("w", "d", "h", "m", "s", "ms"):
        size = round(_UNITS[unit] * 1_000_000)
        if ticks >= size and ticks % size == 0:
            return f"{ticks // size}{unit}"
    return f"{ticks}us"


class _Field(Generic[T]):
    """A field of a frozen dataclass that takes a Duration and gives a timedelta. Dataclasses know such fields: what is
    given to the constructor goes to `__set__`, and the default is what `__get__` gives for the class."""

    _default: T

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def _parsed(self, instance: object, value: Duration) -> timedelta:
        return parse_duration(value, f"{getattr(instance, 'section', type(instance).__name__)}.{self._name}")

    def __get__(self, instance: object | None, owner: type) -> T:
        value: T = self._default if instance is None else instance.__dict__[self._name]
        return value


class DurationField(_Field[timedelta]):
    def __init__(self, default: Duration) -> None:
        self._default = parse_duration(default)

    def __set__(self, instance: object, value: Duration) -> None:
        instance.__dict__[self._name] = self._parsed(instance, value)


class OptionalDurationField(_Field[timedelta | None]):
    def __init__(self, default: Duration | None) -> None:
        self._default = None if default is None else parse_duration(default)

    def __set__(self, instance: object, value: Duration | None) -> None:
        instance.__dict__[self._name] = None if value is None else self._parsed(instance, value)
