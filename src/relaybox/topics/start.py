"""Where a new group begins.

    StartFrom.latest()                      what is committed from now on
    StartFrom.earliest()                    all that is kept
    StartFrom.earliest(max_messages=1000)   the last thousand, then what follows
    StartFrom.timestamp(t)                  what was created at t or later
    StartFrom.event(seq)                    from this number on

`from_now`, `from_beginning`, `from_beginning_unlimited`, `from_timestamp` and `from_message_id` say the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from ..errors import ConfigError
from ..store.topics import Start

MAX_MESSAGES = 1_000_000


@dataclass(frozen=True, slots=True)
class StartFrom:
    """Fixed when the group is made: a consumer that joins later joins where the group stands."""

    start: Start
    backfill: bool = False  # ask completion marks for what was written before, where a topic keeps them

    @classmethod
    def latest(cls) -> StartFrom:
        return cls(Start("latest"))

    @classmethod
    def earliest(cls, backfill: bool = True, max_messages: int | None = MAX_MESSAGES) -> StartFrom:
        """The last `max_messages` numbers at most; those of transactions that rolled back count too. None: all."""
        if max_messages is not None and max_messages < 1:
            raise ConfigError(f"expected max_messages to be a positive int or None, got {max_messages}")
        return cls(Start("earliest", limit=max_messages), backfill)

    @classmethod
    def earliest_unlimited(cls) -> StartFrom:
        return cls.earliest(max_messages=None)

    @classmethod
    def timestamp(cls, since: datetime) -> StartFrom:
        if since.tzinfo is None:
            raise ConfigError(f"expected a time with a time zone, got {since.isoformat()}; add tzinfo=UTC")
        return cls(Start("time", since=since))

    @classmethod
    def event(cls, seq: int) -> StartFrom:
        if seq < 1:
            raise ConfigError(f"expected an event's number, which is 1 or more, got {seq}")
        return cls(Start("event", event=seq))

    from_now = latest
    from_beginning = earliest
    from_beginning_unlimited = earliest_unlimited
    from_timestamp = timestamp
    from_message_id = event
