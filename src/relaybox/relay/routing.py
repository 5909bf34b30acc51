"""From an event to its destination: one name for all, a template, a function, or the contracts."""

from __future__ import annotations

from collections.abc import Callable
from string import Formatter
from typing import TypeAlias

from ..errors import ConfigError, Reject
from ..event import Event

Destination: TypeAlias = str | Callable[[Event], str]

_FIELDS = {
    "type": lambda event: event.type,
    "aggregate_type": lambda event: event.aggregate_type,
    "tenant": lambda event: event.tenant,
    "key": lambda event: event.key,
}


def router(to: Destination, separator: str | None = None) -> Callable[[Event], str]:
    """`to` as a function. A template names fields of the event: "{aggregate_type}-events". Where a sink splits
    destinations, only a separator of the template's own does that: an event must not choose its exchange."""
    if callable(to):
        return _checked(to)
    if not isinstance(to, str) or not to:
        raise ConfigError(f"expected `to` to be a destination, a template or a function, got {to!r}")
    try:
        fields = [_written(name, form, how) for _, name, form, how in Formatter().parse(to) if name is not None]
    except ValueError as error:
        raise ConfigError(f"the destination {to!r} is not a template: {error}") from None
    unknown = [name for name in fields if name not in _FIELDS]
    if unknown:
        raise ConfigError(f"unknown field {unknown[0]!r} in the destination {to!r}; expected {', '.join(_FIELDS)}")
    if not fields:
        name = to.format()
        return lambda event: name

    def fill(event: Event) -> str:
        values = {name: _FIELDS[name](event) for name in fields}
        missing = [name for name, value in values.items() if not value]
        if missing:
            raise Reject(f"the destination {to!r} needs the event's {missing[0]}, and it has none")
        return to.format_map(values)

    return fill if separator is None else _unsplit(to, separator, fill)


def _checked(to: Callable[[Event], str]) -> Callable[[Event], str]:
    def checked(event: Event) -> str:
        destination = to(event)
        if not isinstance(destination, str) or not destination:
            raise Reject(f"expected the route of {event.type!r} to be the name of a destination")
        try:
            destination.encode()
        except UnicodeEncodeError:  # JSON has such text, no sink takes it, and one would refuse the whole batch
            raise Reject(f"the route of {event.type!r} is {destination!r}, which has half a character") from None
        return destination

    return checked


def _unsplit(to: str, separator: str, fill: Callable[[Event], str]) -> Callable[[Event], str]:
    first, split, _ = to.partition(separator)
    before = router(first) if split and first else None

    def whole(event: Event) -> str:
        destination = fill(event)
        if not split:
            return separator + destination if separator in destination else destination
        if before is not None and separator in before(event):
            raise Reject(f"a field of the event has {separator!r} in it, before the one that splits {to!r}")
        return destination

    return whole


def _written(name: str, form: str | None, conversion: str | None) -> str:
    """A field as it stands in the template: `type!r` and `type:>9` are more than a name."""
    return name + (f"!{conversion}" if conversion else "") + (f":{form}" if form else "")
