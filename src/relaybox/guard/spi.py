"""What a guard asks of the place that keeps its marks.

    nothing ──enter──► in progress ──finish──► done
       ▲                    │                   │
       └─ leave, lease ends ┘                   │
       └──────────── ttl ends, forget ──────────┘

A plain guard enters as `done`. Every move after `enter` presents the token it was entered with and does nothing if
somebody else holds the key by then, so a process that slept through its lease can neither finish nor leave.

Moves are generators of requests (SQL statements, Redis commands) that `op.run` and `op.arun` drive.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, Protocol, get_args

from ..durations import Duration, format_duration, parse_duration
from ..errors import ConfigError
from ..event import Event
from ..op import T
from ..settings import GuardSettings

GuardSteps = Generator[Any, Any, T]
KeyState = Literal["first", "in progress", "done"]
Mode = Literal["two-phase", "setnx"]

PREFIX = "relaybox:processed:"
LONGEST = timedelta(days=3650)  # later than that no database can be sure to store


@dataclass(frozen=True, slots=True)
class Terms:
    """Who marks, and for how long. `lease` bounds what a crash costs: nobody else may start before it ends."""

    consumer: str
    ttl: timedelta
    lease: timedelta
    mode: Mode = "two-phase"

    def __post_init__(self) -> None:
        check_text("consumer", self.consumer, 64)
        if ":" in self.consumer:
            raise ConfigError(f"expected consumer to have no colon, which ends it in a key, got {self.consumer!r}")
        if self.mode not in get_args(Mode):
            raise ConfigError(f"expected mode to be one of {', '.join(get_args(Mode))}, got {self.mode!r}")
        if not timedelta(milliseconds=1) <= self.lease < self.ttl <= LONGEST:
            raise ConfigError(
                f"expected 1ms ≤ lease < ttl ≤ {LONGEST.days}d, got lease {format_duration(self.lease)} and "
                f"ttl {format_duration(self.ttl)}"
            )

    @property
    def two_phase(self) -> bool:
        return self.mode == "two-phase"


def terms(consumer: str, ttl: Duration | None, lease: Duration | None, mode: Mode, settings: GuardSettings) -> Terms:
    """What is not given is as the settings say."""
    remembers = settings.ttl if ttl is None else parse_duration(ttl, "ttl")
    return Terms(consumer, remembers, settings.lease if lease is None else parse_duration(lease, "lease"), mode)


def key_of(event: str | Event) -> str:
    """What a message is known by: text, or the id of an event."""
    key = event.id if isinstance(event, Event) else event
    check_text("the key of a message", key, 255)
    return key


def check_text(name: str, value: object, limit: int) -> None:
    if not isinstance(value, str):
        raise ConfigError(f"expected {name} to be a string, got {type(value).__name__}")
    if not 0 < len(value) <= limit or "\x00" in value or not _encodable(value):
        raise ConfigError(
            f"expected {name} to be 1 to {limit} characters of text without NUL, got {len(value)}: {value[:40]!r}"
        )


def _encodable(value: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in value)


class Marks(Protocol):
    """`False` from renew, finish or leave: the key is somebody else's by now, and nothing was changed."""

    terms: Terms

    def enter(self, key: str, token: int) -> GuardSteps[KeyState]: ...

    def renew(self, key: str, token: int) -> GuardSteps[bool]: ...

    def finish(self, key: str, token: int) -> GuardSteps[bool]: ...

    def leave(self, key: str, token: int) -> GuardSteps[bool]: ...

    def forget(self, key: str) -> GuardSteps[None]: ...
