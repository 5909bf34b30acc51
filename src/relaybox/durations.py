"""Durations as people write them: `30s`, `720h`, `1h30m`, `250ms`, ISO `PT5M`, or seconds as a number."""

from __future__ import annotations

import re
from datetime import timedelta

from .errors import ConfigError

_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(us|ms|s|m|h|d|w)")
_ISO = re.compile(r"^P(?:(\d+)W)?(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?$", re.IGNORECASE)


def parse_duration(text: str | float | timedelta, name: str = "duration") -> timedelta:
    if isinstance(text, timedelta):
        return text
    try:
        seconds = _seconds(text)
        if seconds is not None:
            return timedelta(seconds=seconds)
    except (ValueError, OverflowError):  # not a number, or more than a timedelta holds
        seconds = None
    raise ConfigError(f"expected {name} to be a duration such as 30s, 5m, 720h or PT5M, got {text!r}")


def _seconds(text: str | float) -> float | None:
    if isinstance(text, (int, float)) and not isinstance(text, bool):
        return text
    value = str(text).strip().lower()
    if (match := _ISO.match(value)) and any(match.groups()):
        weeks, days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
        return (((weeks * 7 + days) * 24 + hours) * 60 + minutes) * 60 + seconds
    if re.fullmatch(r"\d+(\.\d+)?", value):
        return float(value)
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
