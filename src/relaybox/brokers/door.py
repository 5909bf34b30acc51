"""The door for whatever comes from outside: what a message does to its reader concerns that message alone.

A source makes an `Incoming` of what its client library hands over (`taken`), an ingest an event of that (`event_of`). A
reader may raise anything, an error of arithmetic or of recursion too: here, and nowhere else, it becomes InvalidEvent.
So the message is buried with its bytes, its place and the reason, and the next one is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..errors import InvalidEvent
from ..event import Event
from .parse import Reading, malformed, parse
from .spi import Incoming


@contextmanager
def door(*declared: type[Exception]) -> Iterator[None]:
    """Whatever is raised inside comes out as InvalidEvent, but for what is declared. Of a stranger's error only the
    name: its text may quote what was read."""
    try:
        yield
    except Exception as error:
        if isinstance(error, (InvalidEvent, *declared)):
            raise
        raise InvalidEvent(f"reading it failed with {type(error).__name__}") from error


def taken(read: Callable[[], Incoming], *, channel: str, place: str, body: bytes, receipt: Any) -> Incoming:
    """What `read` makes of a message; if it cannot, what is known for certain, with the reason."""
    try:
        with door():
            return read()
    except InvalidEvent as error:
        return Incoming(channel=channel, place=place, body=body, headers={}, receipt=receipt, unreadable=_reason(error))


def event_of(message: Incoming, reading: Reading | None) -> tuple[Event, str | None]:
    """The event, and why it is only a stand-in; None: the message could be read."""
    reason = message.unreadable
    if reason is None:
        try:
            with door():
                return parse(message, reading), None
        except InvalidEvent as error:
            reason = _reason(error)
    return malformed(message), f"{reason} (read at {message.place})"


def _reason(error: InvalidEvent) -> str:
    return f"{type(error).__name__}: {error}"
