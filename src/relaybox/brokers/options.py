"""Options of sinks and sources as text, from a file, the environment or a URL's query.

    typed(KafkaSink, {"linger": "5ms"})     # {"linger": timedelta(milliseconds=5)}

The keyword arguments of a class are its options, and their annotations say how text is read.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from datetime import timedelta
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints
from urllib.parse import SplitResult, parse_qsl, urlsplit

from ..durations import Duration, DurationField, parse_duration
from ..errors import ConfigError
from ..words import did_you_mean

Reader: TypeAlias = Callable[[str, str], Any]  # of an option's name and text

_BOOLEANS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def split_url(url: str, options: Mapping[str, Any]) -> tuple[SplitResult, dict[str, Any]]:
    """The URL without its query, and the options with those of the query; `options` win."""
    try:
        parts = urlsplit(url)
        query = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=True)) if parts.query else {}
    except ValueError:
        raise ConfigError("cannot read the broker's URL; expected scheme://host:port/path?option=value") from None
    return parts._replace(query=""), {**query, **options}


def check_account(url: str, whose: str) -> None:
    """A slash in a password ends the host: what stands before it would be shown as a port."""
    rest = url.partition("://")[2]
    host = re.split("[/?#]", rest, maxsplit=1)[0]
    port = host.rpartition(":")[2]
    if "@" in rest and "@" not in host and ":" in host and not (port.isdecimal() or port.endswith("]")):
        raise ConfigError(f"the {whose}'s URL has an @ behind its host; in a password write / ? # @ as %2F %3F %23 %40")


def typed(kind: type, options: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments for a class, of options that may be text."""
    return read(kind.__name__, readers(kind), options)


def read(whose: str, known: Mapping[str, Reader], options: Mapping[str, Any]) -> dict[str, Any]:
    """Text is read, and so is a number that should be a duration, to be refused. What is not known is refused too."""
    if unknown := sorted(options.keys() - known.keys()):
        hint = did_you_mean(unknown[0], known)
        raise ConfigError(f"unknown option {unknown[0]!r} of {whose}{hint or ';'} known: {', '.join(sorted(known))}")
    values = {}
    for name, value in options.items():
        seconds = known[name] is _duration and isinstance(value, (int, float)) and not isinstance(value, bool)
        values[name] = known[name](name, str(value)) if isinstance(value, str) or seconds else value
    return values


def readers(kind: type) -> dict[str, Reader]:
    """How text becomes each keyword argument of a class, without those that no text can give (a callback, say)."""
    inherited = get_type_hints(kind) if is_dataclass(kind) else {}  # its fields may be from another module
    arguments = inspect.signature(kind, eval_str=not inherited).parameters
    found = {name: _reader(inherited.get(name, arguments[name].annotation)) for name in _keywords(kind)}
    return {name: reader for name, reader in found.items() if reader is not None}


def required(kind: type) -> list[str]:
    """Keyword arguments without a default."""
    return [name for name, argument in _keywords(kind).items() if argument.default is argument.empty]


def _keywords(kind: type) -> dict[str, inspect.Parameter]:
    arguments = inspect.signature(kind).parameters
    return {name: argument for name, argument in arguments.items() if argument.kind is argument.KEYWORD_ONLY}


def _reader(hint: Any) -> Reader | None:
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    for kind in kinds:
        if kind is NoneType:
            continue
        if kind in _READERS:
            return _READERS[kind]
        if get_origin(kind) is Literal:
            return lambda _, text: text
        if isinstance(get_origin(kind), type) and issubclass(get_origin(kind), Mapping):
            return _no_text
    return None


def boolean(name: str, value: object) -> bool:
    found = _BOOLEANS.get(str(value).lower())
    if found is None:
        raise ConfigError(f"expected {name} to be true or false, got {value!r}")
    return found


def _number(kind: type[int] | type[float]) -> Reader:
    def read(name: str, text: str) -> Any:
        try:
            return kind(text)
        except ValueError:
            raise ConfigError(f"expected {name} to be a number, got {text!r}") from None

    return read


def _duration(name: str, text: str) -> timedelta:
    return parse_duration(text, name)


def _no_text(name: str, text: str) -> Any:
    raise ConfigError(f"expected {name} to be a table of names and values, as in a TOML file, got text")


_READERS: dict[Any, Reader] = {
    str: lambda _, text: text,
    Path: lambda _, text: Path(text),
    bool: boolean,
    int: _number(int),
    float: _number(float),
    timedelta: _duration,
    DurationField: _duration,
}


# What constructors check


def check_given(**names: str | None) -> None:
    for name, value in names.items():
        if not value:
            raise ConfigError(f"expected {name}, the option that says where to read, got {value!r}")


def positive(name: str, value: Duration) -> timedelta:
    duration = parse_duration(value, name)
    check_positive(**{name: duration})
    return duration


def check_positive(**durations: timedelta) -> None:
    for name, value in durations.items():
        if value <= timedelta(0):
            raise ConfigError(f"expected {name} to be a positive duration, got {value}")


def check_choice(name: str, value: str, choices: Any) -> None:
    """`choices` is a Literal."""
    if value not in get_args(choices):
        raise ConfigError(f"expected {name} to be one of {', '.join(get_args(choices))}, got {value!r}")


def check_least(least: int, **numbers: int | None) -> None:
    for name, value in numbers.items():
        if value is not None and value < least:
            raise ConfigError(f"expected {name} to be at least {least}, got {value}")


def check_range(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ConfigError(f"expected {name} to be {low:,} to {high:,}, got {value:,}")
