"""Options of a sink as the standalone relay has them: text from a file, the environment or a URL's query.

    parts, options = split_url("kafka://broker:9092?client_id=shop", {"linger": "5ms"})
    KafkaSink(bootstrap=parts.netloc, **typed(KafkaSink, options))

The keyword arguments of the sink's constructor are the options, and their annotations say how text is read.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Set
from datetime import timedelta
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin
from urllib.parse import SplitResult, parse_qsl, urlsplit

from ..durations import parse_duration
from ..errors import ConfigError

_BOOLEANS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def split_url(url: str, options: Mapping[str, Any]) -> tuple[SplitResult, dict[str, Any]]:
    """The URL without its query, and the options with those of the query; `options` win."""
    try:
        parts = urlsplit(url)
        query = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=True)) if parts.query else {}
    except ValueError:
        raise ConfigError("cannot read the sink's URL; expected scheme://host:port/path?option=value") from None
    return parts._replace(query=""), {**query, **options}


def check_account(url: str, whose: str) -> None:
    """A slash in a password ends the host: what stands before it would be shown as a port."""
    rest = url.partition("://")[2]
    host = re.split("[/?#]", rest, maxsplit=1)[0]
    port = host.rpartition(":")[2]
    if "@" in rest and "@" not in host and ":" in host and not (port.isdecimal() or port.endswith("]")):
        raise ConfigError(f"the {whose}'s URL has an @ behind its host; in a password write / ? # @ as %2F %3F %23 %40")


def typed(sink: type, options: Mapping[str, Any], *, taken: Set[str] = frozenset()) -> dict[str, Any]:
    """Keyword arguments for the constructor of `sink`. `taken` are arguments that the URL itself gives."""
    readers = _readers(sink)
    known = sorted(readers.keys() - taken)
    if unknown := sorted(options.keys() - set(known)):
        raise ConfigError(f"unknown option {unknown[0]!r} of {sink.__name__}; known: {', '.join(known)}")
    return {name: _read(readers[name], name, value) for name, value in options.items()}


def _read(reader: Callable[[str, str], Any], name: str, value: Any) -> Any:
    """Text is read; a number from a file too where it stands for seconds."""
    seconds = reader is _READERS[timedelta] and isinstance(value, (int, float)) and not isinstance(value, bool)
    return reader(name, str(value)) if isinstance(value, str) or seconds else value


def _readers(sink: type) -> dict[str, Callable[[str, str], Any]]:
    arguments = inspect.signature(sink, eval_str=True).parameters
    found = {name: _reader(argument.annotation) for name, argument in arguments.items()}
    return {name: reader for name, reader in found.items() if reader is not None}


def _reader(hint: Any) -> Callable[[str, str], Any] | None:
    """How text becomes a value of this type; None where it cannot (a callback, say)."""
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


def _boolean(name: str, text: str) -> bool:
    if text.lower() not in _BOOLEANS:
        raise ConfigError(f"expected {name} to be true or false, got {text!r}")
    return _BOOLEANS[text.lower()]


def _number(kind: type[int] | type[float]) -> Callable[[str, str], Any]:
    def read(name: str, text: str) -> Any:
        try:
            return kind(text)
        except ValueError:
            raise ConfigError(f"expected {name} to be a number, got {text!r}") from None

    return read


def _no_text(name: str, text: str) -> Any:
    raise ConfigError(f"expected {name} to be a table of names and values, as in a TOML file, got text")


_READERS: dict[Any, Callable[[str, str], Any]] = {
    str: lambda _, text: text,
    bytes: lambda _, text: text.encode(),
    Path: lambda _, text: Path(text),
    bool: _boolean,
    int: _number(int),
    float: _number(float),
    timedelta: lambda name, text: parse_duration(text, name),
}
