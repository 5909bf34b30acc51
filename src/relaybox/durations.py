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
    if isinstance(text, (int, float)) and not isinstance(text, bool):
        return timedelta(seconds=text)
    value = str(text).strip()
    if match := _ISO.match(value):
        weeks, days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
        if any(match.groups()):
            return timedelta(weeks=weeks, days=days, hours=hours, minutes=minutes, seconds=seconds)
    if re.fullmatch(r"\d+(\.\d+)?", value):
        return timedelta(seconds=float(value))
    parts = _PART.findall(value.lower())
    if parts and "".join(number + unit for number, unit in parts) == value.lower():
        return timedelta(seconds=sum(float(number) * _UNITS[unit] for number, unit in parts))
    raise ConfigError(f"expected {name} to be a duration such as 30s, 5m, 720h or PT5M, got {text!r}")


def format_duration(value: timedelta) -> str:
    seconds = value.total_seconds()
    for unit in ("w", "d", "h", "m", "s"):
        if seconds >= _UNITS[unit] and seconds % _UNITS[unit] == 0:
            return f"{int(seconds // _UNITS[unit])}{unit}"
    return f"{seconds * 1000:g}ms"
